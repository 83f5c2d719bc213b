#include "app.h"
#include "str.h"

static const struct {
    const char *option;
    enum config_output output;
} outputs[] = {
    {"--json", CONFIG_JSON},
    {"--markdown", CONFIG_MARKDOWN},
    {"--env", CONFIG_ENV},
    {"--man", CONFIG_MAN}, /* for the generated man page, so not in the help text */
};

int cmd_config(int argc, char **argv)
{
    enum config_output output = CONFIG_TABLE;
    struct config config;

    if (argc > 2)
        return app_usage("config", "too many arguments");
    if (argc == 2) {
        size_t i = 0;
        while (i < ARRAY_LEN(outputs) && !str_eq(argv[1], outputs[i].option))
            i++;
        if (i == ARRAY_LEN(outputs))
            return app_usage("config", "no option %s", argv[1]);
        output = outputs[i].output;
    }
    /* What describes the settings does not depend on them: it must answer when they are bad. */
    if (output == CONFIG_MARKDOWN || output == CONFIG_MAN) {
        config_print(NULL, output, stdout);
        return EXIT_OK;
    }
    int code = app_load_config(&config);
    if (code != EXIT_OK)
        return code;
    config_print(&config, output, stdout);
    config_done(&config);
    return EXIT_OK;
}
