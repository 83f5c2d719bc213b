/* Settle: the last third of a batch's way. Waits for every report, at most until the deadline, and gives each event its
 * verdict. What was not acknowledged is never SENT; what nobody is to blame for is LEFT and may be sent again. */
#include "clock.h"
#include "publisher_state.h"
#include "seam.h"
#include "verdicts.h"

#define SLICE_MS    25   /* between two looks at the watch, the deadline and the outage */
#define INFLIGHT_MS 1500 /* a fatal error: what is in flight may still be acknowledged */
#define PURGE_MS    1000 /* purged messages come back at once; librdkafka's threads need a turn */
#define QUESTION_MS 1500 /* after the deadline: does the cluster answer? */
#define DOUBT_MS    1000 /* under way: is it an outage? */
#define PROBE_MS    2000 /* that a probe gets when all else has reported: nobody waits longer for a parked topic */

_Static_assert(DOUBT_MS + QUESTION_MS + INFLIGHT_MS + PURGE_MS <= PUBLISHER_GIVE_UP_MS, "settle ends in time");
_Static_assert(DOUBT_MS + PURGE_MS <= PUBLISHER_BURY_MS, "a burial ends in time");

static bool is_probe(const struct message *message)
{
    return message->event->probe && !message->copy;
}

static bool only_probes_are_out(const struct publisher *publisher)
{
    for (size_t i = publisher->first; i < publisher->n; i++)
        if (publisher->messages[i].state == MESSAGE_OUT && !is_probe(&publisher->messages[i]))
            return false;
    return true;
}

/* Ends the linger, and waits for the reports. librdkafka wakes us at the last one. */
static enum wait_end wait_round(struct publisher *publisher, struct handle *handle, int64_t deadline,
                                const struct publisher_watch *watch)
{
    bool hurry = false;

    handle_flush(handle, SLICE_MS); /* they get a chance, however late it is */
    while (handle->out) {
        if (!hurry && only_probes_are_out(publisher)) {
            hurry = true;
            if (clock_left_ms(deadline) > PROBE_MS)
                deadline = clock_ms() + PROBE_MS;
        }
        int left = clock_left_ms(deadline);
        if (handle->fatal)
            return WAIT_FATAL;
        if (outage_is_sure(&publisher->outage) && !publisher_ask_back(publisher, DOUBT_MS))
            return WAIT_AWAY;
        if (left == 0)
            return WAIT_DEADLINE;
        if (publisher_watch_fired(watch))
            return WAIT_GONE;
        handle_flush(handle, left < SLICE_MS ? left : SLICE_MS);
    }
    return handle_is_used_up(handle) ? WAIT_FATAL : WAIT_DONE;
}

static void collect(struct handle *handle, int timeout_ms)
{
    int64_t until = clock_ms() + timeout_ms;

    handle_serve(handle, 0);
    while (handle->out && clock_left_ms(until) > 0)
        handle_serve(handle, SLICE_MS);
}

/* No report in time: is it the topics or the world? The answer also tells what is wrong with a topic. */
static void question_cluster(struct publisher *publisher, struct handle *handle)
{
    int64_t until = clock_ms() + QUESTION_MS;

    for (size_t i = 0; i < publisher->n; i++) {
        struct topic *topic = publisher->messages[i].topic;
        if (publisher->messages[i].state != MESSAGE_OUT || topic->away_in == publisher->batch ||
            topic->questioned_in == publisher->batch)
            continue;
        topic->questioned_in = publisher->batch;
        topic->known = false;
        if (topic_ask(topic, handle, publisher->batch, until) == TOPIC_WORLD)
            return;
        publisher->answers = true;
    }
}

static bool has_acked(const struct publisher *publisher)
{
    for (size_t i = 0; i < publisher->n; i++)
        if (publisher->messages[i].state == MESSAGE_ACKED)
            return true;
    return false;
}

static void note_fatal(struct publisher *publisher, const struct handle *handle)
{
    bool world = ruling_of(handle->fatal)->fault == FAULT_WORLD;

    if (!world && has_acked(publisher))
        return;
    publisher->not_before = clock_ms() + backoff_next(&publisher->fatal_pause);
    if (world)
        publisher_blame_world(publisher, "%s (%s)", ruling_text(handle->fatal), handle->fatal_text);
    else
        publisher_blame_world(publisher, "the Kafka producer failed: %s", handle->fatal_text);
}

/* Copies for the dead topic are under way: nobody asks whose fault it is when one fails. */
static bool is_burial(const struct publisher *publisher)
{
    return publisher->n > 0 && publisher->messages[0].copy;
}

