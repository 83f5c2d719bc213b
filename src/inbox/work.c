#include "work.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "log.h"
#include "seam.h"

#define EACH_BUDGET_MS   3000  /* a transaction of WORK_EACH takes in no more events after this */
#define BURIAL_BUDGET_MS 3000  /* the same with copies to the dead topic, which everything else waits for */
#define BURIAL_REST_MS   10000 /* after a try that the dead topic did not answer well */
#define UNLUCKY_MAX      10    /* failures of one event in a row that look like nobody's fault; then they are its own */

void work_init(struct work *work, const struct config *config, struct metrics *metrics)
{
    *work = (struct work){.config = config, .metrics = metrics};
}

void work_done(struct work *work)
{
    struct strbuf *const bufs[] = {&work->ids,      &work->topics,  &work->keys,
                                   &work->payloads, &work->headers, &work->unmark};
    for (size_t i = 0; i < ARRAY_LEN(bufs); i++)
        strbuf_done(bufs[i]);
    rendering_done(&work->rendering);
    inbox_done(&work->inbox);
    burial_free(TAKE(work->burial));
    free(TAKE(work->sorted));
}

/* --- marks --- */

static int by_id(const void *a, const void *b)
{
    return strcmp((*(struct arrival *const *)a)->id, (*(struct arrival *const *)b)->id);
}

static int by_id_and_place(const void *a, const void *b)
{
    const struct arrival *x = *(struct arrival *const *)a, *y = *(struct arrival *const *)b;
    int order = strcmp(x->id, y->id);
    return order != 0 ? order : (x->place > y->place) - (x->place < y->place);
}

/* The ids of the batch, each once, sorted. When an id is there twice, the one that came first stands for it and the other is
 * a duplicate: the first holds back the offset of its partition until it is settled. */
static void sort_ids(struct work *work, struct arrival **batch, size_t n)
{
    if (work->cap < n) {
        work->sorted = mem_grow(work->sorted, n, sizeof *work->sorted);
        work->cap = n;
    }
    for (size_t i = 0; i < n; i++) {
        batch[i]->place = i;
        work->sorted[i] = batch[i];
    }
    qsort(work->sorted, n, sizeof *work->sorted, by_id_and_place);
    size_t kept = 0;
    pg_array_begin(&work->ids);
    for (size_t i = 0; i < n; i++) {
        struct arrival *arrival = work->sorted[i];
        if (kept > 0 && by_id(&work->sorted[kept - 1], &arrival) == 0)
            continue;
        work->sorted[kept++] = arrival;
        pg_array_text(&work->ids, arrival->id);
    }
    pg_array_end(&work->ids);
    work->n_sorted = kept;
}

static void note_first_times(struct work *work, struct arrival **batch, size_t n, const struct rows *rows)
{
    for (size_t i = 0; i < n; i++) {
        batch[i]->first_time = false;
        batch[i]->outcome = OUTCOME_DUPLICATE;
    }
    for (int i = 0; i < rows_n(rows); i++) {
        struct arrival wanted = {.id = (char *)(uintptr_t)rows_text(rows, i, 0)}, *key = &wanted;
        struct arrival **found = bsearch(&key, work->sorted, work->n_sorted, sizeof *work->sorted, by_id);
        if (found != NULL) {
            (*found)->first_time = true;
            (*found)->outcome = OUTCOME_NONE;
        }
    }
}

/* --- together --- */

static bool is_fresh(const struct arrival *arrival)
{
    return arrival->first_time && arrival->attempts == 0 && arrival->unlucky == 0 && !arrival->doomed;
}

