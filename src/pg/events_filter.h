/* An operator's filter as SQL, shared by looking and changing. */
#ifndef OUTBOXD_EVENTS_FILTER_H
#define OUTBOXD_EVENTS_FILTER_H

#include "events.h"

/* A statement that is put together: text, and its parameters as they come. */
struct question {
    struct strbuf sql;
    const char *values[64];
    int n;
    char numbers[16][24]; /* texts of integer parameters */
    int n_numbers;
};

void question_add(struct question *question, const char *sql);
void question_value(struct question *question, const char *value, const char *type);
void question_int(struct question *question, int64_t value, const char *type);
enum result question_ask(struct question *question, struct pg *pg, struct rows **ret, struct error *err) CHECK_RESULT;
void question_done(struct question *question);

/* A part of the table behind one partial index. */
struct events_part {
    unsigned kind;
    const char *predicate;
    bool lists;        /* it holds rows with a list of topics */
    const char *order; /* the order of the index behind the lane */
    bool topic_first;  /* that order begins with the topic */
};

/* DEAD before FAILED, so that what is retried comes back in order: a FAILED row waits for earlier ones that are ready or
 * FAILED, but not for DEAD ones. */
extern const struct events_part events_parts[];
extern const size_t n_events_parts;

/* "(SELECT ... lane) l": every lane, or that of the key. */
void filter_lanes(struct question *question, const struct events_filter *filter);

/* The part's rows e that the filter wants: its predicate, and " AND ..." for all that the filter names. */
void filter_part(struct question *question, const struct events_part *part, const struct events_filter *filter);

/* The same without the part's predicate; `lists`: rows may have a list of topics. */
void filter_conditions(struct question *question, const struct events_filter *filter, bool lists);

/* " AND ..." for the time since which the events were written. */
void filter_since(struct question *question, const struct events_filter *filter);

/* "FAILED" to change means refused: a follower that was released and is on its way never failed by itself. An id names the
 * row, so there it cannot be meant by accident. */
bool filter_wants_refused(const struct events_part *part, const struct events_filter *filter);
#define REFUSED " AND (retry_after IS NOT NULL OR retry_count > 0)"

#endif
