#include "stream.h"

#include <stdlib.h>
#include <string.h>

#include "str.h"

/* --- finding --- */

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

struct stream *stream_find(const struct hand *hand, const struct arrival *arrival)
{
    const struct slice *key = &arrival->letter.key;
    if (key->data == NULL || hand->streams == NULL)
        return NULL;
    uint64_t hash = stream_hash(arrival);
    for (struct stream *stream = hand->buckets[hash % STREAM_BUCKETS]; stream != NULL; stream = stream->in_bucket)
        if (stream->hash == hash && stream->key.len == key->len && memcmp(stream->key.data, key->data, key->len) == 0 &&
            str_eq(stream->topic, arrival->partition->topic))
            return stream;
    return NULL;
}

/* --- the list --- */

static void link_last(struct hand *hand, struct stream *stream)
{
    stream->next = NULL;
    stream->previous = hand->last_stream;
    if (hand->last_stream != NULL)
        hand->last_stream->next = stream;
    else
        hand->streams = stream;
    hand->last_stream = stream;
    hand->n_streams++;
}

static void unlink_stream(struct hand *hand, struct stream *stream)
{
    if (stream->next != NULL)
        stream->next->previous = stream->previous;
    else
        hand->last_stream = stream->previous;
    if (stream->previous != NULL)
        stream->previous->next = stream->next;
    else
        hand->streams = stream->next;
    hand->n_streams--;
}

struct stream *streams_rotate(struct hand *hand)
{
    struct stream *stream = hand->streams;
    unlink_stream(hand, stream);
    link_last(hand, stream);
    return stream;
}

/* --- members --- */

static void join(struct hand *hand, struct stream *stream, struct arrival *arrival)
{
    if (arrival->stream != NULL)
        return;
    arrival->stream = stream;
    stream->members++;
    arrival->partition->waiting++;
    hand->waiting++;
    hand->waiting_bytes += arrival->bytes;
    consumer_keep(&arrival->letter);
}

static void stream_free(struct hand *hand, struct stream *stream)
{
    unlink_stream(hand, stream);
    if (stream->key.data != NULL) {
        struct stream **at;
        for (at = &hand->buckets[stream->hash % STREAM_BUCKETS]; *at != stream;)
            at = &(*at)->in_bucket;
        *at = stream->in_bucket;
    }
    free(stream->topic);
    free((char *)(uintptr_t)stream->key.data);
    free(stream);
}

struct stream *stream_open(struct hand *hand, struct arrival *head)
{
    const struct slice *key = &head->letter.key;
    struct stream *stream = mem_alloc(sizeof *stream);
    *stream = (struct stream){.topic = str_dup(head->partition->topic), .head = head};
    link_last(hand, stream);
    if (key->data != NULL) {
        stream->key = (struct slice){mem_dup(key->data, key->len), key->len};
        stream->hash = stream_hash(head);
        stream->in_bucket = hand->buckets[stream->hash % STREAM_BUCKETS];
        hand->buckets[stream->hash % STREAM_BUCKETS] = stream;
    }
    join(hand, stream, head);
    return stream;
}

void stream_append(struct hand *hand, struct stream *stream, struct arrival *arrival)
{
    arrival->next_follower = NULL;
    if (stream->last != NULL)
        stream->last->next_follower = arrival;
    else
        stream->first = arrival;
    stream->last = arrival;
    join(hand, stream, arrival);
}

void stream_prepend(struct hand *hand, struct stream *stream, struct arrival *arrival)
{
    arrival->next_follower = stream->first;
    stream->first = arrival;
    if (stream->last == NULL)
        stream->last = arrival;
    join(hand, stream, arrival);
}

void stream_pop(struct stream *stream)
{
    stream->first = stream->first->next_follower;
    if (stream->first == NULL)
        stream->last = NULL;
}

void stream_leave(struct hand *hand, struct arrival *arrival)
{
    struct stream *stream = arrival->stream;
    if (stream == NULL)
        return;
    if (stream->head == arrival)
        stream->head = NULL;
    arrival->stream = NULL;
    arrival->partition->waiting--;
    hand->waiting--;
    hand->waiting_bytes -= arrival->bytes;
    if (--stream->members == 0)
        stream_free(hand, stream);
}

void streams_drop(struct hand *hand, const struct partition *partition, int64_t from)
{
    for (struct stream *stream = hand->streams, *next; stream != NULL; stream = next) {
        struct arrival *gone = NULL, *left = stream->first;
        next = stream->next;
        stream->first = stream->last = NULL;
        while (left != NULL) {
            struct arrival *arrival = left;
            left = arrival->next_follower;
            if (arrival_is_of(arrival, partition, from)) {
                arrival->next_follower = gone;
                gone = arrival;
            } else {
                stream_append(hand, stream, arrival);
            }
        }
        if (stream->head != NULL && arrival_is_of(stream->head, partition, from)) {
            stream->head->next_follower = gone;
            gone = stream->head;
        }
        while (gone != NULL) {
            struct arrival *arrival = gone;
            gone = arrival->next_follower;
            stream_leave(hand, arrival);
        }
    }
}
