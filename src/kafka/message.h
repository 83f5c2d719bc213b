/* One Kafka message: an event on its way to one of its topics. The address of a message is librdkafka's opaque, so the
 * array that holds them does not move while a report is out. */
#ifndef OUTBOXD_MESSAGE_H
#define OUTBOXD_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "event.h"

struct topic;

enum message_state {
    MESSAGE_WAITS,   /* for its round */
    MESSAGE_OUT,     /* handed to librdkafka, report is out */
    MESSAGE_ACKED,   /* the broker has it */
    MESSAGE_BACK,    /* came back with `error`, or was not taken for it */
    MESSAGE_SUSPECT, /* its record batch was refused with `error`: tried again in a smaller one */
    MESSAGE_REFUSED, /* refused with `error` while alone in its record batch */
    MESSAGE_LATE,    /* no report until the deadline; purged */
    MESSAGE_BEHIND,  /* not sent: something earlier of its stream, or of its event, was not */
};

struct message {
    struct event *event;
    const char *name; /* of its topic; points into the event's route */
    struct topic *topic;
    enum message_state state;
    int error;      /* rd_kafka_resp_err_t */
    int partition;  /* of its topic; stays while its batch is under way */
    unsigned round; /* in which it was handed over last */
    bool copy;      /* for the dead topic: says nothing about its event */
};

#endif
