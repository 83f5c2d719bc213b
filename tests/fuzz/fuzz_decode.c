/* Rows as libpq hands them over, with NULLs and lengths that no server sends, on the way that claim_read takes.
 *
 * Input: a byte of flags, eight bytes of now, a byte that mixes verdicts; then rows: a byte (odd: a bystander, else a
 * taken row) and a cell for each column: a byte 255 for NULL, 254 for what a server would send, else so many bytes. */
#include <libpq-fe.h>
#include <time.h>

#include "decode.h"
#include "fuzz.h"
#include "headers.h"
#include "route.h"

#define ROWS_MAX          24
#define BYSTANDER_COLUMNS 6
#define LOWEST_US         (INT64_C(-730119) * 86400000000)     /* 0001-01-01 since 2000 */
#define HIGHEST_US        (INT64_C(2921940) * 86400000000 - 1) /* 9999-12-31 */

enum { ORDERED = 1 << 0, DEAD_BLOCKS = 1 << 1 };

struct cell {
    char *data; /* NULL: SQL NULL */
    size_t len;
};

/* libpq keeps short values side by side in blocks, where the sanitizer does not see the end of one. This hands out
 * copies that end where the value ends; everything else is libpq's. */
struct table {
    PGresult *result;
    int columns;
    struct cell cells[ROWS_MAX][DECODE_N_COLUMNS];
};

static struct table taken, bystanders;

char *__real_PQgetvalue(const PGresult *result, int row, int column);
char *__wrap_PQgetvalue(const PGresult *result, int row, int column);

char *__wrap_PQgetvalue(const PGresult *result, int row, int column)
{
    char *value = __real_PQgetvalue(result, row, column);
    struct table *table = result == taken.result ? &taken : &bystanders;
    struct cell *cell = &table->cells[row][column];

    REQUIRE(result == table->result);
    REQUIRE((size_t)PQgetlength(result, row, column) == cell->len && !PQgetisnull(result, row, column) == !!cell->data);
    if (!cell->data)
        return value;
    REQUIRE(memcmp(value, cell->data, cell->len + 1) == 0);
    return cell->data;
}

/* What a server would send in this column. */
static struct input usual(int column, int row, char number[static 8])
{
    static const struct {
        const char *text;
        uint8_t width; /* of a number, 0: a text */
    } cells[DECODE_N_COLUMNS] = {
        {"\0\0\0\1\0\1", 6},
        {"", 4},
        {"", 8},
        {"", 2},
        {"01ARZ3NDEKTSV4RRFFQ69G5FAV", 0},
        {"orders", 0},
        {NULL, 0},
        {"", 4},
        {"order", 0},
        {"o-1", 0},
        {"default", 0},
        {NULL, 0},
        {NULL, 0},
        {"\1{\"a\": 1}", 0},
        {NULL, 0},
        {"\1{}", 0},
        {"\1{}", 0},
        {"", 2},
        {"", 4},
        {NULL, 2},
        {"", 8},
        {"", 8},
    };
    const char *text = cells[column].text;

    if (!text || cells[column].width == 0)
        return (struct input){text, text ? strlen(text) : 0};
    if (cells[column].width == 6)
        return (struct input){text, 6};
    memset(number, 0, 8);
    number[cells[column].width - 1] = (char)(column == 2 ? row : column == 18 ? 1 : 0);
    return (struct input){number, cells[column].width};
}

static void add_row(struct table *table, struct input *input)
{
    static const int columns[BYSTANDER_COLUMNS] = {2, 3, 5, 11, 12, 9}; /* as DECODE_BYSTANDER names them */
    int row = PQntuples(table->result);

    for (int c = 0; c < table->columns; c++) {
        char number[8];
        uint8_t kind = input->left ? take_byte(input) : 254;
        struct input value = kind == 255   ? (struct input){NULL, 0}
                             : kind == 254 ? usual(table->columns == BYSTANDER_COLUMNS ? columns[c] : c, row, number)
                                           : take_bytes(input, kind);
        struct cell *cell = &table->cells[row][c];
        *cell = (struct cell){value.at ? copy_exactly(value, true) : NULL, value.left};
        REQUIRE(PQsetvalue(table->result, row, c, cell->data, cell->data ? (int)cell->len : -1));
    }
}