static enum result handle_together(struct work *work, struct arrival **batch, size_t n, struct error *err)
{
    struct strbuf *const arrays[] = {&work->ids, &work->topics, &work->keys, &work->payloads, &work->headers};
    struct rendering *rendering = &work->rendering;
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++)
        pg_array_begin(arrays[i]);
    for (size_t i = 0; i < n; i++) {
        if (!is_fresh(batch[i]))
            continue;
        render(rendering, &batch[i]->letter);
        pg_array_text(&work->ids, batch[i]->id);
        pg_array_text(&work->topics, batch[i]->partition->topic);
        pg_array_text(&work->keys, rendering->key);
        pg_array_text(&work->payloads, rendering->payload);
        pg_array_text(&work->headers, rendering->headers);
        work->together++;
    }
    if (work->together == 0)
        return OK;
    for (size_t i = 0; i < ARRAY_LEN(arrays); i++)
        pg_array_end(arrays[i]);
    const struct inbox_calls calls = {work->ids.data, work->topics.data, work->keys.data, work->payloads.data,
                                      work->headers.data};
    int64_t start = clock_us();
    enum result result = inbox_all(&work->inbox, &calls, err);
    work->together_us = clock_us() - start;
    work->handler_us += work->together_us;
    for (size_t i = 0; i < n && result == OK; i++)
        if (is_fresh(batch[i]))
            batch[i]->outcome = OUTCOME_HANDLED;
    return result;
}

/* --- one by one --- */

/* The handler raised, and its work is undone: what does that say of the event? What looks like the trouble of the world or a
 * deadlock counts only when it has come again and again, and an attempt that would be the last one only when no other event was
 * in the transaction: what these leave behind there may be what it stumbles over. */
static void judge(struct work *work, struct arrival *arrival, bool alone, const struct error *err)
{
    unsigned attempts = arrival->attempts + 1, most = (unsigned)work->config->consumer_max_retries;
    enum inbox_blame blame = inbox_blame(err);
    free(arrival->error);
    arrival->error = inbox_tell(err);
    if (blame != BLAME_EVENT && arrival->unlucky < UNLUCKY_MAX) {
        arrival->outcome = OUTCOME_UNLUCKY;
        arrival->alone = blame == BLAME_NOBODY;
        if (blame == BLAME_WORLD)
            work->suspicion = *err;
        log_debug("event %s is set aside: %s", arrival->id, arrival->error);
        return;
    }
    if (attempts >= most && !alone) {
        arrival->outcome = OUTCOME_ALONE;
        arrival->alone = true;
        return;
    }
    log_topic(LOG_LEVEL_WARNING, arrival->partition->topic, "the handler failed with event %s, attempt %u: %s",
              arrival->id, attempts, arrival->error);
    arrival->doomed = attempts >= most;
    arrival->outcome = arrival->doomed ? OUTCOME_DEAD : OUTCOME_FAILED;
    arrival->alone = attempts + 1 >= most;
}

/* The connection went with this call. That is mostly the world's trouble; but should this event end every server process that
 * it meets, it must not stand in the way of the others: it steps aside, and in the end it has failed by itself. */
static void step_aside(struct work *work, struct arrival *arrival, const struct error *err)
{
    unsigned attempts = arrival->attempts + 1;
    work->aside = arrival;
    arrival->alone = true;
    arrival->outcome = OUTCOME_ASIDE;
    if (arrival->unlucky < UNLUCKY_MAX || arrival->doomed)
        return;
    free(arrival->error);
    arrival->error = str_format("the connection ended with the call: %s", err->message);
    arrival->doomed = attempts >= (unsigned)work->config->consumer_max_retries;
    arrival->outcome = arrival->doomed ? OUTCOME_ASIDE : OUTCOME_FAILED;
    log_topic(LOG_LEVEL_WARNING, arrival->partition->topic, "the handler failed with event %s, attempt %u: %s",
              arrival->id, attempts, arrival->error);
}

