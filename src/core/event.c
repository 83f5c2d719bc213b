#include "event.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "str.h"

#define REASON_MAX 1000 /* characters of last_error */

const char *verdict_name(enum verdict verdict)
{
    static const char *const names[] = {
        [VERDICT_NONE] = "none", [VERDICT_SENT] = "sent", [VERDICT_LEFT] = "left",       [VERDICT_HELD] = "held",
        [VERDICT_PARK] = "park", [VERDICT_DEAD] = "dead", [VERDICT_REFUSED] = "refused",
    };
    return (size_t)verdict < ARRAY_LEN(names) ? names[verdict] : "?";
}

void event_prepare(struct event *event)
{
    event->key = event->partition_key.data ? event->partition_key : event->aggregate_id;
    route_done(&event->route);
    route_init(&event->route, event->topic.data ? event->topic.data : "", event->routing_key.data);
}

struct slice event_value(const struct event *event)
{
    if (event->payload_bytes.data)
        return event->payload_bytes;
    if (!event->payload.data || (event->payload.len == 4 && memcmp(event->payload.data, "null", 4) == 0))
        return (struct slice){NULL, 0};
    return event->payload;
}

bool event_is_whole(const struct event *event)
{
    return event->payload.data || event->payload_bytes.data;
}

bool event_dies(const struct event *event)
{
    return event->verdict == VERDICT_DEAD ||
           (event->verdict == VERDICT_REFUSED && event->retry_count + 1 >= event->max_retries);
}

void event_judge(struct event *event, enum verdict verdict, const char *format, ...)
{
    va_list args;

    if (verdict <= event->verdict)
        return;
    event->verdict = verdict;
    str_free(&event->reason);
    if (verdict <= VERDICT_LEFT || !format)
        return;
    struct strbuf text = {0};
    va_start(args, format);
    strbuf_addv(&text, format, args);
    va_end(args);
    event->reason = str_clean(text.data, REASON_MAX); /* PostgreSQL would refuse the whole mark for what is not UTF-8 */
    strbuf_done(&text);
}

void event_done(struct event *event)
{
    route_done(&event->route);
    str_free(&event->reason);
}
