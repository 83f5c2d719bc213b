/* librdkafka's in-memory cluster, for `outboxd dev-broker` and for component tests. It listens on 127.0.0.1, on ports of
 * its own choice, makes topics with four partitions when they are first asked for, keeps about 5 MB a partition and
 * drops what is older. Not for production: nothing is kept. */
#ifndef OUTBOXD_MOCK_H
#define OUTBOXD_MOCK_H

#include "error.h"

struct mock;

enum result mock_new(int brokers, struct mock **ret, struct error *err) CHECK_RESULT;
void mock_free(struct mock *mock); /* NULL-safe */

const char *mock_bootstrap(const struct mock *mock); /* "127.0.0.1:PORT[,...]", lives as long as the mock */

/* rd_kafka_mock_cluster_t, for tests that inject errors. */
void *mock_cluster(const struct mock *mock);

#endif
