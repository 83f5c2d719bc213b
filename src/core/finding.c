#include "finding.h"

#include <stdlib.h>

struct finding *finding_add(struct findings *findings, enum finding_level level, const char *name, const char *why,
                            const char *format, ...)
{
    struct strbuf seen = {0};
    va_list args;

    va_start(args, format);
    strbuf_addv(&seen, format, args);
    va_end(args);
    findings->items = mem_grow(findings->items, findings->n + 1, sizeof(*findings->items));
    struct finding *finding = &findings->items[findings->n++];
    *finding = (struct finding){.level = level, .area = findings->area, .name = name, .seen = seen.data, .why = why};
    return finding;
}

void finding_remedy(struct finding *finding, const char *format, ...)
{
    struct strbuf remedy = {0};
    va_list args;

    va_start(args, format);
    strbuf_addv(&remedy, format, args);
    va_end(args);
    free(finding->remedy);
    finding->remedy = remedy.data;
}

const char *finding_level_name(enum finding_level level)
{
    static const char *const names[] = {"ok", "info", "warning", "error"};
    return names[level];
}

size_t findings_count(const struct findings *findings, enum finding_level level)
{
    size_t n = 0;
    for (size_t i = 0; i < findings->n; i++)
        n += findings->items[i].level == level;
    return n;
}

void findings_done(struct findings *findings)
{
    for (size_t i = 0; i < findings->n; i++) {
        free(findings->items[i].seen);
        free(findings->items[i].remedy);
    }
    free(findings->items);
    *findings = (struct findings){0};
}
