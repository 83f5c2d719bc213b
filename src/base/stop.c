#include "stop.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "clock.h"
#include "log.h"

#define JOIN_MS 10

int stop_open(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

bool stop_nap(int fd, int64_t ms)
{
    struct pollfd signals = {fd, POLLIN, 0};

    return poll(&signals, 1, (int)ms) > 0;
}

void stop_take(int fd)
{
    struct signalfd_siginfo info;

    if (read(fd, &info, sizeof(info)) == sizeof(info))
        log_info("%s: stopping", info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
}

bool stop_join(int fd, pthread_t thread, int64_t deadline, const char *again)
{
    /* Not by a wait until a time of day, which lasts for as long as the clock is set back. */
    while (pthread_tryjoin_np(thread, NULL) != 0) {
        if (stop_nap(fd, JOIN_MS)) {
            log_warning("a second signal: leaving at once; what was in flight is %s again by the next start", again);
            return false;
        }
        if (clock_left_ms(deadline) == 0) {
            log_warning(
                "what was in flight did not end within OUTBOX_SHUTDOWN_TIMEOUT; it is %s again by the next start",
                again);
            return false;
        }
    }
    return true;
}
