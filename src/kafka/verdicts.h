/* Whose fault is an error code of librdkafka, and what becomes of the event that met it? One table: verdicts.def. */
#ifndef OUTBOXD_VERDICTS_H
#define OUTBOXD_VERDICTS_H

#include <stdbool.h>
#include <stddef.h>

#include "message.h"

enum fault {
    FAULT_NONE,     /* acknowledged */
    FAULT_EVENT,    /* a record of the batch was refused: suspects; alone it is the event's own */
    FAULT_TOPIC,    /* nobody can write to this topic now */
    FAULT_WORLD,    /* Kafka is away, or does not know us */
    FAULT_PRODUCER, /* the handle is used up: build another */
    FAULT_NOBODY,   /* given back by our own doing */
};

struct ruling {
    int code; /* rd_kafka_resp_err_t */
    enum fault fault;
    const char *why; /* for a person who does not know Kafka's names; NULL: librdkafka's own text serves */
};

/* Never NULL: a code that the table does not know is the world's fault, so the event is left and nothing is counted. */
const struct ruling *ruling_of(int code);
bool ruling_listed(int code);

/* What becomes of a message whose report has this code. `alone`: nothing else travelled in its record batch. */
enum message_state ruling_state(int code, bool alone);

/* What its event gets for it when no round is left. */
enum verdict ruling_verdict(enum message_state state, int code);

/* Was the record batch refused for its size? Then smaller ones may pass. */
bool ruling_is_size(int code);

/* The reason as a person reads it: our words where we have some, else librdkafka's. Static text. */
const char *ruling_text(int code);

#endif
