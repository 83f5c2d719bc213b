/* A Kafka message as the handler gets it. docs/CONSUMING.md, "What the handler gets", is the contract. */
#ifndef OUTBOXD_RENDER_H
#define OUTBOXD_RENDER_H

#include "consumer.h"
#include "str.h"

/* The event's id: header `id`, else `ce_id`, else topic/partition/offset. A header that is empty, too long or not UTF-8 counts
 * as none. Owned by the caller. */
char *render_id(const struct letter *letter);

struct rendering { /* reused from message to message; zero-initialise */
    struct strbuf key_text, payload_text, headers_text, name;
    const char *key, *payload, *headers; /* key, payload: NULL for SQL NULL */
};

void render(struct rendering *rendering, const struct letter *letter);
void rendering_done(struct rendering *rendering);

#endif
