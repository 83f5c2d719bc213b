#include "events_filter.h"

#include <assert.h>
#include <stdio.h>

#include "claim.h"
#include "predicates.h"

#define BY_KEY   KEY ", seq"
#define BY_TOPIC "topic, " KEY ", seq"

const struct events_part events_parts[] = {
    {EVENTS_DEAD, DEAD, true, BY_KEY, false},
    {EVENTS_FAILED, HEAD, false, BY_TOPIC, true},
    {EVENTS_FAILED, ROUTED " AND retry_after IS DISTINCT FROM 'infinity'", true, BY_KEY, false},
    {EVENTS_HELD, HELD, false, BY_TOPIC, true},
    {EVENTS_HELD, ROUTED_HELD, true, BY_KEY, false},
    {EVENTS_NEW, READY " AND status = 0", true, "seq", false},
};
const size_t n_events_parts = ARRAY_LEN(events_parts);

void question_add(struct question *question, const char *sql)
{
    strbuf_add(&question->sql, sql);
}

void question_value(struct question *question, const char *value, const char *type)
{
    assert((size_t)question->n < ARRAY_LEN(question->values));
    question->values[question->n++] = value;
    strbuf_addf(&question->sql, "$%d::%s", question->n, type);
}

void question_int(struct question *question, int64_t value, const char *type)
{
    assert((size_t)question->n_numbers < ARRAY_LEN(question->numbers));
    char *text = question->numbers[question->n_numbers++];
    snprintf(text, sizeof question->numbers[0], "%lld", (long long)value);
    question_value(question, text, type);
}

enum result question_ask(struct question *question, struct pg *pg, struct rows **ret, struct error *err)
{
    return pg_ask(pg, question->sql.data, question->n, question->values, ANSWER_TIMEOUT_MS, ret, err);
}

void question_done(struct question *question)
{
    strbuf_done(&question->sql);
}

void filter_lanes(struct question *question, const struct events_filter *filter)
{
    if (filter->key == NULL) {
        question_add(question, "(SELECT l::smallint AS lane FROM generate_series(0, 15) l) l");
        return;
    }
    question_add(question, "(SELECT @.outbox_lane(");
    question_value(question, filter->key, "text");
    question_add(question, ") AS lane) l");
}

static void add_equal(struct question *question, const char *column, const char *value)
{
    if (value == NULL)
        return;
    question_add(question, " AND ");
    question_add(question, column);
    question_add(question, " = ");
    question_value(question, value, "text");
}

void filter_conditions(struct question *question, const struct events_filter *filter, bool lists)
{
    if (filter->topic != NULL && lists) { /* to take a list apart costs more than all the rest */
        question_add(question, " AND (e.routing_key IS NULL AND e.topic = ");
        question_value(question, filter->topic, "text");
        question_add(question, " OR e.routing_key IS NOT NULL AND ");
        question_value(question, filter->topic, "text");
        question_add(question, " = ANY (" TOPICS_OF("e") "))");
    } else {
        add_equal(question, "e.topic", filter->topic);
    }
    add_equal(question, KEY, filter->key);
    add_equal(question, "e.tenant_id", filter->tenant);
    add_equal(question, "e.id", filter->id);
    filter_since(question, filter);
}

void filter_since(struct question *question, const struct events_filter *filter)
{
    if (filter->since != NULL) {
        question_add(question, " AND e.created_at >= ");
        question_value(question, filter->since, "timestamptz");
    } else if (filter->since_ms > 0) {
        question_add(question, " AND e.created_at >= now() - interval '1 ms' * ");
        question_int(question, filter->since_ms, "bigint");
    }
}

bool filter_wants_refused(const struct events_part *part, const struct events_filter *filter)
{
    return filter->to_change && part->kind == EVENTS_FAILED && filter->id == NULL;
}

void filter_part(struct question *question, const struct events_part *part, const struct events_filter *filter)
{
    question_add(question, part->predicate);
    if (filter_wants_refused(part, filter))
        question_add(question, REFUSED);
    filter_conditions(question, filter, part->lists);
}
