#include "render.h"

#include <inttypes.h>
#include <string.h>

#include "inbox.h"
#include "jsonfit.h"

/* Text as it is; other bytes as PostgreSQL prints a bytea. */
static void add_text(struct strbuf *buf, const char *bytes, size_t len)
{
    if (utf8_fits(bytes, len)) {
        strbuf_addn(buf, bytes, len);
        return;
    }
    strbuf_add(buf, "\\x");
    for (size_t i = 0; i < len; i++)
        strbuf_addf(buf, "%02x", (unsigned char)bytes[i]);
}

char *render_id(const struct letter *letter)
{
    const char *name;
    struct slice value, found = {NULL, 0};
    for (size_t i = 0; consumer_header(letter, i, &name, &value); i++) {
        bool own = str_eq(name, "id");
        if ((!own && !str_eq(name, "ce_id")) || value.data == NULL || value.len == 0 || value.len > INBOX_ID_MAX ||
            !utf8_fits(value.data, value.len))
            continue;
        if (own)
            return str_dupn(value.data, value.len);
        found = value;
    }
    if (found.data != NULL)
        return str_dupn(found.data, found.len);
    return str_format("%s/%d/%" PRId64, letter->topic, letter->partition, letter->offset);
}

static void render_headers(struct rendering *rendering, const struct letter *letter)
{
    struct strbuf *text = &rendering->headers_text;
    const char *name;
    struct slice value;
    strbuf_add(text, "{");
    for (size_t i = 0; consumer_header(letter, i, &name, &value); i++) {
        strbuf_clear(&rendering->name);
        add_text(&rendering->name, name, strlen(name));
        if (i > 0)
            strbuf_add(text, ",");
        json_fit_string(text, rendering->name.len ? rendering->name.data : "", rendering->name.len);
        strbuf_add(text, ":");
        if (value.data == NULL)
            strbuf_add(text, "null");
        else
            json_fit_string(text, value.data, value.len);
    }
    strbuf_add(text, "}");
}

void render(struct rendering *rendering, const struct letter *letter)
{
    strbuf_clear(&rendering->key_text);
    strbuf_clear(&rendering->payload_text);
    strbuf_clear(&rendering->headers_text);
    if (letter->key.data != NULL) {
        strbuf_add(&rendering->key_text, "");
        add_text(&rendering->key_text, letter->key.data, letter->key.len);
    }
    if (letter->value.data != NULL)
        json_fit(&rendering->payload_text, letter->value.data, letter->value.len);
    render_headers(rendering, letter);
    rendering->key = letter->key.data ? rendering->key_text.data : NULL;
    rendering->payload = letter->value.data ? rendering->payload_text.data : NULL;
    rendering->headers = rendering->headers_text.data;
}

void rendering_done(struct rendering *rendering)
{
    strbuf_done(&rendering->key_text);
    strbuf_done(&rendering->payload_text);
    strbuf_done(&rendering->headers_text);
    strbuf_done(&rendering->name);
}