/* One event behind a savepoint. OK: it has its outcome. */
static enum result handle_one(struct work *work, struct arrival *arrival, bool alone, struct error *err)
{
    struct rendering *rendering = &work->rendering;
    if (arrival->doomed) {
        arrival->outcome = OUTCOME_DEAD;
        return OK;
    }
    render(rendering, &arrival->letter);
    const struct inbox_call call = {arrival->id, arrival->partition->topic, rendering->key, rendering->payload,
                                    rendering->headers};
    int64_t start = clock_us();
    enum result result = inbox_one(&work->inbox, &call, err);
    int64_t took = clock_us() - start;
    work->handler_us += took;
    work->slowest_us = took > work->slowest_us ? took : work->slowest_us;
    work->each++;
    if (result == OK)
        arrival->outcome = OUTCOME_HANDLED;
    else if (result == RETRY)
        step_aside(work, arrival, err);
    if (result != REJECT)
        return result;
    struct error why = {0};
    if (inbox_handler_is_gone(&work->inbox, work->config, err, &why)) {
        *err = why; /* without SQLSTATE: no event's fault, and the connection starts anew */
        return RETRY;
    }
    judge(work, arrival, alone, err);
    return OK;
}

static bool same_stream(const struct arrival *a, const struct arrival *b)
{
    const struct slice *x = &a->letter.key, *y = &b->letter.key;
    return x->data != NULL && y->data != NULL && x->len == y->len && memcmp(x->data, y->data, x->len) == 0 &&
           str_eq(a->partition->topic, b->partition->topic);
}

static bool is_behind(const struct arrival *arrival, struct arrival **batch, size_t before)
{
    for (size_t i = 0; i < before; i++)
        if (outcome_is_failure(batch[i]->outcome) && same_stream(batch[i], arrival))
            return true;
    return false;
}

/* In WORK_TOGETHER only those that were tried before. Their deferred constraints are tested with them, so they come before
 * the statement for all the others. */
static enum result handle_each(struct work *work, struct arrival **batch, size_t n, enum work_mode mode,
                               struct error *err)
{
    int64_t deadline = clock_ms() + EACH_BUDGET_MS;
    size_t failed = 0;
    for (size_t i = 0; i < n; i++) {
        struct arrival *arrival = batch[i];
        if (!arrival->first_time || (mode == WORK_TOGETHER && is_fresh(arrival)))
            continue;
        if (i > 0 && (clock_left_ms(deadline) == 0 || work->stopping(work->arg)))
            break;
        if (failed > 0 && is_behind(arrival, batch, i)) {
            arrival->outcome = OUTCOME_HELD;
            continue;
        }
        enum result result = handle_one(work, arrival, n == 1, err);
        if (result != OK)
            return result;
        failed += outcome_is_failure(arrival->outcome);
    }
    return OK;
}

/* When nothing could be handled beside what looked like the world's trouble, it is the world's. */
static enum result check_suspicion(const struct work *work, struct arrival **batch, size_t n, struct error *err)
{
    if (work->suspicion.sqlstate[0] == '\0')
        return OK;
    for (size_t i = 0; i < n; i++)
        if (batch[i]->outcome == OUTCOME_HANDLED)
            return OK;
    *err = work->suspicion;
    return RETRY;
}

/* --- the dead --- */

static enum result bury(struct work *work, struct arrival *arrival, struct error *err)
{
    struct rendering *rendering = &work->rendering;
    render(rendering, &arrival->letter);
    const struct inbox_call call = {arrival->id, arrival->partition->topic, rendering->key, rendering->payload,
                                    rendering->headers};
    return inbox_bury(&work->inbox, &call, arrival->partition->number, arrival->letter.offset, arrival->error,
                      arrival->attempts + 1, err);
}

/* REJECT: the dead topic will never take it. */
static enum result send_to_topic(struct work *work, struct arrival *arrival)
{
    struct error why = {0};
    enum result result = work->burial ? OK : burial_new(work->config, &work->burial, &why);
    if (result == OK)
        result = burial_send(work->burial, &arrival->letter, arrival->id, arrival->error, arrival->attempts + 1, &why);
    if (result == OK)
        return OK;
    burial_free(TAKE(work->burial));
    if (result == RETRY)
        work->rest_until = clock_ms() + BURIAL_REST_MS;
    log_topic(LOG_LEVEL_WARNING, work->config->consumer_dead_topic, "event %s%s: %s", arrival->id,
              result == REJECT ? " is in inbox_dead instead" : "", why.message);
    return result;
}