static void table_init(struct table *table, int columns)
{
    PGresAttDesc attributes[DECODE_N_COLUMNS];

    for (int i = 0; i < columns; i++)
        attributes[i] = (PGresAttDesc){.name = (char *)"column", .format = 1, .typlen = -1, .atttypmod = -1};
    *table = (struct table){.result = PQmakeEmptyPGresult(NULL, PGRES_TUPLES_OK), .columns = columns};
    REQUIRE(table->result && PQsetResultAttrs(table->result, columns, attributes));
}

/* The result itself went with its batch. */
static void table_done(struct table *table)
{
    for (int row = 0; row < ROWS_MAX; row++)
        for (int c = 0; c < table->columns; c++)
            free(table->cells[row][c].data);
}

/* The number in a cell; a width that no number has counts as 0. */
static int64_t number(const struct table *table, int row, int column)
{
    const struct cell *cell = &table->cells[row][column];

    if (cell->len != 2 && cell->len != 4 && cell->len != 8)
        return 0;
    uint64_t value = cell->data[0] & 0x80 ? UINT64_MAX : 0;
    for (size_t i = 0; i < cell->len; i++)
        value = value << 8 | (uint8_t)cell->data[i];
    return (int64_t)value;
}

static void check_time(const struct event *event, int64_t us)
{
    struct tm tm = {0};
    long micros;
    int end = 0;

    us = us < LOWEST_US ? LOWEST_US : us > HIGHEST_US ? HIGHEST_US : us;
    REQUIRE(event->occurred_at.len == 27 && strlen(event->occurred_at.data) == 27);
    REQUIRE(sscanf(event->occurred_at.data, "%4d-%2d-%2dT%2d:%2d:%2d.%6ldZ%n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
                   &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &micros, &end) == 7);
    REQUIRE(end == 27);
    tm.tm_year -= 1900;
    tm.tm_mon--;
    REQUIRE(((int64_t)timegm(&tm) - 946684800) * 1000000 + micros == us);
}

static void check_slice(struct slice slice, const struct cell *cell, size_t skip)
{
    REQUIRE(!slice.data == !cell->data);
    if (!slice.data)
        return;
    size_t skipped = cell->len < skip ? cell->len : skip;
    REQUIRE(slice.data == cell->data + skipped && slice.len == cell->len - skipped);
}

/* Against the cells that it was made of. */
static void check_event(const struct event *event, int row, int max_retries)
{
    const struct cell *cells = taken.cells[row];
    int64_t lane = number(&taken, row, 3);

    REQUIRE(event->seq == number(&taken, row, 2));
    REQUIRE(event->lane >= 0 && event->lane < LANES && (event->lane == lane || lane < 0 || lane >= LANES));
    check_slice(event->id, &cells[4], 0);
    if (cells[5].data)
        check_slice(event->topic, &cells[5], 0);
    check_slice(event->payload, &cells[13], 1);
    check_slice(event->payload_bytes, &cells[14], 0);
    check_slice(event->headers, &cells[15], 1);
    check_slice(event->metadata, &cells[16], 1);
    check_slice(event->key, &cells[cells[12].data ? 12 : 9], 0);
    REQUIRE(event->max_retries == (cells[19].data ? (int)number(&taken, row, 19) : max_retries));
    REQUIRE(event->created_ms >= 0 && event->retry_count >= 0 && event->retry_count < INT16_MAX);
    check_time(event, number(&taken, row, 20));
}

