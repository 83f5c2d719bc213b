/* The inside of a publisher, shared by its files: publisher.c (prepare), rounds.c (hand over and judge, record batch by
 * record batch), settle.c (wait, and the verdicts), topics.c and limits.c (what is known of topics). One thread. */
#ifndef OUTBOXD_PUBLISHER_STATE_H
#define OUTBOXD_PUBLISHER_STATE_H

#include "backoff.h"
#include "handle.h"
#include "headers.h"
#include "publisher.h"
#include "streams.h"
#include "topics.h"

struct publisher {
    const struct config *config;
    struct metrics *metrics; /* NULL: not counted */
    int fd;                  /* eventfd that the handle's queue writes to */
    struct handle *handle;   /* NULL: built when needed */
    struct outage outage;
    struct topics topics;
    struct header_list headers;

    /* The batch under way. */
    unsigned batch;           /* its number, from 1 */
    struct message *messages; /* in the order of the batch; those of an event stand side by side */
    size_t n, cap;
    size_t first;           /* no message before this one waits for a round */
    unsigned round;         /* number over all batches */
    bool ordered;           /* a message that is not sent blocks its stream */
    struct streams blocked; /* something earlier was not sent: nothing of these may be */
    bool world;             /* Kafka is away; reason in world_reason */
    char world_reason[512];
    bool answers; /* the cluster answered a question after the deadline */

    /* A fatal error that comes back at once must not make us spin. */
    struct backoff fatal_pause;
    int64_t not_before;
};

enum wait_end {
    WAIT_DONE,  /* nothing is out */
    WAIT_FATAL, /* the handle is used up */
    WAIT_DEADLINE,
    WAIT_AWAY, /* the outage is sure */
    WAIT_GONE, /* the watch fired */
};

/* The handle, built when there is none that is good; NULL: Kafka counts as away (world is set). */
struct handle *publisher_handle(struct publisher *publisher);
void publisher_drop(struct publisher *publisher); /* frees it; the next use builds another */

/* The world is to blame: the first reason stays. */
void publisher_blame_world(struct publisher *publisher, const char *format, ...) __attribute__((format(printf, 2, 3)));

void publisher_blame_outage(struct publisher *publisher); /* with the reason that librdkafka told */

/* The errors of one broker, or a token that could not be renewed, look like an outage: does the cluster answer all the
 * same? Then it is none. There must be a handle. */
bool publisher_ask_back(struct publisher *publisher, int timeout_ms);

bool publisher_watch_fired(const struct publisher_watch *watch);

/* The headers of a message into publisher->headers. REJECT: its event is DEAD, err says why. */
enum result publisher_build_headers(struct publisher *publisher, const struct message *message,
                                    struct error *err) CHECK_RESULT;

/* Does an event let its followers pass, being dead? Not one that Kafka has refused: until its death is committed it may be
 * tried again, and taken then. */
bool publisher_is_passable(const struct publisher *publisher, const struct event *event);

/* Hands over the next round (rounds.c). */
void round_hand_over(struct publisher *publisher, int64_t deadline);
/* Nothing of the round is out: who is a suspect, refused, blocked? Learns limits; only if `handle`. */
void round_judge(struct publisher *publisher, struct handle *handle, int64_t deadline);
bool rounds_are_left(struct publisher *publisher);

/* Waits for the round that is out and goes on with the next ones until none is left (settle.c). What is not acknowledged
 * afterwards is not in librdkafka's hands. */
enum wait_end publisher_run_rounds(struct publisher *publisher, int64_t deadline, const struct publisher_watch *watch);

#endif