/* After a wait that did not go well: gets back what is out, notes whose fault it was, drops the handle. */
static void give_up(struct publisher *publisher, struct handle *handle, enum wait_end end)
{
    if (end == WAIT_DEADLINE && !is_burial(publisher))
        question_cluster(publisher, handle);
    if (handle->out && handle->fatal && !is_burial(publisher)) {
        handle_purge(handle, false);
        collect(handle, INFLIGHT_MS);
    }
    if (handle->out) {
        handle_purge(handle, true);
        collect(handle, PURGE_MS);
    }
    if (end == WAIT_FATAL)
        note_fatal(publisher, handle);
    if (end == WAIT_AWAY)
        publisher_blame_outage(publisher);
    publisher_drop(publisher);
    for (size_t i = 0; i < publisher->n; i++) {
        struct message *message = &publisher->messages[i];
        if (message->state == MESSAGE_OUT) { /* the handle is gone, its report never comes */
            message->state = MESSAGE_BACK;
            message->error = RD_KAFKA_RESP_ERR__PURGE_INFLIGHT;
        }
        if (end == WAIT_DEADLINE && message->state == MESSAGE_BACK && ruling_of(message->error)->fault == FAULT_NOBODY)
            message->state = MESSAGE_LATE;
    }
}

enum wait_end publisher_run_rounds(struct publisher *publisher, int64_t deadline, const struct publisher_watch *watch)
{
    enum wait_end end = WAIT_DONE;

    while (publisher->handle) {
        end = wait_round(publisher, publisher->handle, deadline, watch);
        if (end != WAIT_DONE)
            give_up(publisher, publisher->handle, end);
        round_judge(publisher, publisher->handle, deadline);
        if (end != WAIT_DONE || publisher->world || !rounds_are_left(publisher))
            return end;
        if (clock_left_ms(deadline) == 0)
            return WAIT_DEADLINE;
        if (publisher_watch_fired(watch))
            return WAIT_GONE;
        seam("half-published"); /* what this round brought is acknowledged, the next one is not handed over */
        round_hand_over(publisher, deadline);
    }
    return end;
}

static void park(struct message *message, const char *why)
{
    if (message->event->verdict < VERDICT_PARK)
        message->event->blame = message->name;
    event_judge(message->event, VERDICT_PARK, "topic %s: %s", message->name, why);
}

/* `other` tells whether another topic of the batch was acknowledged. */
static void judge_late(struct publisher *publisher, struct message *message, bool other)
{
    if (publisher->answers || other) {
        park(message,
             message->topic->away_in == publisher->batch ? message->topic->reason : "no acknowledgement in time");
        return;
    }
    event_judge(message->event, VERDICT_LEFT, NULL);
    publisher_blame_world(publisher, "no acknowledgement in time, and no broker answers: %s",
                          outage_text(&publisher->outage));
}

static void judge_message(struct publisher *publisher, struct message *message, bool other)
{
    const struct topic *topic = message->topic;
    enum verdict verdict = ruling_verdict(message->state, message->error);

    if (message->state == MESSAGE_LATE)
        judge_late(publisher, message, other);
    else if (verdict == VERDICT_PARK)
        park(message, topic->away_in == publisher->batch ? topic->reason : ruling_text(message->error));
    else if (verdict == VERDICT_REFUSED)
        event_judge(message->event, verdict, "topic %s: %s", message->name, ruling_text(message->error));
    else
        event_judge(message->event, verdict, NULL);
}

/* The worst verdict of its topics is the event's: SENT only when all have acknowledged. */
static void judge(struct publisher *publisher, struct batch *batch)
{
    const struct topic *acked = NULL;
    bool two = false;

    for (size_t i = 0; i < publisher->n; i++)
        if (publisher->messages[i].state == MESSAGE_ACKED) {
            two |= acked && acked != publisher->messages[i].topic;
            acked = publisher->messages[i].topic;
        }
    for (size_t i = 0; i < publisher->n; i++)
        judge_message(publisher, &publisher->messages[i], two || (acked && acked != publisher->messages[i].topic));
    for (size_t i = 0; i < batch->n; i++)
        if (batch->events[i].verdict == VERDICT_NONE)
            event_judge(&batch->events[i], VERDICT_LEFT, NULL); /* not handed over */
    if (acked)
        backoff_reset(&publisher->fatal_pause);
}

enum settled publisher_settle(struct publisher *publisher, struct batch *batch, int64_t deadline,
                              const struct publisher_watch *watch, struct error *err)
{
    enum wait_end end = publisher_run_rounds(publisher, deadline, watch);

    if (end == WAIT_GONE) {
        error_retry(err, "the batch is no longer ours");
        return SETTLED_GONE;
    }
    judge(publisher, batch);
    if (!publisher->world)
        return SETTLED;
    error_retry(err, "%s", publisher->world_reason);
    return SETTLED_WORLD;
}
