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

enum verdict ruling_verdict(const struct ruling *ruling, bool alone)
{
    switch (ruling->fault) {
    case FAULT_NONE:
        return VERDICT_SENT;
    case FAULT_EVENT:
        return alone ? VERDICT_REFUSED : VERDICT_SUSPECT;
    case FAULT_TOPIC:
        return VERDICT_PARK;
    case FAULT_WORLD:
    case FAULT_PRODUCER:
    case FAULT_NOBODY:
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
