/* The rows of config.def as data, for the files that load and print them. */
#ifndef OUTBOXD_CONFIG_TABLE_H
#define OUTBOXD_CONFIG_TABLE_H

#include "config.h"

#define KAFKA_PREFIX "OUTBOX_KAFKA_"

enum param_type { PARAM_TEXT, PARAM_SECRET, PARAM_INT, PARAM_DURATION, PARAM_SIZE, PARAM_SWITCH, PARAM_CHOICE };

struct param {
    const char *name;
    enum param_type type;
    size_t offset;                          /* of the member in struct config */
    const char *default_text;               /* NULL: unset */
    const char *min, *max;                  /* INT, DURATION, SIZE: the range, as one would write it */
    const char *choices;                    /* CHOICE: the texts, separated by | */
    const char *(*check)(const char *text); /* TEXT, SECRET: NULL, or what is wrong with it (without the text) */
    const char *prose;
};

extern const struct param params[];
extern const size_t n_params;

/* Reads a number of the row's type. */
bool param_parse(const struct param *param, const char *text, int64_t *ret);

/* The librdkafka properties that would break a promise. NULL: not one of them, else why it is refused. */
const char *kafka_refusal(const char *property);

/* Rows for the reference: the i-th refused property, NULL at the end. */
const char *kafka_refused(size_t i, const char **ret_reason);

#endif
