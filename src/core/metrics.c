#include "metrics.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 16

enum kind { KIND_COUNTER, KIND_GAUGE, KIND_HISTOGRAM };
enum buckets { SECONDS, EVENTS };

/* The label, too: a scrape prints most of them, and printf would be most of its cost. */
#define LE(bound)                  \
    {                              \
        bound, "le=\"" #bound "\"" \
    }

static const struct bound {
    double value;
    const char *label;
} bounds_of[][BUCKETS] = {
    [SECONDS] = {LE(0.0005), LE(0.001), LE(0.0025), LE(0.005), LE(0.01), LE(0.025), LE(0.05), LE(0.1), LE(0.25),
                 LE(0.5), LE(1), LE(2.5), LE(5), LE(10), LE(60), LE(600)},
    [EVENTS] = {LE(1), LE(2), LE(5), LE(10), LE(20), LE(50), LE(100), LE(200), LE(500), LE(1000), LE(2000), LE(3000),
                LE(5000), LE(10000), LE(15000), LE(20000)},
};

static const struct row {
    const char *name, *labels, *help;
    enum kind kind;
    enum buckets buckets;
} rows[] = {
#define COUNTER(id, name_, labels_, help_) \
    [id] = {.name = name_, .labels = labels_, .help = help_, .kind = KIND_COUNTER},
#define GAUGE(id, name_, labels_, help_) [id] = {.name = name_, .labels = labels_, .help = help_, .kind = KIND_GAUGE},
#define HISTOGRAM(id, name_, labels_, help_, buckets_) \
    [id] = {.name = name_, .labels = labels_, .help = help_, .kind = KIND_HISTOGRAM, .buckets = buckets_},
#include "metrics.def"
#undef COUNTER
#undef GAUGE
#undef HISTOGRAM
};

/* Only its own thread writes a series, so a relaxed load and store are enough; readers see each number whole. */
struct series {
    _Atomic uint64_t count; /* counter; histogram: observations */
    _Atomic double value;   /* gauge; histogram: sum */
    _Atomic uint64_t buckets[BUCKETS];
};

struct metrics {
    struct metrics *next;
    struct series series[METRICS];
};

static _Atomic(struct metrics *) writers;

#define GET(x)    atomic_load_explicit(&(x), memory_order_relaxed)
#define PUT(x, v) atomic_store_explicit(&(x), (v), memory_order_relaxed)

struct metrics *metrics_new(void)
{
    struct metrics *metrics = mem_alloc(sizeof(*metrics));

    metrics->next = atomic_load(&writers);
    while (!atomic_compare_exchange_weak(&writers, &metrics->next, metrics))
        ;
    return metrics;
}

void metrics_free_all(void)
{
    struct metrics *metrics = atomic_exchange(&writers, NULL);

    while (metrics) {
        struct metrics *next = metrics->next;
        free(metrics);
        metrics = next;
    }
}

void metrics_add(struct metrics *metrics, enum metric metric, uint64_t n)
{
    struct series *series = &metrics->series[metric];
    PUT(series->count, GET(series->count) + n);
}

void metrics_set(struct metrics *metrics, enum metric metric, double value)
{
    PUT(metrics->series[metric].value, value);
}

void metrics_observe(struct metrics *metrics, enum metric metric, double value)
{
    struct series *series = &metrics->series[metric];
    const struct bound *bounds = bounds_of[rows[metric].buckets];
    size_t i = 0;

    while (i < BUCKETS && value > bounds[i].value)
        i++;
    if (i < BUCKETS)
        PUT(series->buckets[i], GET(series->buckets[i]) + 1);
    PUT(series->value, GET(series->value) + value);
    PUT(series->count, GET(series->count) + 1);
}

static double sum_value(enum metric metric)
{
    double sum = 0;

    if (metric == M_BUILD_INFO)
        return 1;
    for (struct metrics *m = atomic_load(&writers); m; m = m->next)
        sum += GET(m->series[metric].value);
    return sum;
}

