/* What `outboxd check` found: a level, what was seen, why it matters, and the exact thing that mends it. */
#ifndef OUTBOXD_FINDING_H
#define OUTBOXD_FINDING_H

#include <stddef.h>

#include "str.h"

enum finding_level { FINDING_OK, FINDING_INFO, FINDING_WARNING, FINDING_ERROR };

struct finding {
    enum finding_level level;
    const char *area; /* "postgresql", "kafka"; static */
    const char *name; /* of the check: stable, static */
    char *seen;       /* owned */
    const char *why;  /* static; NULL with FINDING_OK */
    char *
        remedy; /* a command, a GRANT or a setting as one pastes it, prose on lines of its own; owned; NULL: none needed */
};

struct findings {
    struct finding *items;
    size_t n;
    const char *area; /* of those that are added next */
};

/* Adds one and returns it, for finding_remedy. */
struct finding *finding_add(struct findings *findings, enum finding_level level, const char *name, const char *why,
                            const char *format, ...) PRINTF_ARGS(5, 6);
void finding_remedy(struct finding *finding, const char *format, ...) PRINTF_ARGS(2, 3);

const char *finding_level_name(enum finding_level level);
size_t findings_count(const struct findings *findings, enum finding_level level);
void findings_done(struct findings *findings);

#endif
