#include <string.h>

#include "app.h"
#include "migration.h"
#include "options.h"
#include "parse.h"
#include "pg.h"
#include "schema.h"

#define CONNECT_TIMEOUT_MS 15000

static int migrate(const struct config *config, const char *action, int to)
{
    struct error err = {0};
    struct pg *pg = NULL;
    const struct pg_options options = {
        .url = config->database_url, .schema = config->schema, .connect_timeout_ms = CONNECT_TIMEOUT_MS, .stop_fd = -1};
    enum result result = pg_open(&options, &pg, &err);
    int code = EXIT_OK;
    if (result == OK && strcmp(action, "up") == 0) {
        result = schema_up(pg, config->schema, to, config->notify, stdout, &err);
    } else if (result == OK && strcmp(action, "down") == 0) {
        result = schema_down(pg, to, stdout, &err);
    } else if (result == OK) {
        struct schema_state state;
        result = schema_read(pg, &state, &err);
        if (result == OK)
            schema_status(&state, stdout);
        code = state.version < state.latest ? EXIT_FAILED : EXIT_OK;
    }
    pg_close(pg);
    return result == OK ? code : app_fail(result, &err);
}

int cmd_migrate(int argc, char **argv)
{
    struct arguments arguments;
    int code = options_parse("migrate", 1, argc, argv, &arguments);
    if (code != EXIT_OK)
        return code;
    const char *action = arguments.n_operands > 0 ? arguments.operands[0] : "up",
               *version = option_value(&arguments, "--to");
    int64_t to = -1;
    if (strcmp(action, "up") && strcmp(action, "down") && strcmp(action, "status") && strcmp(action, "print"))
        return app_usage("migrate", "no action \"%s\"", action);
    if (version && (!parse_int(version, &to) || to < 0 || to > n_migrations))
        return app_usage("migrate", "--to %s: a version is a number from 0 to %d", version, n_migrations);
    if (strcmp(action, "down") == 0 && to < 0)
        return app_usage("migrate", "down needs --to N: it drops tables");
    struct config config;
    code = app_load_config(&config);
    if (code != EXIT_OK)
        return code;
    int target = to < 0 ? n_migrations : (int)to;
    if (strcmp(action, "print") == 0)
        schema_print(config.schema, target, config.notify, stdout);
    else
        code = migrate(&config, action, target);
    config_done(&config);
    return code;
}
