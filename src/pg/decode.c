#include "decode.h"

#include <endian.h>
#include <string.h>

static struct slice text(const struct rows *rows, int row, int column)
{
    size_t len = rows_len(rows, row, column);
    if (len == 0 && rows_null(rows, row, column))
        return (struct slice){NULL, 0};
    return (struct slice){rows_text(rows, row, column), len};
}

/* Binary jsonb: a version byte, then the text. */
static struct slice json(const struct rows *rows, int row, int column)
{
    struct slice slice = text(rows, row, column);
    if (slice.data != NULL && slice.len > 0)
        slice.data++, slice.len--;
    return slice;
}

/* Tables have an entry a lane: what is none counts as the first. */
static int lane(const struct rows *rows, int row, int column)
{
    int64_t number = rows_binary_int(rows, row, column);
    return number >= 0 && number < LANES ? (int)number : 0;
}

/* One more must fit into the column, or the mark of the whole batch would fail. */
static int retry_count(const struct rows *rows, int row, int column)
{
    int64_t number = rows_binary_int(rows, row, column);
    return number < 0 ? 0 : number < INT16_MAX ? (int)number : INT16_MAX - 1;
}

/* created_at may lie in the future, and be infinity, either one: then the event has no age. */
static int64_t age_ms(int64_t now_us, int64_t created_us)
{
    int64_t age;
    return __builtin_sub_overflow(now_us, created_us, &age) || age < 0 ? 0 : age / 1000;
}

#define DAY_US (INT64_C(86400) * 1000000)

/* Microseconds since 2000-01-01 as RFC 3339 in UTC. What has no such form (infinity, years beyond four digits) becomes
 * the nearest that has one. */
static size_t format_time(int64_t us, char ret[static 40])
{
    const int64_t lowest = -730119 * DAY_US, highest = 2921940 * DAY_US - 1; /* 0001-01-01, 9999-12-31 */
    us = us < lowest ? lowest : us > highest ? highest : us;
    int64_t days = us / DAY_US, rest = us % DAY_US;
    if (rest < 0)
        days--, rest += DAY_US;

    /* Civil date from a day number, in eras of 400 years that begin in March. */
    int64_t z = days + 730425; /* days since 0000-03-01 */
    int64_t era = z / 146097, doe = z % 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365;
    int64_t doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    int64_t mp = (5 * doy + 2) / 153;
    int day = (int)(doy - (153 * mp + 2) / 5 + 1);
    int month = (int)(mp < 10 ? mp + 3 : mp - 9);
    int year = (int)(yoe + era * 400 + (month <= 2));
    const struct {
        int64_t number;
        int width;
        char behind;
    } parts[] = {
        {year, 4, '-'},
        {month, 2, '-'},
        {day, 2, 'T'},
        {rest / 3600000000, 2, ':'},
        {rest / 60000000 % 60, 2, ':'},
        {rest / 1000000 % 60, 2, '.'},
        {rest % 1000000, 6, 'Z'},
    };
    char *at = ret;
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        at = str_digits(at, (uint64_t)parts[i].number, parts[i].width);
        *at++ = parts[i].behind;
    }
    *at = '\0';
    return (size_t)(at - ret);
}

/* Binary tid: block and offset, in network order. Anything else is the ctid of no row: nothing can be marked by it. */
static void decode_ctid(struct event *event, const struct rows *rows, int row, int column)
{
    const char *at = rows_text(rows, row, column);
    uint32_t block;
    uint16_t offset;
    if (rows_len(rows, row, column) != sizeof block + sizeof offset)
        return;
    memcpy(&block, at, sizeof block);
    memcpy(&offset, at + sizeof block, sizeof offset);
    event->block = be32toh(block);
    event->offset = be16toh(offset);
}

int64_t decode_event(struct event *event, const struct rows *rows, int row, int max_retries, int64_t now_us)
{
    int c = 0;
    decode_ctid(event, rows, row, c++);
    int64_t size = rows_binary_int(rows, row, c++);
    event->seq = rows_binary_int(rows, row, c++);
    event->lane = lane(rows, row, c++);
    event->id = text(rows, row, c++);
    event->topic = text(rows, row, c++);
    event->event_type = text(rows, row, c++);
    event->schema_version = (int)rows_binary_int(rows, row, c++);
    event->aggregate_type = text(rows, row, c++);
    event->aggregate_id = text(rows, row, c++);
    event->tenant_id = text(rows, row, c++);
    event->routing_key = text(rows, row, c++);
    event->partition_key = text(rows, row, c++);
    event->payload = json(rows, row, c++);
    event->payload_bytes = text(rows, row, c++);
    event->headers = json(rows, row, c++);
    event->metadata = json(rows, row, c++);
    event->status = (enum event_status)rows_binary_int(rows, row, c++);
    event->retry_count = retry_count(rows, row, c++);
    event->max_retries = rows_null(rows, row, c) ? max_retries : (int)rows_binary_int(rows, row, c);
    c++;
    event->occurred_at.len = format_time(rows_binary_int(rows, row, c++), event->occurred_text);
    event->created_ms = age_ms(now_us, rows_binary_int(rows, row, c++));
    if (event->event_type.data == NULL)
        event->event_type = event->topic;
    event->taken = true;
    event_prepare(event);
    return size;
}

void decode_bystanders(struct batch *batch, const struct rows *rows)
{
    for (int i = 0, n = rows_n(rows); i < n; i++) {
        struct event *event = batch_add(batch);
        event->seq = rows_binary_int(rows, i, 0);
        event->lane = lane(rows, i, 1);
        event->topic = text(rows, i, 2);
        event->routing_key = text(rows, i, 3);
        event->partition_key = text(rows, i, 4);
        event->aggregate_id = text(rows, i, 5);
        event->taken = false;
        event_prepare(event);
    }
}
