#include "seam.h"

#ifdef OUTBOXD_SEAMS

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void act(const char *action)
{
    if (strcmp(action, "kill") == 0) {
        raise(SIGKILL);
    } else if (strcmp(action, "stop") == 0) {
        raise(SIGSTOP);
    } else if (strncmp(action, "sleep", 5) == 0) {
        long ms = strtol(action + 5, NULL, 10);
        struct timespec left = {ms / 1000, ms % 1000 * 1000000};
        while (nanosleep(&left, &left) != 0)
            ;
    }
}

bool seam_armed(const char *name)
{
    const char *spec = getenv("OUTBOXD_SEAM");
    size_t len = strlen(name);

    return spec && strncmp(spec, name, len) == 0 && spec[len] == ':';
}

/* Only one seam can be named, so one counter serves. The environment is never written to after the start. */
void seam(const char *name)
{
    static atomic_long passes;
    const char *spec = getenv("OUTBOXD_SEAM");

    if (!seam_armed(name))
        return;
    char *action;
    long nth = strtol(spec + strlen(name) + 1, &action, 10);
    long pass = atomic_fetch_add(&passes, 1) + 1;
    if (*action == ':' && (nth == 0 || nth == pass))
        act(action + 1);
}

#else

/* An empty translation unit is not C. */
extern int seam_not_built;
int seam_not_built;

#endif
