#include "mock.h"

#include <stdlib.h>

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#include "log.h"
#include "str.h"

struct mock {
    rd_kafka_t *rk; /* librdkafka wants one to keep the cluster's books */
    rd_kafka_mock_cluster_t *cluster;
};

static void log_line(const rd_kafka_t *rk, int level, const char *facility, const char *text)
{
    (void)rk;
    log_debug("mock cluster %d %s: %s", level, facility, text);
}

enum result mock_new(int brokers, struct mock **ret, struct error *err)
{
    char text[512];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    struct mock *mock = mem_alloc(sizeof(*mock));

    rd_kafka_conf_set_log_cb(conf, log_line);
    mock->rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, text, sizeof(text));
    if (!mock->rk) {
        rd_kafka_conf_destroy(conf);
        free(mock);
        return error_fatal(err, "cannot start the in-memory broker: %s", text);
    }
    mock->cluster = rd_kafka_mock_cluster_new(mock->rk, brokers);
    if (!mock->cluster) {
        mock_free(mock);
        return error_fatal(err, "cannot start the in-memory broker: no port on 127.0.0.1");
    }
    *ret = mock;
    return OK;
}

void mock_free(struct mock *mock)
{
    if (!mock)
        return;
    if (mock->cluster)
        rd_kafka_mock_cluster_destroy(mock->cluster);
    rd_kafka_destroy(mock->rk);
    free(mock);
}

const char *mock_bootstrap(const struct mock *mock)
{
    return rd_kafka_mock_cluster_bootstraps(mock->cluster);
}

void *mock_cluster(const struct mock *mock)
{
    return mock->cluster;
}