static void check_route(const struct event *event)
{
    const char *list = event->routing_key.data;

    REQUIRE(list || event->route.n == 1);
    for (size_t i = 0; i < event->route.n; i++) {
        const char *topic = route_topic(&event->route, i), *fault = route_topic_fault(topic);
        size_t len = strlen(topic),
               good = strspn(topic, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
        REQUIRE(!fault ==
                (len > 0 && len <= 249 && good == len && strcmp(topic, ".") != 0 && strcmp(topic, "..") != 0));
        REQUIRE(!list || (len > 0 && !strchr(topic, ',') && !strchr(" \t\r\n", topic[0]) &&
                          !strchr(" \t\r\n", topic[len - 1]) && strstr(list, topic)));
        for (size_t k = 0; k < i; k++)
            REQUIRE(strcmp(topic, route_topic(&event->route, k)) != 0);
    }
}

static bool same_stream(const struct event *a, const struct event *b)
{
    return a->key.len == b->key.len && (a->key.len == 0 || memcmp(a->key.data, b->key.data, a->key.len) == 0) &&
           route_overlaps(&a->route, &b->route);
}

/* Nothing is sent behind something unfinished of its stream. */
static void check_order(const struct batch *batch, bool dead_blocks)
{
    for (size_t i = 0; i < batch->n; i++) {
        const struct event *event = &batch->events[i];
        if (i > 0)
            REQUIRE(event->lane > event[-1].lane || (event->lane == event[-1].lane && event->seq >= event[-1].seq));
        if (!event->taken)
            REQUIRE(event->verdict == VERDICT_LEFT);
        if (event->verdict != VERDICT_NONE)
            continue;
        for (size_t k = 0; k < i; k++) {
            const struct event *earlier = &batch->events[k];
            bool finished = earlier->verdict <= VERDICT_SENT || (event_dies(earlier) && !dead_blocks);
            REQUIRE(finished || !same_stream(earlier, event));
        }
    }
}

/* One element of an array literal as PostgreSQL reads it; static, NULL: SQL NULL. */
static const char *next_element(const char **at, struct strbuf *element)
{
    strbuf_clear(element);
    strbuf_add(element, "");
    REQUIRE(**at == '{' || **at == ',');
    ++*at;
    if (**at != '"') {
        size_t n = strcspn(*at, ",}\"\\{ ");
        strbuf_addn(element, *at, n);
        *at += n;
        return strcmp(element->data, "NULL") == 0 ? NULL : element->data;
    }
    for (++*at; **at != '"'; ++*at) {
        if (**at == '\\')
            ++*at;
        REQUIRE(**at != '\0');
        strbuf_addn(element, *at, 1);
    }
    ++*at;
    return element->data;
}

static void check_element(const char **at, struct strbuf *element, const char *expected)
{
    const char *text = next_element(at, element);
    REQUIRE(!text == !expected && (!text || strcmp(text, expected) == 0));
}

static void check_arrays(const struct batch *batch)
{
    struct strbuf array = {0}, element = {0};
    char text[64];

    pg_array_begin(&array);
    for (size_t i = 0; i < batch->n; i++) {
        const struct event *event = &batch->events[i];
        pg_array_text(&array, event->key.data);
        pg_array_text(&array, event->topic.data);
        pg_array_int(&array, event->seq);
        pg_array_text(&array, event->reason);
        pg_array_tid(&array, event->block, event->offset);
    }
    pg_array_end(&array);
    const char *at = array.data;
    for (size_t i = 0; i < batch->n; i++) {
        const struct event *event = &batch->events[i];
        check_element(&at, &element, event->key.data);
        check_element(&at, &element, event->topic.data);
        snprintf(text, sizeof(text), "%lld", (long long)event->seq);
        check_element(&at, &element, text);
        check_element(&at, &element, event->reason);
        snprintf(text, sizeof(text), "(%u,%u)", event->block, event->offset);
        check_element(&at, &element, text);
    }
    REQUIRE(strcmp(at, batch->n ? "}" : "{}") == 0);
    strbuf_done(&array);
    strbuf_done(&element);
}

static void check_value(const struct event *event)
{
    struct slice value = event_value(event);

    if (event->payload_bytes.data)
        REQUIRE(value.data == event->payload_bytes.data && value.len == event->payload_bytes.len);
    else
        REQUIRE(!value.data || value.data == event->payload.data);
}

/* A reason is text that PostgreSQL takes, of 1,000 characters at most. */
static void check_reason(const struct event *event)
{
    size_t chars = 0;

    for (const char *at = event->reason; at && *at; chars++) {
        REQUIRE(str_utf8_len(at) > 0);
        at += str_utf8_len(at);
    }
    REQUIRE(chars <= 1000);
}

/* As the publisher would: some verdict for each event that waits for one. */
static void judge(struct batch *batch, uint8_t mix)
{
    static const enum verdict verdicts[] = {VERDICT_SENT,    VERDICT_SENT, VERDICT_LEFT, VERDICT_PARK,
                                            VERDICT_REFUSED, VERDICT_DEAD, VERDICT_SENT, VERDICT_NONE};
    for (size_t i = 0; i < batch->n; i++) {
        struct event *event = &batch->events[i];
        if (event->verdict == VERDICT_NONE)
            event_judge(event, verdicts[(mix + i * (mix >> 4 | 1)) % ARRAY_LEN(verdicts)], "%s: refused",
                        event->payload_bytes.data ? event->payload_bytes.data : "it");
        check_reason(event);
    }
}

static void check_batch(struct batch *batch, uint8_t flags, uint8_t mix)
{
    struct header_list headers = {0};
    struct error err;

    batch_sort(batch);
    for (size_t i = 0; i < batch->n; i++) {
        struct event *event = &batch->events[i];
        event->occurred_at.data = event->occurred_text;
        check_route(event);
        check_value(event);
        for (int format = HEADERS_PLAIN; format <= HEADERS_CLOUDEVENTS; format++)
            REQUIRE(headers_build(&headers, event, (enum header_format)format, "/", &err) <= REJECT);
    }
    headers_done(&headers);
    for (int round = 0; round < 2; round++) {
        batch_hold_followers(batch, flags & ORDERED, flags & DEAD_BLOCKS);
        if (flags & ORDERED)
            check_order(batch, flags & DEAD_BLOCKS);
        check_arrays(batch);
        judge(batch, mix);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input input = {(const char *)data, size};
    uint8_t flags = take_byte(&input);
    uint64_t now = 0;
    for (int i = 0; i < 8; i++)
        now = now << 8 | take_byte(&input);
    uint8_t mix = take_byte(&input);
    static struct batch batch; /* one for all, as in a worker */

    table_init(&taken, DECODE_N_COLUMNS);
    table_init(&bystanders, BYSTANDER_COLUMNS);
    for (int i = 0; i < ROWS_MAX && input.left; i++)
        add_row(take_byte(&input) & 1 ? &bystanders : &taken, &input);

    const struct rows *rows = (const struct rows *)taken.result;
    for (int i = 0; i < rows_n(rows); i++) {
        struct event *event = batch_add(&batch);
        REQUIRE(decode_event(event, rows, i, 5, (int64_t)now) == number(&taken, i, 1));
        event->occurred_at.data = event->occurred_text;
        check_event(event, i, 5);
        (void)rows_true(rows, i, 3);
        (void)rows_int(rows, i, 4);
    }
    decode_bystanders(&batch, (const struct rows *)bystanders.result);
    batch_own(&batch, taken.result, rows_free);
    batch_own(&batch, bystanders.result, rows_free);
    check_batch(&batch, flags, mix);
    batch_clear(&batch);
    table_done(&taken);
    table_done(&bystanders);
    return 0;
}
