#include "app.h"
#include "parse.h"
#include "ulid.h"

#define ULIDS_MAX 100000000

int cmd_ulid(int argc, char **argv)
{
    struct ulid_generator generator;
    int64_t n = 1;
    char id[27];

    if (argc > 2)
        return app_usage("ulid", "too many arguments");
    if (argc == 2 && (!parse_int(argv[1], &n) || n < 1 || n > ULIDS_MAX))
        return app_usage("ulid", "\"%s\" is not a number from 1 to %d", argv[1], ULIDS_MAX);
    if (ulid_generator_init(&generator, 0) != 0) {
        fputs("outboxd: the system has no randomness\n", stderr);
        return EXIT_FAILED;
    }
    while (n-- > 0 && !ferror(stdout)) {
        ulid_generate(&generator, id);
        puts(id);
    }
    return EXIT_OK;
}