/* Last in the transaction: a copy in a topic is not taken back with it. */
static enum result bury_all(struct work *work, struct arrival **batch, size_t n, struct error *err)
{
    int64_t start = clock_ms();
    enum result sent = start < work->rest_until ? RETRY : OK;
    for (size_t i = 0; i < n; i++) {
        struct arrival *arrival = batch[i];
        if (arrival->outcome != OUTCOME_DEAD)
            continue;
        if (work->config->consumer_dead_topic != NULL) {
            if (sent != RETRY && clock_ms() - start >= BURIAL_BUDGET_MS) {
                arrival->outcome = OUTCOME_NONE; /* with the next batch */
                continue;
            }
            if (sent != RETRY)
                sent = send_to_topic(work, arrival);
            if (sent == OK)
                continue;
            if (sent == RETRY) {
                /* It stays in hand and is sent later: nothing is settled that is nowhere. */
                arrival->outcome = OUTCOME_UNLUCKY;
                arrival->alone = false;
                continue;
            }
            metrics_add(work->metrics, M_DEAD_COPIES_LOST, 1);
        }
        enum result result = bury(work, arrival, err);
        if (result != OK)
            return result;
    }
    return OK;
}

/* --- a batch --- */

static bool keeps_mark(const struct arrival *arrival)
{
    return arrival->outcome == OUTCOME_HANDLED || arrival->outcome == OUTCOME_DEAD;
}

static enum result finish(struct work *work, struct arrival **batch, size_t n, struct error *err)
{
    size_t unmarked = 0;
    pg_array_begin(&work->unmark);
    for (size_t i = 0; i < n; i++)
        if (batch[i]->first_time && !keeps_mark(batch[i])) {
            pg_array_text(&work->unmark, batch[i]->id);
            unmarked++;
        }
    pg_array_end(&work->unmark);
    seam("handled");
    return inbox_finish(&work->inbox, unmarked > 0 ? work->unmark.data : NULL, err);
}

static enum worked give_up(struct work *work, enum work_mode mode, bool handling, struct error *err)
{
    struct error ignored = {0};
    enum inbox_blame blame = inbox_blame(err);
    work->lost = handling && err->sqlstate[0] == '\0';
    if (err->sqlstate[0] != '\0' && inbox_rollback(&work->inbox, &ignored) != OK) {
        err->sqlstate[0] = '\0';
        return WORKED_WORLD;
    }
    if (blame == BLAME_NOBODY)
        return WORKED_AGAIN;
    if (blame == BLAME_EVENT && handling && mode == WORK_TOGETHER)
        return WORKED_APART;
    return WORKED_WORLD;
}

enum worked work_on(struct work *work, struct arrival **batch, size_t n, enum work_mode mode, struct error *err)
{
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    error_clear(err);
    error_clear(&work->suspicion);
    work->handler_us = work->together_us = work->slowest_us = 0;
    work->together = work->each = 0;
    work->aside = NULL;
    sort_ids(work, batch, n);
    enum result result = inbox_begin(&work->inbox, work->ids.data, &rows, err);
    if (result != OK)
        return give_up(work, mode, false, err);
    seam("accepted");
    note_first_times(work, batch, n, rows);
    result = handle_each(work, batch, n, mode, err);
    if (result == OK && mode == WORK_TOGETHER)
        result = handle_together(work, batch, n, err);
    if (result == OK)
        result = check_suspicion(work, batch, n, err);
    if (result == OK)
        result = bury_all(work, batch, n, err);
    if (result == OK)
        result = finish(work, batch, n, err);
    return result == OK ? WORKED : give_up(work, mode, true, err);
}
