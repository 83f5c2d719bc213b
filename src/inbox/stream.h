/* Streams of a hand: which messages wait behind which, and whose turn it is. For hand.c alone. */
#ifndef OUTBOXD_STREAM_H
#define OUTBOXD_STREAM_H

#include "hand.h"

#define STREAM_BUCKETS 4096 /* blocked streams are few, and bounded by what may wait */

/* The stream that an arrival has to wait in; NULL: it is not blocked. */
struct stream *stream_find(const struct hand *hand, const struct arrival *arrival);
struct stream *stream_open(struct hand *hand, struct arrival *head);
void stream_append(struct hand *hand, struct stream *stream, struct arrival *arrival);
void stream_prepend(struct hand *hand, struct stream *stream, struct arrival *arrival);
void stream_pop(struct stream *stream); /* takes out the first follower; it stays a member */

/* The arrival waits no more: the head, or a follower that is in no list. The last one takes the stream along. */
void stream_leave(struct hand *hand, struct arrival *arrival);

/* Whose turn it is; it then stands last. */
struct stream *streams_rotate(struct hand *hand);

/* Everything of a partition from an offset on leaves, but for followers that are in the batch. */
void streams_drop(struct hand *hand, const struct partition *partition, int64_t from);

static inline bool arrival_is_of(const struct arrival *arrival, const struct partition *partition, int64_t from)
{
    return arrival->partition == partition && arrival->letter.offset >= from;
}

#endif
