/* Will PostgreSQL's jsonb take this text? And what stands in for a value that it does not take.
 *
 * The answer must never be a wrong yes: one value that the server refuses would fail the batch it travels in. Where the
 * server's own bounds depend on its settings (depth, digits) ours are narrower. */
#ifndef OUTBOXD_JSONFIT_H
#define OUTBOXD_JSONFIT_H

#include <stdbool.h>
#include <stddef.h>

#include "str.h"

/* JSON by RFC 8259 in valid UTF-8, without \u0000 and lone surrogates, without numbers beyond `numeric`. */
bool json_fits(const char *text, size_t len);

bool utf8_fits(const char *text, size_t len); /* valid UTF-8 without NUL: what the type text takes */

/* Adds JSON that jsonb takes and that keeps every byte: the text itself when it fits, else a JSON string of it when it is
 * UTF-8, else {"base64": "..."}. */
void json_fit(struct strbuf *buf, const char *text, size_t len);

/* The last two of these: a value that is not to be read as JSON. */
void json_fit_string(struct strbuf *buf, const char *text, size_t len);

#endif
