/* Rounds: what keeps the order when a record is refused.
 *
 * The broker takes or refuses a record batch as a whole, and librdkafka publishes what stands behind a refused one. So
 * nothing may stand behind: a round hands over at most one record batch a partition (the handle lingers until we flush),
 * and the next round begins when every report of this one is there. A refused record batch is tried again in parts, in
 * order: in halves, or as large as the topic takes; only a message that was alone in its record batch was refused for its
 * own fault. It blocks its stream then; the rest of the partition goes on. Most batches are one round.
 *
 * Neither the idempotent producer nor its gapless mode with one request in flight gives this: the request behind a
 * refused one may already be built, is sent all the same, and a broker that has no record of this producer id in the
 * partition yet takes it (Kafka 4.1, librdkafka 2.0.2, new handle, first record refused: 20 of 40 times).
 *
 * Order: a round takes the messages of a partition in the order of the batch, and when one does not fit it takes no later
 * one of that partition. Rows that were refused before, and probes, go alone. */
#include "clock.h"
#include "publisher_state.h"
#include "verdicts.h"

#define RECORD_OVERHEAD 36  /* of a record in a batch, at most */
#define HEADER_OVERHEAD 8   /* two lengths */
#define BATCH_OVERHEAD  512 /* of the request around the records, with the topic's name */

static bool is_pending(const struct message *message)
{
    return message->state == MESSAGE_WAITS || message->state == MESSAGE_SUSPECT;
}

bool rounds_are_left(struct publisher *publisher)
{
    while (publisher->first < publisher->n && !is_pending(&publisher->messages[publisher->first]))
        publisher->first++;
    return publisher->first < publisher->n;
}

static void block(struct publisher *publisher, const struct message *message)
{
    if (publisher->ordered && !publisher_is_passable(publisher, message->event))
        streams_add(&publisher->blocked, message->name, message->event->key);
}

/* Bytes of the record on the wire, rather more than less. */
static size_t record_bytes(const struct message *message, const struct header_list *headers)
{
    size_t bytes = RECORD_OVERHEAD + message->event->key.len + event_value(message->event).len;

    for (size_t i = 0; i < headers->n; i++)
        bytes += headers->items[i].name_len + headers->items[i].value_len + HEADER_OVERHEAD;
    return bytes;
}

/* The share of the message's partition in this round. */
static struct share *open_share(const struct publisher *publisher, const struct message *message)
{
    struct share *share = topic_share(message->topic, message->partition);

    if (share->batch != publisher->batch)
        *share = (struct share){.batch = publisher->batch};
    if (share->round != publisher->round) {
        share->round = publisher->round;
        share->n = share->bytes = 0;
        share->full = share->refused = false;
    }
    return share;
}

static bool goes_alone(const struct message *message)
{
    return !message->copy && (message->event->retry_count > 0 || message->event->probe);
}

/* Would the record batch of this share still be one with the message in it, and one that the topic takes? */
static bool has_room(const struct share *share, const struct message *message, size_t bytes, size_t batch_bytes)
{
    size_t limit = message->topic->limit < batch_bytes ? message->topic->limit : batch_bytes;

    if (share->n == 0)
        return true;
    return !goes_alone(message) && share->bytes + bytes + BATCH_OVERHEAD <= limit &&
           (share->group_n == 0 || share->n < share->group_n);
}

/* It can never be sent: none of its topics gets it. A copy for the dead topic only stays away. */
static void kill_event(struct publisher *publisher, struct message *message, const char *why)
{
    struct message *end = publisher->messages + publisher->n, *m = message;

    message->state = MESSAGE_BEHIND;
    if (message->copy)
        return;
    event_judge(message->event, VERDICT_DEAD, "%s", why);
    while (m > publisher->messages && m[-1].event == message->event)
        m--;
    for (; m < end && m->event == message->event; m++) {
        if (is_pending(m))
            m->state = MESSAGE_BEHIND;
        if (m->state == MESSAGE_BEHIND)
            block(publisher, m);
    }
}

