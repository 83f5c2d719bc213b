#include "app.h"
#include "http.h"
#include "metrics.h"
#include "supervisor.h"

struct window { /* between the crew and HTTP */
    struct crew *crew;
    struct metrics *metrics; /* of http's thread */
    struct http *http;
};

static bool window_ready(void *arg, char *ret, size_t size)
{
    struct window *window = arg;
    return crew_ready(window->crew, ret, size);
}

static void window_gauges(void *arg)
{
    struct window *window = arg;
    metrics_set(window->metrics, M_BREAKER_OPEN, crew_paused(window->crew));
    metrics_set(window->metrics, M_FIGURES_AGE, crew_figures_age(window->crew));
    metrics_set(window->metrics, M_LANES_HELD, crew_lanes_held(window->crew));
}

static void window_status(void *arg, struct strbuf *out)
{
    struct window *window = arg;
    crew_status(window->crew, out);
}

static enum result window_open(void *arg, struct crew *crew, struct error *err)
{
    struct window *window = arg;
    window->crew = crew;
    window->metrics = metrics_new();
    const struct http_source source = {
        .arg = window, .ready = window_ready, .gauges = window_gauges, .status = window_status};
    return http_start(crew->config, &source, &window->http, err);
}

static void window_close(void *arg)
{
    struct window *window = arg;
    http_stop(window->http);
}

static enum ended run(const struct config *config, struct error *err)
{
    static struct window window; /* an abandoned HTTP thread goes on using it */
    const struct supervisor_hooks hooks = {.open = window_open, .close = window_close, .arg = &window};
    return supervisor_run(config, &hooks, err);
}

int cmd_run(int argc, char **argv)
{
    (void)argv;
    return app_daemon("run", argc, run);
}
