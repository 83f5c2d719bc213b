#include "hand.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "str.h"

#define BUCKETS 4096 /* blocked streams are few, and bounded by what may wait */

void hand_init(struct hand *hand)
{
    *hand = (struct hand){.buckets = mem_alloc(BUCKETS * sizeof(struct stream *))};
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

/* --- streams --- */

static uint64_t hash_bytes(uint64_t hash, const char *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * 1099511628211ULL;
    return hash;
}

static uint64_t stream_hash(const struct arrival *arrival)
{
    uint64_t hash =
        hash_bytes(14695981039346656037ULL, arrival->partition->topic, strlen(arrival->partition->topic) + 1);
    return hash_bytes(hash, arrival->letter.key.data, arrival->letter.key.len);
}

struct stream *hand_blocked(const struct hand *hand, const struct arrival *arrival)
{
    const struct slice *key = &arrival->letter.key;
    if (key->data == NULL || hand->streams == NULL)
        return NULL;
    uint64_t hash = stream_hash(arrival);
    for (struct stream *stream = hand->buckets[hash % BUCKETS]; stream != NULL; stream = stream->in_bucket)
        if (stream->hash == hash && stream->key.len == key->len && memcmp(stream->key.data, key->data, key->len) == 0 &&
            str_eq(stream->topic, arrival->partition->topic))
            return stream;
    return NULL;
}

static void wait_in(struct hand *hand, struct stream *stream, struct arrival *arrival)
{
    arrival->stream = stream;
    arrival->partition->waiting++;
    hand->waiting++;
    hand->waiting_bytes += arrival->bytes;
}

static void wait_no_more(struct hand *hand, struct arrival *arrival)
{
    if (arrival->stream == NULL)
        return;
    arrival->stream = NULL;
    arrival->partition->waiting--;
    hand->waiting--;
    hand->waiting_bytes -= arrival->bytes;
}

static struct stream *stream_open(struct hand *hand, struct arrival *head)
{
    struct stream *stream = mem_alloc(sizeof *stream);
    *stream = (struct stream){.next = hand->streams, .topic = str_dup(head->partition->topic), .head = head};
    if (stream->next != NULL)
        stream->next->previous = stream;
    hand->streams = stream;
    if (head->letter.key.data != NULL) {
        stream->key = (struct slice){mem_dup(head->letter.key.data, head->letter.key.len), head->letter.key.len};
        stream->hash = stream_hash(head);
        stream->in_bucket = hand->buckets[stream->hash % BUCKETS];
        hand->buckets[stream->hash % BUCKETS] = stream;
    }
    wait_in(hand, stream, head);
    return stream;
}

static void stream_follow(struct hand *hand, struct stream *stream, struct arrival *arrival)
{
    arrival->next_follower = NULL;
    if (stream->last != NULL)
        stream->last->next_follower = arrival;
    else
        stream->first = arrival;
    stream->last = arrival;
    wait_in(hand, stream, arrival);
}

/* Its head is over: those behind it are ready, before everything else of the stream that came later. */
static void stream_close(struct hand *hand, struct stream *stream)
{
    if (stream->next != NULL)
        stream->next->previous = stream->previous;
    if (stream->previous != NULL)
        stream->previous->next = stream->next;
    else
        hand->streams = stream->next;
    if (stream->key.data != NULL) {
        struct stream **at;
        for (at = &hand->buckets[stream->hash % BUCKETS]; *at != stream;)
            at = &(*at)->in_bucket;
        *at = stream->in_bucket;
    }
    struct arrival *reversed = NULL;
    while (stream->first != NULL) {
        struct arrival *arrival = stream->first;
        stream->first = arrival->next_follower;
        arrival->next_follower = reversed;
        reversed = arrival;
    }
    while (reversed != NULL) {
        struct arrival *arrival = reversed;
        reversed = arrival->next_follower;
        arrival->next_follower = NULL;
        wait_no_more(hand, arrival);
        ready_prepend(hand, arrival);
    }
    free(stream->topic);
    free((char *)(uintptr_t)stream->key.data);
    free(stream);
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

static bool belongs(const struct arrival *arrival, const struct partition *partition, int64_t from)
{
    return arrival->partition == partition && arrival->letter.offset >= from;
}

static void leave_ready(struct hand *hand, const struct partition *partition, int64_t from)
{
    struct arrival *arrival = hand->ready_first;
    hand->ready_first = hand->ready_last = NULL;
    hand->ready = hand->ready_bytes = 0;
    while (arrival != NULL) {
        struct arrival *next = arrival->next_ready;
        if (!belongs(arrival, partition, from))
            ready_append(hand, arrival);
        arrival = next;
    }
}

static void leave_stream(struct hand *hand, struct stream *stream, const struct partition *partition, int64_t from)
{
    struct arrival *arrival = stream->first;
    stream->first = stream->last = NULL;
    while (arrival != NULL) {
        struct arrival *next = arrival->next_follower;
        wait_no_more(hand, arrival);
        if (!belongs(arrival, partition, from))
            stream_follow(hand, stream, arrival);
        arrival = next;
    }
    if (belongs(stream->head, partition, from)) {
        wait_no_more(hand, stream->head);
        stream_close(hand, stream);
    }
}

/* Drops what is in hand of a partition from an offset on. */
static void drop(struct hand *hand, struct partition *partition, int64_t from)
{
    leave_ready(hand, partition, from);
    for (struct stream *stream = hand->streams, *next; stream != NULL; stream = next) {
        next = stream->next;
        leave_stream(hand, stream, partition, from);
    }
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
        partition->held--;
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
    struct arrival *arrival = mem_alloc(sizeof *arrival);
    *arrival = (struct arrival){
        .letter = *letter, .partition = partition, .id = id, .bytes = letter->key.len + letter->value.len + 512};
    if (partition->last != NULL)
        partition->last->next_offset = arrival;
    else
        partition->first = arrival;
    partition->last = arrival;
    partition->held++;
    partition->next_offset = letter->offset + 1;
    if (partition->position < 0)
        partition->position = letter->offset;
    ready_append(hand, arrival);
    return true;
}

/* --- batches --- */

static bool has_room(size_t n, size_t max, size_t bytes, size_t more, size_t max_bytes)
{
    return n < max && (n == 0 || bytes + more <= max_bytes);
}

size_t hand_take(struct hand *hand, struct arrival **batch, size_t max, size_t max_bytes, int64_t now)
{
    size_t n = 0, bytes = 0;
    /* At most a quarter of the batch is tried again: each costs a round trip, and what is new should flow. */
    for (struct stream *stream = hand->streams; stream != NULL && n <= max / 4; stream = stream->next) {
        if (stream->due > now || !has_room(n, max, bytes, stream->head->bytes, max_bytes))
            continue;
        stream->trying = true;
        stream->head->in_batch = true;
        bytes += stream->head->bytes;
        batch[n++] = stream->head;
    }
    while (hand->ready_first != NULL && has_room(n, max, bytes, hand->ready_first->bytes, max_bytes)) {
        struct arrival *arrival = ready_pop(hand);
        struct stream *stream = hand_blocked(hand, arrival);
        if (stream != NULL) {
            stream_follow(hand, stream, arrival);
            continue;
        }
        arrival->in_batch = true;
        bytes += arrival->bytes;
        batch[n++] = arrival;
    }
    return n;
}

int64_t hand_next_due(const struct hand *hand)
{
    int64_t due = MS_FOREVER;
    for (const struct stream *stream = hand->streams; stream != NULL; stream = stream->next)
        if (!stream->trying && stream->due < due)
            due = stream->due;
    return due;
}

static void settle_one(struct hand *hand, struct arrival *arrival)
{
    struct stream *stream = arrival->stream;
    if (stream != NULL) {
        wait_no_more(hand, arrival);
        stream_close(hand, stream);
    }
    arrival->settled = true;
    consumer_release(&arrival->letter);
}

static void fail_one(struct hand *hand, struct arrival *arrival, int64_t due)
{
    arrival->attempts++;
    struct stream *stream = arrival->stream ? arrival->stream : stream_open(hand, arrival);
    stream->due = due;
    stream->trying = false;
}

static void retire(struct partition *partition)
{
    while (partition->first != NULL && partition->first->settled) {
        struct arrival *arrival = partition->first;
        partition->first = arrival->next_offset;
        if (partition->first == NULL)
            partition->last = NULL;
        partition->position = arrival->letter.offset + 1;
        partition->held--;
        arrival_free(arrival);
    }
}

static void close_book(struct arrival *arrival)
{
    arrival->in_batch = arrival->first_time = false;
    arrival->outcome = OUTCOME_NONE;
    free(TAKE(arrival->error));
}

size_t hand_again(struct hand *hand, struct arrival **batch, size_t n)
{
    size_t kept = 0;
    (void)hand;
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
    /* Backwards, so that what goes to the front of the ready queue stands there in order; first what goes back, then
     * the followers of what is over: they are older. */
    for (size_t i = n; i-- > 0;) {
        struct arrival *arrival = batch[i];
        if (arrival->dropped || arrival->outcome != OUTCOME_NONE)
            continue;
        close_book(arrival);
        if (arrival->stream != NULL)
            arrival->stream->trying = false;
        else
            ready_prepend(hand, arrival);
        batch[i] = NULL;
    }
    for (size_t i = 0; i < n; i++) {
        struct arrival *arrival = batch[i];
        if (arrival == NULL)
            continue;
        enum outcome outcome = arrival->outcome;
        if (arrival->dropped) {
            arrival_free(arrival);
            continue;
        }
        if (outcome == OUTCOME_FAILED)
            fail_one(hand, arrival, due(arg, arrival));
        else if (outcome == OUTCOME_HELD && hand_blocked(hand, arrival) != NULL)
            stream_follow(hand, hand_blocked(hand, arrival), arrival);
        else if (outcome == OUTCOME_HELD)
            ready_append(hand, arrival); /* what it waited for was dropped */
        else
            settle_one(hand, arrival);
        close_book(arrival);
    }
    for (struct partition *partition = hand->partitions; partition != NULL; partition = partition->next)
        retire(partition);
}
