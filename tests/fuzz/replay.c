/* Runs a fuzz target over files without libFuzzer: replay FOLDER|FILE… The name of the input at fault is the last one
 * printed. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "str.h"

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static bool run_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct strbuf text = {0};
    char chunk[4096];
    size_t n;

    printf("%s\n", path);
    if (!file) {
        perror(path);
        return false;
    }
    strbuf_add(&text, "");
    while ((n = fread(chunk, 1, sizeof(chunk), file)) > 0)
        strbuf_addn(&text, chunk, n);
    bool good = !ferror(file);
    fclose(file);
    char *data = copy_exactly((struct input){text.data, text.len}, false);
    LLVMFuzzerTestOneInput((const uint8_t *)data, text.len);
    free(data);
    strbuf_done(&text);
    return good;
}

/* The number of files that ran, -1: one could not be read. */
static int run(const char *path)
{
    struct dirent **entries;
    int n = scandir(path, &entries, NULL, by_name), ran = 0;

    if (n < 0)
        return run_file(path) ? 1 : -1;
    for (int i = 0; i < n; i++) {
        if (entries[i]->d_name[0] != '.' && ran >= 0) {
            _cleanup_(str_free) char *file = str_format("%s/%s", path, entries[i]->d_name);
            ran = run_file(file) ? ran + 1 : -1;
        }
        free(entries[i]);
    }
    free(entries);
    return ran;
}

int main(int argc, char **argv)
{
    int total = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    for (int i = 1; i < argc; i++) {
        int ran = run(argv[i]);
        if (ran < 0)
            return 1;
        total += ran;
    }
    printf("%d inputs\n", total);
    return total == 0;
}
