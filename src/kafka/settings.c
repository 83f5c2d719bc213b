#include "settings.h"

#include "log.h"
#include "str.h"

/* Any thread of librdkafka. */
static void log_line(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    (void)rk;
    log_debug("librdkafka %d %s: %s", level, facility, text);
}

enum result settings_apply(rd_kafka_conf_t *conf, const struct setting *settings, struct error *err)
{
    char text[512];

    for (; settings && settings->name; settings++)
        if (rd_kafka_conf_set(conf, settings->name, settings->value, text, sizeof(text)) != RD_KAFKA_CONF_OK)
            return error_fatal(err, "this librdkafka (%s) cannot do what outboxd needs: %s", rd_kafka_version_str(),
                               text);
    return OK;
}

char *settings_set(rd_kafka_conf_t *conf, const char *property, const char *value)
{
    char text[512];

    if (rd_kafka_conf_set(conf, property, value, text, sizeof(text)) == RD_KAFKA_CONF_OK)
        return NULL;
    /* librdkafka quotes the value in its text. */
    return str_dup(config_kafka_secret(property) ? "librdkafka does not take this value" : text);
}

static enum result apply_user(rd_kafka_conf_t *conf, const struct config *config, struct error *err)
{
    for (size_t i = 0; i < config->n_kafka; i++) {
        const struct kafka_property *property = &config->kafka[i];
        _cleanup_(str_free) char *fault = settings_set(conf, property->name, property->value);
        if (!fault)
            continue;
        _cleanup_(str_free) char *setting = config_kafka_setting(property->name);
        return error_fatal(err, "%s: %s", setting, fault);
    }
    return OK;
}

void settings_free(rd_kafka_conf_t **conf)
{
    if (*conf)
        rd_kafka_conf_destroy(*conf);
}

enum result settings_begin(const struct config *config, const struct setting *defaults, rd_kafka_conf_t **ret,
                           struct error *err)
{
    _cleanup_(settings_free) rd_kafka_conf_t *conf = rd_kafka_conf_new();

    rd_kafka_conf_set_log_cb(conf, log_line);
    enum result result = settings_apply(conf, defaults, err);
    if (result == OK)
        result = apply_user(conf, config, err);
    if (result == OK)
        *ret = TAKE(conf);
    return result;
}
