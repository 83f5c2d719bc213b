/* Makes the host's clocks jump for one program (LD_PRELOAD). The file $RIG_CLOCK has two numbers of seconds: the first is added
 * to whatever the program is told about the time of day, the second to its monotonic clock. Waits until a time of day mean that
 * time, so those are shifted back; libfaketime does not see the C11 ones that librdkafka uses, and then waits of a second last
 * as long as the jump. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>

static const volatile int64_t zero[2], *offset = zero;

__attribute__((constructor)) static void map_offset(void)
{
    int fd = open(getenv("RIG_CLOCK"), O_RDONLY | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof zero, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        abort();
    offset = map;
}

#define REAL(function) ((__typeof__(&function))dlsym(RTLD_NEXT, #function))

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = REAL(clock_gettime)(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)
        now->tv_sec += offset[0];
    if (clock == CLOCK_MONOTONIC)
        now->tv_sec += offset[1];
    return result;
}

int timespec_get(struct timespec *now, int base)
{
    return clock_gettime(CLOCK_REALTIME, now) == 0 ? base : 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int result = REAL(gettimeofday)(now, zone);
    now->tv_sec += offset[0];
    return result;
}

time_t time(time_t *ret)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (ret)
        *ret = now.tv_sec;
    return now.tv_sec;
}

int cnd_timedwait(cnd_t *restrict cnd, mtx_t *restrict mtx, const struct timespec *restrict until)
{
    struct timespec real = {until->tv_sec - offset[0], until->tv_nsec};
    return REAL(cnd_timedwait)(cnd, mtx, &real);
}