static void turn_back(struct publisher *publisher, struct message *message, int error)
{
    message->state = MESSAGE_BACK;
    message->error = error;
    if (ruling_of(error)->fault == FAULT_TOPIC && message->topic->away_in != publisher->batch)
        topic_failed(message->topic, publisher->batch, error);
    block(publisher, message);
}

/* False: librdkafka's queue is full, the round ends here. */
static bool hand_over(struct publisher *publisher, struct handle *handle, struct message *message)
{
    struct share *share = open_share(publisher, message);
    struct error err = {0};

    if (share->full)
        return true;
    if (publisher_build_headers(publisher, message, &err) != OK) {
        kill_event(publisher, message, err.message);
        return true;
    }
    size_t bytes = record_bytes(message, &publisher->headers);
    if (!has_room(share, message, bytes, handle->batch_bytes)) {
        share->full = true;
        return true;
    }
    int error = handle_produce(handle, message->topic->rkt, message, &publisher->headers);
    if (error == RD_KAFKA_RESP_ERR__QUEUE_FULL && handle->out)
        return false;
    if (error == RD_KAFKA_RESP_ERR__QUEUE_FULL) { /* and nothing is out: it alone is more than the queue holds */
        kill_event(publisher, message, "larger than the producer's queue (OUTBOX_KAFKA_QUEUE_BUFFERING_MAX_KBYTES)");
    } else if (error == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE) {
        kill_event(publisher, message, "larger than a message may be (OUTBOX_KAFKA_MESSAGE_MAX_BYTES)");
    } else if (error) {
        turn_back(publisher, message, error);
    } else {
        message->round = publisher->round;
        share->n++;
        share->bytes += bytes;
        share->full = goes_alone(message);
    }
    return true;
}

void round_hand_over(struct publisher *publisher, int64_t deadline)
{
    struct handle *handle = publisher_handle(publisher);

    publisher->round++;
    for (size_t i = publisher->first; handle && i < publisher->n && !publisher->world; i++) {
        struct message *message = &publisher->messages[i];
        if (!is_pending(message))
            continue;
        if (publisher->blocked.n && streams_has(&publisher->blocked, message->name, message->event->key)) {
            message->state = MESSAGE_BEHIND;
            continue;
        }
        switch (topic_ask(message->topic, handle, publisher->batch, deadline)) {
        case TOPIC_READY:
            if (!hand_over(publisher, handle, message) || handle_is_used_up(handle))
                return;
            break;
        case TOPIC_AWAY:
            turn_back(publisher, message, message->topic->away_error);
            break;
        case TOPIC_WORLD:
            if (!handle->fatal)
                publisher_blame_outage(publisher);
            return;
        }
    }
}

static void judge_refusal(struct publisher *publisher, struct handle *handle, struct message *message, int64_t deadline)
{
    struct share *share = topic_share(message->topic, message->partition);

    message->state = ruling_state(message->error, share->n == 1);
    if (message->state == MESSAGE_REFUSED) {
        share->group_n = 0; /* the culprit is found: what is left may be innocent */
        if (!message->copy)
            event_judge(message->event, VERDICT_REFUSED, "topic %s: %s", message->name, ruling_text(message->error));
        block(publisher, message);
        return;
    }
    if (share->refused)
        return;
    share->refused = true;
    if (ruling_is_size(message->error))
        topic_ask_limit(message->topic, handle, share->bytes, deadline);
    else
        share->group_n = share->n > 1 ? share->n / 2 : 1;
}

void round_judge(struct publisher *publisher, struct handle *handle, int64_t deadline)
{
    for (size_t i = publisher->first; i < publisher->n; i++) {
        struct message *message = &publisher->messages[i];
        if (message->round != publisher->round || message->state != MESSAGE_BACK)
            continue;
        switch (ruling_of(message->error)->fault) {
        case FAULT_EVENT:
            judge_refusal(publisher, handle, message, deadline);
            break;
        case FAULT_TOPIC:
            turn_back(publisher, message, message->error);
            break;
        case FAULT_WORLD:
            publisher_blame_world(publisher, "topic %s: %s", message->name, ruling_text(message->error));
            break;
        case FAULT_NONE:
        case FAULT_PRODUCER:
        case FAULT_NOBODY:
            block(publisher, message);
            break;
        }
    }
}
