#include "crew.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"

#define BEAT_SLACK_MS 10000

static void signal_fd(int fd)
{
    uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

enum result crew_init(struct crew *crew, const struct config *config, struct error *err)
{
    *crew = (struct crew){.config = config,
                          .figures_ms = clock_ms(),
                          .n = (int)config->workers,
                          .looker = -1,
                          .last_looker = -1,
                          .lock = PTHREAD_MUTEX_INITIALIZER};
    crew->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    bool good = crew->stop_fd >= 0;
    for (int i = 0; i < crew->n; i++) {
        crew->members[i].wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        good &= crew->members[i].wake_fd >= 0;
        snprintf(crew->members[i].trouble, sizeof crew->members[i].trouble, "starting");
        atomic_store(&crew->members[i].beat, clock_ms());
    }
    return good ? OK : error_fatal(err, "cannot make an event descriptor: %s", strerror(errno));
}

void crew_done(struct crew *crew)
{
    for (int i = 0; i < crew->n; i++)
        close(crew->members[i].wake_fd);
    close(crew->stop_fd);
    free(crew->figures);
}

void crew_stop(struct crew *crew)
{
    atomic_store(&crew->stopping, true);
    signal_fd(crew->stop_fd); /* nobody reads it, so it wakes everybody who polls it */
}

bool crew_take_look(struct crew *crew, int worker, int64_t patience_ms)
{
    pthread_mutex_lock(&crew->lock);
    bool free = crew->looker < 0 && (crew->last_looker == worker || clock_ms() - crew->look_dropped >= patience_ms);
    if (free)
        crew->looker = crew->last_looker = worker;
    bool mine = crew->looker == worker;
    pthread_mutex_unlock(&crew->lock);
    return mine;
}

void crew_drop_look(struct crew *crew, int worker)
{
    pthread_mutex_lock(&crew->lock);
    if (crew->looker == worker) {
        crew->looker = -1;
        crew->look_dropped = clock_ms();
    }
    pthread_mutex_unlock(&crew->lock);
}

void crew_wake_others(struct crew *crew, int worker)
{
    for (int i = 0; i < crew->n; i++)
        if (i != worker)
            signal_fd(crew->members[i].wake_fd);
}

void crew_hear(struct crew *crew, int worker)
{
    uint64_t count;
    while (read(crew->members[worker].wake_fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

void crew_beat(struct crew *crew, int worker, int64_t step_ms)
{
    int64_t now = clock_ms();
    atomic_store(&crew->members[worker].beat, now);
    atomic_store(&crew->members[worker].busy_until, now + step_ms);
}

void crew_lanes(struct crew *crew, int worker, int lanes)
{
    pthread_mutex_lock(&crew->lock);
    crew->members[worker].lanes = lanes;
    pthread_mutex_unlock(&crew->lock);
}

void crew_trouble(struct crew *crew, int worker, const char *trouble)
{
    pthread_mutex_lock(&crew->lock);
    struct crew_member *member = &crew->members[worker];
    snprintf(member->trouble, sizeof member->trouble, "%s", trouble ? trouble : "");
    member->paused = trouble != NULL;
    pthread_mutex_unlock(&crew->lock);
}

static bool beats(struct crew_member *member, int64_t now)
{
    return now <= atomic_load(&member->busy_until) + BEAT_SLACK_MS || now <= atomic_load(&member->beat) + BEAT_SLACK_MS;
}

/* Caller holds the lock. */
static bool member_ready(struct crew_member *member, char *ret, size_t size)
{
    snprintf(ret, size, "%s", member->trouble);
    if (ret[0] == '\0' && !beats(member, clock_ms()))
        snprintf(ret, size, "a worker hangs");
    return ret[0] == '\0';
}

bool crew_ready(struct crew *crew, char *ret, size_t size)
{
    bool ready = !crew_stopping(crew);
    snprintf(ret, size, "%s", ready ? "" : "stopping");
    pthread_mutex_lock(&crew->lock);
    for (int i = 0; i < crew->n && ready; i++)
        ready = member_ready(&crew->members[i], ret, size);
    pthread_mutex_unlock(&crew->lock);
    return ready;
}

int crew_lanes_held(struct crew *crew)
{
    int lanes = 0;
    pthread_mutex_lock(&crew->lock);
    for (int i = 0; i < crew->n; i++)
        lanes += crew->members[i].lanes;
    pthread_mutex_unlock(&crew->lock);
    return lanes;
}

bool crew_paused(struct crew *crew)
{
    bool paused = false;
    pthread_mutex_lock(&crew->lock);
    for (int i = 0; i < crew->n; i++)
        paused |= crew->members[i].paused;
    pthread_mutex_unlock(&crew->lock);
    return paused;
}

bool crew_alive(struct crew *crew)
{
    int64_t now = clock_ms();
    for (int i = 0; i < crew->n; i++)
        if (!beats(&crew->members[i], now))
            return false;
    return true;
}

void crew_post(struct crew *crew, char *figures)
{
    pthread_mutex_lock(&crew->lock);
    char *old = crew->figures;
    crew->figures = figures;
    crew->figures_ms = clock_ms();
    pthread_mutex_unlock(&crew->lock);
    free(old);
}

double crew_figures_age(struct crew *crew)
{
    pthread_mutex_lock(&crew->lock);
    double age = (double)(clock_ms() - crew->figures_ms) / 1e3;
    pthread_mutex_unlock(&crew->lock);
    return age;
}

void crew_status(struct crew *crew, struct strbuf *out)
{
    static const char unknown[] =
        "\"pending\":null,\"pending_capped\":null,\"oldest_pending_seconds\":null,\"failed\":null,"
        "\"held\":null,\"dead\":null,\"parked\":null";
    char reason[sizeof crew->members[0].trouble];
    bool ready = crew_ready(crew, reason, sizeof reason);
    strbuf_addf(out, "{\"ready\":%s,\"reason\":", ready ? "true" : "false");
    strbuf_add_json(out, reason);
    strbuf_add(out, ",\"workers\":[");
    pthread_mutex_lock(&crew->lock);
    for (int i = 0; i < crew->n; i++) {
        ready = member_ready(&crew->members[i], reason, sizeof reason);
        strbuf_addf(out, "%s{\"worker\":%d,\"ready\":%s,\"reason\":", i > 0 ? "," : "", i, ready ? "true" : "false");
        strbuf_add_json(out, reason);
        strbuf_addf(out, ",\"lanes\":%d}", crew->members[i].lanes);
    }
    strbuf_addf(out, "],%s}", crew->figures ? crew->figures : unknown);
    pthread_mutex_unlock(&crew->lock);
}
