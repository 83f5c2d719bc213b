#include "duty.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"

#define BEAT_SLACK_MS 10000

enum result duty_init(struct duty *duty, struct error *err)
{
    *duty = (struct duty){.lock = PTHREAD_MUTEX_INITIALIZER, .trouble = "starting"};
    duty->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    duty_beat(duty, 0);
    return duty->stop_fd >= 0 ? OK : error_fatal(err, "cannot make an event descriptor: %s", strerror(errno));
}

void duty_done(struct duty *duty)
{
    close(duty->stop_fd);
}

void duty_stop(struct duty *duty)
{
    uint64_t one = 1;
    atomic_store(&duty->stopping, true);
    while (write(duty->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
        ; /* nobody reads it, so it wakes whoever polls it */
}

void duty_beat(struct duty *duty, int64_t step_ms)
{
    atomic_store(&duty->busy_until, clock_ms() + step_ms);
}

bool duty_alive(struct duty *duty)
{
    return clock_ms() <= atomic_load(&duty->busy_until) + BEAT_SLACK_MS;
}

void duty_trouble(struct duty *duty, const char *trouble)
{
    pthread_mutex_lock(&duty->lock);
    snprintf(duty->trouble, sizeof duty->trouble, "%s", trouble ? trouble : "");
    pthread_mutex_unlock(&duty->lock);
}

bool duty_ready(struct duty *duty, char *ret, size_t size)
{
    pthread_mutex_lock(&duty->lock);
    snprintf(ret, size, "%s", duty->trouble);
    bool ready = duty->trouble[0] == '\0';
    pthread_mutex_unlock(&duty->lock);
    return ready;
}
