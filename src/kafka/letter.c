#include "consumer.h"

#include <stdlib.h>
#include <string.h>

#include <librdkafka/rdkafka.h>

#include "str.h"

struct letter_copy {
    rd_kafka_headers_t *headers; /* NULL: none */
    char bytes[];                /* key, value */
};

void consumer_keep(struct letter *letter)
{
    if (letter->message == NULL)
        return;
    struct letter_copy *copy = mem_alloc(sizeof *copy + letter->key.len + letter->value.len);
    struct slice *const slices[] = {&letter->key, &letter->value};
    char *at = copy->bytes;
    for (size_t i = 0; i < ARRAY_LEN(slices); i++) {
        if (slices[i]->data == NULL)
            continue;
        memcpy(at, slices[i]->data, slices[i]->len);
        slices[i]->data = at;
        at += slices[i]->len;
    }
    if (rd_kafka_message_detach_headers(letter->message, &copy->headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        copy->headers = NULL;
    rd_kafka_message_destroy(TAKE(letter->message));
    letter->copy = copy;
}

void consumer_release(struct letter *letter)
{
    if (letter->message != NULL)
        rd_kafka_message_destroy(TAKE(letter->message));
    if (letter->copy == NULL)
        return;
    if (letter->copy->headers != NULL)
        rd_kafka_headers_destroy(letter->copy->headers);
    free(TAKE(letter->copy));
}

static rd_kafka_headers_t *headers_of(const struct letter *letter)
{
    rd_kafka_headers_t *headers = NULL;
    if (letter->copy != NULL)
        return letter->copy->headers;
    if (rd_kafka_message_headers(letter->message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return NULL;
    return headers;
}

bool consumer_header(const struct letter *letter, size_t i, const char **ret_name, struct slice *ret_value)
{
    const rd_kafka_headers_t *headers = headers_of(letter);
    const void *value;
    size_t size;

    if (headers == NULL || rd_kafka_header_get_all(headers, i, ret_name, &value, &size) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return false;
    *ret_value = (struct slice){value, size};
    return true;
}
