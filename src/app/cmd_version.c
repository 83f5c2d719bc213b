#include "app.h"

int cmd_version(int argc, char **argv)
{
    (void)argv;
    if (argc > 1)
        return app_usage("version", "too many arguments");
    puts("outboxd " OUTBOXD_VERSION "\nbuilt with " OUTBOXD_BUILT_WITH);
    return EXIT_OK;
}
