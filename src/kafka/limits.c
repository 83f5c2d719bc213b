/* How large a record batch a topic takes: asked, or learned from what it refused. */
#include "clock.h"
#include "describe.h"
#include "topics.h"

#define LIMIT_AGE_MS (5 * 60 * 1000) /* a raised limit is noticed after so long */
#define DESCRIBE_MS  3000

/* max.message.bytes as the broker tells it; 0: it does not. */
static size_t describe(const struct topic *topic, const struct handle *handle, int64_t deadline)
{
    int left = clock_left_ms(deadline);

    if (left < 1 || !handle || handle_is_used_up(handle))
        return 0;
    return (size_t)describe_topic(handle->rk, topic->name, left < DESCRIBE_MS ? left : DESCRIBE_MS).max_bytes;
}

static void set_limit(struct topic *topic, size_t limit, bool asked)
{
    topic->limit = limit;
    topic->limit_asked = asked;
    topic->limit_until = clock_ms() + LIMIT_AGE_MS;
}

void topic_ask_limit(struct topic *topic, struct handle *handle, size_t refused, int64_t deadline)
{
    /* Another partition's record batch of the same round may have told already. */
    if (topic->limit != NO_LIMIT && refused > topic->limit)
        return;
    size_t limit = topic->limit == NO_LIMIT ? describe(topic, handle, deadline) : 0;
    if (limit && limit < refused)
        set_limit(topic, limit, true);
    else /* no answer, or one that allows what was just refused */
        set_limit(topic, refused / 2, false);
}

void topic_refresh_limit(struct topic *topic, struct handle *handle, int64_t deadline)
{
    if (topic->limit == NO_LIMIT || clock_ms() < topic->limit_until)
        return;
    size_t limit = topic->limit_asked ? describe(topic, handle, deadline) : 0;
    if (limit)
        set_limit(topic, limit, true);
    else
        topic->limit = NO_LIMIT;
}
