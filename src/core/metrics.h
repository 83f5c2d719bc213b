/* Counters, gauges and histograms from one table (metrics.def): counted per worker without locks, summed on read. */
#ifndef OUTBOXD_METRICS_H
#define OUTBOXD_METRICS_H

#include <stdint.h>

#include "str.h"

enum metric {
#define COUNTER(id, ...)   id,
#define GAUGE(id, ...)     id,
#define HISTOGRAM(id, ...) id,
#include "metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
    METRICS
};

struct metrics; /* one writer thread each */

struct metrics *metrics_new(void); /* registers itself with the sums; lives until metrics_free_all at exit */
void metrics_free_all(void);

void metrics_add(struct metrics *metrics, enum metric metric, uint64_t n);   /* counter */
void metrics_set(struct metrics *metrics, enum metric metric, double value); /* gauge: the sum over writers is shown */
void metrics_observe(struct metrics *metrics, enum metric metric, double value); /* histogram; seconds or events */

double metrics_sum(enum metric metric);          /* counter, gauge: over all writers; histogram: its count */
void metrics_print(struct strbuf *out);          /* Prometheus text */
void metrics_print_markdown(struct strbuf *out); /* the table of the reference */

#endif
