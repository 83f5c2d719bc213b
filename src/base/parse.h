/* Texts of settings into values. Each returns false and leaves *ret alone when the text is not exactly one value;
 * no blanks, no trailing rubbish, no overflow. */
#ifndef OUTBOXD_PARSE_H
#define OUTBOXD_PARSE_H

#include <stdbool.h>
#include <stdint.h>

bool parse_int(const char *text, int64_t *ret);
bool parse_duration(const char *text, int64_t *ret_ms); /* 500ms 10s 5m 24h 7d; a bare 0 */
bool parse_size(const char *text, int64_t *ret_bytes);  /* 123 8KiB 8MiB 1GiB */
bool parse_bool(const char *text, bool *ret);           /* on|off */
void format_duration(int64_t ms, char ret[32]);         /* the shortest exact form: 90s -> "90s", 300s -> "5m" */
void format_size(int64_t bytes, char ret[32]);
void format_age(double seconds, char ret[32]); /* for people: 9.5 s, 3 m 20 s, 2 d 4 h */

#endif
