/* Walks the members of a JSON object without building a tree: texts stay where they are, numbers keep every
 * digit.
 *
 * The input is what PostgreSQL prints for a jsonb column, so it is valid; whatever else it gets, it stays
 * inside the given bytes and says -1 instead of guessing. */
#ifndef OUTBOXD_JSONTEXT_H
#define OUTBOXD_JSONTEXT_H

#include <stdbool.h>
#include <stddef.h>

struct json_walk {
    const char *at, *end;
    bool first;
};

struct json_member {
    const char *name; /* between the quotes, as written */
    size_t name_len;
    bool name_escaped; /* it holds backslashes: json_unescape */
    const char *value; /* the whole value as written; a string with its quotes */
    size_t value_len;
    bool value_escaped; /* a string with backslashes */
    bool value_blanks;  /* an array or object with blanks between its tokens: json_compact */
};

bool json_walk_init(struct json_walk *walk, const char *text, size_t len); /* false: not an object */
int json_walk_next(struct json_walk *walk, struct json_member *ret);       /* 1, 0 at the end, -1: malformed */

/* Both write at most `len` bytes and return how many; json_unescape returns -1 for an escape that is none. */
long json_unescape(char *ret, const char *text, size_t len); /* the inside of a string, as UTF-8 */
size_t json_compact(char *ret, const char *text, size_t len);

#endif
