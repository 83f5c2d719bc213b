#include "hand.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "str.h"
#include "stream.h"

void hand_init(struct hand *hand)
{
    *hand = (struct hand){.buckets = mem_alloc(STREAM_BUCKETS * sizeof(struct stream *))};
}

/* --- arrivals --- */

static void arrival_free(struct arrival *arrival)
{
    consumer_release(&arrival->letter);
    free(arrival->id);
    free(arrival->error);
    free(arrival);
}

static void ready_append(struct hand *hand, struct arrival *arrival)
{
    arrival->next_ready = NULL;
    if (hand->ready_last != NULL)
        hand->ready_last->next_ready = arrival;
    else
        hand->ready_first = arrival;
    hand->ready_last = arrival;
    hand->ready++;
    hand->ready_bytes += arrival->bytes;
}

static void ready_prepend(struct hand *hand, struct arrival *arrival)
{
    arrival->next_ready = hand->ready_first;
    hand->ready_first = arrival;
    if (hand->ready_last == NULL)
        hand->ready_last = arrival;
    hand->ready++;
    hand->ready_bytes += arrival->bytes;
}

static struct arrival *ready_pop(struct hand *hand)
{
    struct arrival *arrival = hand->ready_first;
    hand->ready_first = arrival->next_ready;
    if (hand->ready_first == NULL)
        hand->ready_last = NULL;
    arrival->next_ready = NULL;
    hand->ready--;
    hand->ready_bytes -= arrival->bytes;
    return arrival;
}

/* --- partitions --- */

struct partition *hand_partition(struct hand *hand, const char *topic, int number)
{
    for (struct partition *p = hand->partitions; p != NULL; p = p->next)
        if (p->number == number && str_eq(p->topic, topic))
            return p;
    struct partition *partition = mem_alloc(sizeof *partition);
    *partition = (struct partition){.next = hand->partitions, .topic = str_dup(topic), .number = number};
    hand->partitions = partition;
    return partition;
}

void hand_assign(struct hand *hand, struct partition *partition)
{
    hand_revoke(hand, partition);
    partition->assigned = true;
    partition->paused = false;
    partition->next_offset = partition->position = partition->committed = -1;
}

static void leave_ready(struct hand *hand, const struct partition *partition, int64_t from)
{
    struct arrival *arrival = hand->ready_first;
    hand->ready_first = hand->ready_last = NULL;
    hand->ready = hand->ready_bytes = 0;
    while (arrival != NULL) {
        struct arrival *next = arrival->next_ready;
        if (!arrival_is_of(arrival, partition, from))
            ready_append(hand, arrival);
        arrival = next;
    }
}

/* Drops what is in hand of a partition from an offset on. */
static void drop(struct hand *hand, struct partition *partition, int64_t from)
{
    leave_ready(hand, partition, from);
    streams_drop(hand, partition, from);
    struct arrival **at = &partition->first;
    partition->last = NULL;
    while (*at != NULL && (*at)->letter.offset < from) {
        partition->last = *at;
        at = &(*at)->next_offset;
    }
    struct arrival *arrival = *at;
    *at = NULL;
    while (arrival != NULL) {
        struct arrival *next = arrival->next_offset;
        hand->settled -= arrival->settled;
        stream_leave(hand, arrival);
        if (arrival->in_batch)
            arrival->dropped = true; /* freed with the batch */
        else
            arrival_free(arrival);
        arrival = next;
    }
}

void hand_revoke(struct hand *hand, struct partition *partition)
{
    drop(hand, partition, 0);
    partition->assigned = false;
}

void hand_done(struct hand *hand)
{
    while (hand->partitions != NULL) {
        struct partition *partition = hand->partitions;
        hand->partitions = partition->next;
        drop(hand, partition, 0);
        free(partition->topic);
        free(partition);
    }
    free(hand->buckets);
    *hand = (struct hand){0};
}

bool hand_admit(struct hand *hand, struct letter *letter, char *id)
{
    struct partition *partition = hand_partition(hand, letter->topic, letter->partition);
    if (!partition->assigned) {
        consumer_release(letter);
        free(id);
        return false;
    }
    if (partition->next_offset >= 0 && letter->offset < partition->next_offset)
        drop(hand, partition, letter->offset);
    letter->topic = partition->topic;
    struct arrival *arrival = mem_alloc(sizeof *arrival);
    *arrival = (struct arrival){.letter = *letter, .partition = partition, .id = id, .bytes = letter->size + 512};
    if (partition->last != NULL)
        partition->last->next_offset = arrival;
    else
        partition->first = arrival;
    partition->last = arrival;
    partition->next_offset = letter->offset + 1;
    if (partition->first == arrival) /* offsets go back, too: when the topic was made again */
        partition->position = letter->offset;
    ready_append(hand, arrival);
    return true;
}

/* --- batches --- */

struct taken {
    struct arrival **arrivals;
    size_t n, max, bytes, max_bytes;
};

static bool taken_add(struct taken *taken, struct arrival *arrival)
{
    if (taken->n == taken->max || (taken->n > 0 && taken->bytes + arrival->bytes > taken->max_bytes))
        return false;
    arrival->in_batch = true;
    taken->bytes += arrival->bytes;
    taken->arrivals[taken->n++] = arrival;
    return true;
}

static bool is_due(const struct stream *stream, int64_t now)
{
    return stream->head != NULL && !stream->head->in_batch && stream->due <= now;
}

