/* check: the doctor. Connects to both sides, changes nothing, and names the remedy for everything it finds. */
#include <string.h>

#include "app.h"
#include "doctor.h"
#include "finding.h"
#include "inspect.h"
#include "options.h"
#include "pg.h"
#include "str.h"
#include "table.h"

#define CONNECT_TIMEOUT_MS 10000
#define KAFKA_TIMEOUT_MS   10000

static void print_json(const struct findings *findings)
{
    struct strbuf text = {0};
    strbuf_addf(&text, "{\"errors\":%zu,\"warnings\":%zu,\"findings\":[", findings_count(findings, FINDING_ERROR),
                findings_count(findings, FINDING_WARNING));
    for (size_t i = 0; i < findings->n; i++) {
        const struct finding *finding = &findings->items[i];
        const struct {
            const char *name, *value;
        } members[] = {
            {"level", finding_level_name(finding->level)},
            {"area", finding->area},
            {"name", finding->name},
            {"seen", finding->seen},
            {"why", finding->why},
            {"remedy", finding->remedy},
        };
        strbuf_add(&text, i ? ",\n  {" : "\n  {");
        for (size_t m = 0; m < ARRAY_LEN(members); m++) {
            strbuf_addf(&text, "%s\"%s\":", m ? "," : "", members[m].name);
            if (members[m].value)
                strbuf_add_json(&text, members[m].value);
            else
                strbuf_add(&text, "null");
        }
        strbuf_add(&text, "}");
    }
    strbuf_add(&text, "\n]}\n");
    fputs(text.data, stdout);
    strbuf_done(&text);
}

/* A line each, so that a command can be pasted. */
static void print_remedy(const char *remedy)
{
    for (const char *label = "fix: "; *remedy; label = "     ") {
        size_t len = strcspn(remedy, "\n");
        _cleanup_(str_free) char *line = str_dupn(remedy, len);
        printf("         %s", label);
        table_text(line, stdout);
        putchar('\n');
        remedy += len + (remedy[len] == '\n');
    }
}

static void print_people(const struct findings *findings)
{
    for (size_t i = 0; i < findings->n; i++) {
        const struct finding *finding = &findings->items[i];
        printf("%-8s %-11s ", finding_level_name(finding->level), finding->area);
        table_text(finding->seen, stdout);
        putchar('\n');
        if (finding->why)
            printf("         why: %s\n", finding->why);
        if (finding->remedy)
            print_remedy(finding->remedy);
    }
    size_t errors = findings_count(findings, FINDING_ERROR), warnings = findings_count(findings, FINDING_WARNING);
    printf("\n%zu error%s, %zu warning%s\n", errors, errors == 1 ? "" : "s", warnings, warnings == 1 ? "" : "s");
}

/* FATAL: the connection string. What else is wrong is a finding. */
static enum result check_postgresql(const struct config *config, struct findings *findings, struct rows **ret_topics,
                                    struct error *err)
{
    struct pg *pg = NULL;
    const struct pg_options options = {
        .url = config->database_url, .schema = config->schema, .connect_timeout_ms = CONNECT_TIMEOUT_MS, .stop_fd = -1};
    findings->area = "postgresql";
    enum result result = pg_open(&options, &pg, err);
    if (result == FATAL)
        return FATAL;
    if (result != OK) {
        doctor_unreachable(err, findings);
        return OK;
    }
    doctor_look(pg, config, findings);
    struct error ignored; /* the doctor has told what is wrong with the tables */
    if (doctor_topics(pg, ret_topics, &ignored) != OK)
        *ret_topics = NULL;
    pg_close(pg);
    return OK;
}

static int check(const struct config *config, bool json)
{
    struct error err = {0};
    struct findings findings = {0};
    const char *topics[DOCTOR_TOPICS];
    size_t n = 0;
    _cleanup_(rows_cleanup) struct rows *rows = NULL;
    enum result result = check_postgresql(config, &findings, &rows, &err);
    for (int i = 0; rows != NULL && i < rows_n(rows) && n < DOCTOR_TOPICS; i++)
        topics[n++] = rows_text(rows, i, 0);
    if (result == OK)
        result = inspect_kafka(config, topics, n, KAFKA_TIMEOUT_MS, &findings, &err);
    int code;
    if (result == OK) {
        (json ? print_json : print_people)(&findings);
        code = findings_count(&findings, FINDING_ERROR) > 0 ? EXIT_FAILED : EXIT_OK;
    } else {
        code = app_fail(result, &err);
    }
    findings_done(&findings);
    return code;
}

int cmd_check(int argc, char **argv)
{
    struct arguments arguments;
    struct config config;
    int code = options_parse("check", 0, argc, argv, &arguments);
    if (code == EXIT_OK)
        code = app_load_config(&config);
    if (code != EXIT_OK)
        return code;
    code = check(&config, option_given(&arguments, "--json"));
    config_done(&config);
    return code;
}
