#include "verdicts.h"

#include <librdkafka/rdkafka.h>

#include "str.h"

static const struct ruling rulings[] = {
#define RULING(code, fault, why) {code, FAULT_##fault, why},
#include "verdicts.def"
#undef RULING
};

static const struct ruling *find(int code)
{
    for (size_t i = 0; i < ARRAY_LEN(rulings); i++)
        if (rulings[i].code == code)
            return &rulings[i];
    return NULL;
}

bool ruling_listed(int code)
{
    return find(code) != NULL;
}

const struct ruling *ruling_of(int code)
{
    static const struct ruling unlisted = {.fault = FAULT_WORLD};
    const struct ruling *ruling = find(code);

    return ruling ? ruling : &unlisted;
}

enum message_state ruling_state(int code, bool alone)
{
    switch (ruling_of(code)->fault) {
    case FAULT_NONE:
        return MESSAGE_ACKED;
    case FAULT_EVENT:
        return alone ? MESSAGE_REFUSED : MESSAGE_SUSPECT;
    case FAULT_TOPIC:
    case FAULT_WORLD:
    case FAULT_PRODUCER:
    case FAULT_NOBODY:
        break;
    }
    return MESSAGE_BACK;
}

enum verdict ruling_verdict(enum message_state state, int code)
{
    switch (state) {
    case MESSAGE_ACKED:
        return VERDICT_SENT;
    case MESSAGE_REFUSED:
        return VERDICT_REFUSED;
    case MESSAGE_LATE: /* unless the world is away */
        return VERDICT_PARK;
    case MESSAGE_BACK:
        return ruling_of(code)->fault == FAULT_TOPIC ? VERDICT_PARK : VERDICT_LEFT;
    case MESSAGE_WAITS:
    case MESSAGE_OUT:
    case MESSAGE_SUSPECT:
    case MESSAGE_BEHIND:
        break;
    }
    return VERDICT_LEFT;
}

bool ruling_is_size(int code)
{
    return code == RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE || code == RD_KAFKA_RESP_ERR_INVALID_MSG_SIZE ||
           code == RD_KAFKA_RESP_ERR_RECORD_LIST_TOO_LARGE;
}

const char *ruling_text(int code)
{
    const struct ruling *ruling = find(code);

    return ruling && ruling->why ? ruling->why : rd_kafka_err2str((rd_kafka_resp_err_t)code);
}