static void take_alone(struct hand *hand, struct taken *taken, int64_t now)
{
    for (size_t left = hand->n_streams; left > 0 && taken->n == 0; left--) {
        struct stream *stream = streams_rotate(hand);
        if (is_due(stream, now) && stream->head->alone)
            taken_add(taken, stream->head);
    }
}

/* Heads that are due, at most a quarter of the batch: each costs a round trip. And followers whose head is over. */
static void take_waiting(struct hand *hand, struct taken *taken, size_t most, int64_t now)
{
    size_t heads = 0;
    for (size_t left = hand->n_streams; left > 0 && taken->n < most; left--) {
        struct stream *stream = streams_rotate(hand);
        if (is_due(stream, now) && !stream->head->alone && heads <= taken->max / 4)
            heads += taken_add(taken, stream->head);
        while (stream->head == NULL && stream->first != NULL && taken->n < most && taken_add(taken, stream->first))
            stream_pop(stream);
    }
}

static void take_ready(struct hand *hand, struct taken *taken)
{
    while (hand->ready_first != NULL) {
        struct arrival *arrival = hand->ready_first;
        struct stream *stream = stream_find(hand, arrival);
        if (stream == NULL && !taken_add(taken, arrival))
            return;
        ready_pop(hand);
        if (stream != NULL)
            stream_append(hand, stream, arrival);
    }
}

size_t hand_take(struct hand *hand, struct arrival **batch, size_t max, size_t max_bytes, int64_t now)
{
    struct taken taken = {.arrivals = batch, .max = max, .max_bytes = max_bytes};
    hand->turn = !hand->turn;
    if (hand->turn)
        take_alone(hand, &taken, now);
    if (taken.n > 0)
        return taken.n;
    take_waiting(hand, &taken, hand->turn ? (max + 1) / 2 : max / 2, now);
    take_ready(hand, &taken);
    take_waiting(hand, &taken, max, now);
    if (taken.n == 0)
        take_alone(hand, &taken, now);
    return taken.n;
}

int64_t hand_next_due(const struct hand *hand)
{
    int64_t due = MS_FOREVER;
    for (const struct stream *stream = hand->streams; stream != NULL; stream = stream->next)
        if (stream->head != NULL && !stream->head->in_batch && stream->due < due)
            due = stream->due;
    return due;
}

static void close_book(struct arrival *arrival)
{
    arrival->in_batch = arrival->first_time = false;
    arrival->outcome = OUTCOME_NONE;
    if (!arrival->doomed)
        free(TAKE(arrival->error));
}

static void settle_one(struct hand *hand, struct arrival *arrival)
{
    stream_leave(hand, arrival);
    arrival->settled = true;
    hand->settled++;
    consumer_release(&arrival->letter);
}

/* It heads its stream until it is over. */
static void fail_one(struct hand *hand, struct arrival *arrival, int64_t due)
{
    arrival->attempts += arrival->outcome == OUTCOME_FAILED;
    arrival->unlucky += arrival->outcome == OUTCOME_UNLUCKY || arrival->outcome == OUTCOME_ASIDE;
    struct stream *stream = arrival->stream ? arrival->stream : stream_open(hand, arrival);
    stream->head = arrival;
    stream->due = due;
}

static void retire(struct hand *hand, struct partition *partition)
{
    while (partition->first != NULL && partition->first->settled) {
        struct arrival *arrival = partition->first;
        partition->first = arrival->next_offset;
        if (partition->first == NULL)
            partition->last = NULL;
        partition->position = arrival->letter.offset + 1;
        hand->settled--;
        arrival_free(arrival);
    }
}

/* Back to where it came from: into its stream, or what has become that meanwhile. */
static void put_back(struct hand *hand, struct arrival *arrival)
{
    struct stream *stream = arrival->stream ? arrival->stream : stream_find(hand, arrival);
    if (stream == NULL)
        ready_prepend(hand, arrival);
    else if (stream->head != arrival)
        stream_prepend(hand, stream, arrival);
}

size_t hand_again(struct arrival **batch, size_t n)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        struct arrival *arrival = batch[i];
        close_book(arrival);
        if (arrival->dropped) {
            arrival_free(arrival);
        } else {
            arrival->in_batch = true;
            batch[kept++] = arrival;
        }
    }
    return kept;
}

void hand_settle(struct hand *hand, struct arrival **batch, size_t n, int64_t (*due)(void *arg, const struct arrival *),
                 void *arg)
{
    /* First what is over and what failed. Then, backwards so that all stands in order again, what goes back. */
    for (size_t i = 0; i < n; i++) {
        struct arrival *arrival = batch[i];
        if (!arrival->dropped && (arrival->outcome == OUTCOME_NONE || arrival->outcome == OUTCOME_HELD))
            continue;
        batch[i] = NULL;
        if (arrival->dropped) {
            arrival_free(arrival);
            continue;
        }
        if (outcome_is_final(arrival->outcome))
            settle_one(hand, arrival);
        else
            fail_one(hand, arrival, due(arg, arrival));
        close_book(arrival);
    }
    for (size_t i = n; i-- > 0;)
        if (batch[i] != NULL) {
            close_book(batch[i]);
            put_back(hand, batch[i]);
        }
    for (struct partition *partition = hand->partitions; partition != NULL; partition = partition->next)
        retire(hand, partition);
}
