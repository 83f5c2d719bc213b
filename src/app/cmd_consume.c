#include "app.h"
#include "http.h"
#include "keeper.h"
#include "metrics.h"

struct window { /* between the consumer and HTTP */
    const struct config *config;
    struct duty *duty;
    struct http *http;
    struct metrics *metrics; /* the HTTP thread's */
};

static bool window_ready(void *arg, char *ret, size_t size)
{
    struct window *window = arg;
    return duty_ready(window->duty, ret, size);
}

static void window_gauges(void *arg)
{
    struct window *window = arg; /* the others are the consumer's own thread's, which hangs when this one matters */
    char reason[600];
    metrics_set(window->metrics, M_BREAKER_OPEN, !duty_ready(window->duty, reason, sizeof reason));
}

static void window_status(void *arg, struct strbuf *out)
{
    struct window *window = arg;
    char reason[600];
    bool ready = duty_ready(window->duty, reason, sizeof reason);
    strbuf_addf(out, "{\"ready\": %s, \"reason\": ", ready ? "true" : "false");
    strbuf_add_json(out, reason);
    strbuf_add(out, ", \"group\": ");
    strbuf_add_json(out, window->config->consumer_group);
    strbuf_addf(out,
                ", \"partitions\": %d, \"lag\": %.0f, \"waiting\": %.0f, \"handled\": %.0f, \"duplicates\": %.0f, "
                "\"failed\": %.0f, \"dead\": %.0f}",
                atomic_load(&window->duty->partitions), metrics_sum(M_CONSUMER_LAG), metrics_sum(M_CONSUMER_WAITING),
                metrics_sum(M_CONSUMED_HANDLED), metrics_sum(M_CONSUMED_DUPLICATE), metrics_sum(M_CONSUMED_FAILED),
                metrics_sum(M_CONSUMED_DEAD));
}

static enum result window_open(void *arg, struct duty *duty, struct error *err)
{
    struct window *window = arg;
    window->duty = duty;
    window->metrics = metrics_new();
    const struct http_source source = {
        .arg = window, .ready = window_ready, .gauges = window_gauges, .status = window_status};
    return http_start(window->config, &source, &window->http, err);
}

static void window_close(void *arg)
{
    struct window *window = arg;
    http_stop(window->http);
}

static enum ended run(const struct config *config, struct error *err)
{
    static struct window window; /* an abandoned HTTP thread goes on using it */
    const struct keeper_hooks hooks = {.open = window_open, .close = window_close, .arg = &window};
    window.config = config;
    return keeper_run(config, &hooks, err);
}

int cmd_consume(int argc, char **argv)
{
    (void)argv;
    return app_daemon("consume", argc, run);
}
