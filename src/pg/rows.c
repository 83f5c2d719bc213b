/* Results and array parameters: the two ways of values between C and SQL. */
#include <endian.h>
#include <libpq-fe.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "pg.h"

/* --- rows --- */

int rows_n(const struct rows *rows)
{
    return PQntuples((const PGresult *)rows);
}

int rows_affected(const struct rows *rows)
{
    return (int)strtol(PQcmdTuples((PGresult *)rows), NULL, 10);
}

bool rows_null(const struct rows *rows, int row, int column)
{
    return PQgetisnull((const PGresult *)rows, row, column);
}

const char *rows_text(const struct rows *rows, int row, int column)
{
    return PQgetvalue((const PGresult *)rows, row, column);
}

size_t rows_len(const struct rows *rows, int row, int column)
{
    return (size_t)PQgetlength((const PGresult *)rows, row, column);
}

int64_t rows_int(const struct rows *rows, int row, int column)
{
    return strtoll(rows_text(rows, row, column), NULL, 10);
}

int64_t rows_binary_int(const struct rows *rows, int row, int column)
{
    const char *at = rows_text(rows, row, column);
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    switch (rows_len(rows, row, column)) {
    case 2:
        memcpy(&two, at, 2);
        return (int16_t)be16toh(two);
    case 4:
        memcpy(&four, at, 4);
        return (int32_t)be32toh(four);
    case 8:
        memcpy(&eight, at, 8);
        return (int64_t)be64toh(eight);
    default:
        return 0; /* SQL NULL */
    }
}

bool rows_true(const struct rows *rows, int row, int column)
{
    const char *at = rows_text(rows, row, column);
    return at[0] == 't' || at[0] == 1;
}

void rows_free(void *rows)
{
    PQclear(rows);
}

/* --- arrays --- */

void pg_array_begin(struct strbuf *buf)
{
    strbuf_clear(buf);
    strbuf_add(buf, "{");
}

static void separate(struct strbuf *buf)
{
    if (buf->data[buf->len - 1] != '{' || buf->len > 1)
        strbuf_add(buf, ",");
}

void pg_array_text(struct strbuf *buf, const char *text)
{
    separate(buf);
    if (text == NULL) {
        strbuf_add(buf, "NULL");
        return;
    }
    strbuf_add(buf, "\"");
    for (;;) {
        size_t plain = strcspn(text, "\"\\");
        strbuf_addn(buf, text, plain);
        text += plain;
        if (*text == '\0')
            break;
        char escaped[2] = {'\\', *text++};
        strbuf_addn(buf, escaped, 2);
    }
    strbuf_add(buf, "\"");
}

void pg_array_int(struct strbuf *buf, int64_t value)
{
    separate(buf);
    strbuf_add_int(buf, value);
}

void pg_array_tid(struct strbuf *buf, uint32_t block, uint16_t offset)
{
    separate(buf);
    strbuf_addn(buf, "\"(", 2);
    strbuf_add_int(buf, block);
    strbuf_addn(buf, ",", 1);
    strbuf_add_int(buf, offset);
    strbuf_addn(buf, ")\"", 2);
}

void pg_array_end(struct strbuf *buf)
{
    strbuf_add(buf, "}");
}

/* --- ctids in binary: a header, then each as its length, block and offset, all in network order --- */

#define TID_OID 27

struct tids_header {
    uint32_t dimensions, nulls, type, n, lowest;
} __attribute__((packed));

struct tid_element {
    uint32_t size, block;
    uint16_t offset;
} __attribute__((packed));

void pg_tids_begin(struct strbuf *buf, size_t room)
{
    const struct tids_header header = {htobe32(1), 0, htobe32(TID_OID), 0, htobe32(1)};
    strbuf_clear(buf);
    strbuf_reserve(buf, sizeof header + room * sizeof(struct tid_element));
    strbuf_addn(buf, &header, sizeof header);
}

void pg_tids_add(struct strbuf *buf, uint32_t block, uint16_t offset)
{
    const struct tid_element element = {htobe32(sizeof element.block + sizeof element.offset), htobe32(block),
                                        htobe16(offset)};
    strbuf_addn(buf, &element, sizeof element);
}

void pg_tids_end(struct strbuf *buf)
{
    uint32_t n = htobe32((uint32_t)((buf->len - sizeof(struct tids_header)) / sizeof(struct tid_element)));
    memcpy(buf->data + offsetof(struct tids_header, n), &n, sizeof n);
}