static uint64_t sum_count(enum metric metric)
{
    uint64_t sum = 0;

    for (struct metrics *m = atomic_load(&writers); m; m = m->next)
        sum += GET(m->series[metric].count);
    return sum;
}

static uint64_t sum_bucket(enum metric metric, size_t bucket)
{
    uint64_t sum = 0;

    for (struct metrics *m = atomic_load(&writers); m; m = m->next)
        sum += GET(m->series[metric].buckets[bucket]);
    return sum;
}

double metrics_sum(enum metric metric)
{
    return rows[metric].kind == KIND_GAUGE ? sum_value(metric) : (double)sum_count(metric);
}

static void print_number(struct strbuf *out, double value)
{
    if (value > -1e15 && value < 1e15 && value == (double)(int64_t)value)
        strbuf_add_int(out, (int64_t)value);
    else
        strbuf_addf(out, "%.15g", value);
}

/* "name_suffix{labels,extra} " */
static void print_name(struct strbuf *out, const struct row *row, const char *suffix, const char *extra_label)
{
    bool labels = *row->labels || *extra_label;

    strbuf_add(out, row->name);
    strbuf_add(out, suffix);
    strbuf_add(out, labels ? "{" : "");
    strbuf_add(out, row->labels);
    strbuf_add(out, *row->labels && *extra_label ? "," : "");
    strbuf_add(out, extra_label);
    strbuf_add(out, labels ? "} " : " ");
}

static void print_count(struct strbuf *out, const struct row *row, const char *suffix, const char *extra_label,
                        uint64_t count)
{
    print_name(out, row, suffix, extra_label);
    strbuf_add_int(out, (int64_t)count);
    strbuf_add(out, "\n");
}

/* An observation may land between our reads; counting the rest from the buckets keeps them in step with _count. */
static void print_histogram(struct strbuf *out, enum metric metric)
{
    const struct row *row = &rows[metric];
    uint64_t total = 0, count = sum_count(metric);
    double sum = sum_value(metric);

    for (size_t i = 0; i < BUCKETS; i++) {
        total += sum_bucket(metric, i);
        print_count(out, row, "_bucket", bounds_of[row->buckets][i].label, total);
    }
    if (count < total)
        count = total;
    print_count(out, row, "_bucket", "le=\"+Inf\"", count);
    print_name(out, row, "_sum", "");
    print_number(out, sum);
    strbuf_add(out, "\n");
    print_count(out, row, "_count", "", count);
}

static const char *kind_name(const struct row *row)
{
    static const char *const names[] = {"counter", "gauge", "histogram"};
    return names[row->kind];
}

static bool first_of_name(size_t i)
{
    return i == 0 || !str_eq(rows[i].name, rows[i - 1].name);
}

void metrics_print(struct strbuf *out)
{
    for (size_t i = 0; i < METRICS; i++) {
        const struct row *row = &rows[i];
        if (first_of_name(i))
            strbuf_addf(out, "# HELP %s %s\n# TYPE %s %s\n", row->name, row->help, row->name, kind_name(row));
        if (row->kind == KIND_HISTOGRAM) {
            print_histogram(out, (enum metric)i);
        } else {
            print_name(out, row, "", "");
            print_number(out, metrics_sum((enum metric)i));
            strbuf_add(out, "\n");
        }
    }
}

void metrics_print_markdown(struct strbuf *out)
{
    strbuf_add(out, "| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < METRICS;) {
        const struct row *row = &rows[i];
        strbuf_addf(out, "| `%s` | %s | ", row->name, kind_name(row));
        do {
            /* The version is this build's; the reference must not change with it. */
            if (i == M_BUILD_INFO)
                strbuf_add(out, "`version`");
            else if (*rows[i].labels)
                strbuf_addf(out, "%s`%s`", first_of_name(i) ? "" : ", ", rows[i].labels);
        } while (++i < METRICS && !first_of_name(i));
        strbuf_addf(out, " | %s |\n", row->help);
    }
}
