/* C11 threads on top of pthreads, preloaded into ThreadSanitizer builds only.
 *
 * ThreadSanitizer follows pthread_create and pthread mutexes. Debian's librdkafka calls glibc's thrd_, mtx_ and cnd_
 * functions instead, which it does not intercept: threads without a shadow stack crash it. These definitions come first
 * in the symbol order and pass each call on to the pthread function that is intercepted. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <threads.h>
#include <time.h>

_Static_assert(sizeof(mtx_t) >= sizeof(pthread_mutex_t), "a mtx_t has room for a mutex");
_Static_assert(sizeof(cnd_t) >= sizeof(pthread_cond_t), "a cnd_t has room for a condition");

#define MUTEX(m) ((pthread_mutex_t *)(m))
#define COND(c)  ((pthread_cond_t *)(c))

static int result(int error)
{
    switch (error) {
    case 0:
        return thrd_success;
    case EBUSY:
        return thrd_busy;
    case ETIMEDOUT:
        return thrd_timedout;
    case ENOMEM:
        return thrd_nomem;
    default:
        return thrd_error;
    }
}

struct start {
    thrd_start_t function;
    void *arg;
};

static void *run(void *arg)
{
    struct start start = *(struct start *)arg;

    free(arg);
    return (void *)(intptr_t)start.function(start.arg);
}

int thrd_create(thrd_t *thread, thrd_start_t function, void *arg)
{
    struct start *start = malloc(sizeof(*start));
    pthread_t made;

    if (!start)
        return thrd_nomem;
    *start = (struct start){function, arg};
    int error = pthread_create(&made, NULL, run, start);
    if (error)
        free(start);
    else
        *thread = (thrd_t)made;
    return result(error);
}

int thrd_join(thrd_t thread, int *ret)
{
    void *value = NULL;
    int error = pthread_join((pthread_t)thread, &value);

    if (ret)
        *ret = (int)(intptr_t)value;
    return result(error);
}

int thrd_detach(thrd_t thread)
{
    return result(pthread_detach((pthread_t)thread));
}

thrd_t thrd_current(void)
{
    return (thrd_t)pthread_self();
}

int thrd_equal(thrd_t a, thrd_t b)
{
    return pthread_equal((pthread_t)a, (pthread_t)b);
}

void thrd_yield(void)
{
    sched_yield();
}

_Noreturn void thrd_exit(int value)
{
    pthread_exit((void *)(intptr_t)value);
}

int mtx_init(mtx_t *mutex, int type)
{
    pthread_mutexattr_t attr;

    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, type & mtx_recursive ? PTHREAD_MUTEX_RECURSIVE : PTHREAD_MUTEX_NORMAL);
    int error = pthread_mutex_init(MUTEX(mutex), &attr);
    pthread_mutexattr_destroy(&attr);
    return result(error);
}

int mtx_lock(mtx_t *mutex)
{
    return result(pthread_mutex_lock(MUTEX(mutex)));
}

int mtx_trylock(mtx_t *mutex)
{
    return result(pthread_mutex_trylock(MUTEX(mutex)));
}

int mtx_timedlock(mtx_t *restrict mutex, const struct timespec *restrict until)
{
    return result(pthread_mutex_timedlock(MUTEX(mutex), until));
}

int mtx_unlock(mtx_t *mutex)
{
    return result(pthread_mutex_unlock(MUTEX(mutex)));
}

void mtx_destroy(mtx_t *mutex)
{
    pthread_mutex_destroy(MUTEX(mutex));
}

int cnd_init(cnd_t *cond)
{
    return result(pthread_cond_init(COND(cond), NULL));
}

int cnd_signal(cnd_t *cond)
{
    return result(pthread_cond_signal(COND(cond)));
}

int cnd_broadcast(cnd_t *cond)
{
    return result(pthread_cond_broadcast(COND(cond)));
}

int cnd_wait(cnd_t *cond, mtx_t *mutex)
{
    return result(pthread_cond_wait(COND(cond), MUTEX(mutex)));
}

int cnd_timedwait(cnd_t *restrict cond, mtx_t *restrict mutex, const struct timespec *restrict until)
{
    return result(pthread_cond_timedwait(COND(cond), MUTEX(mutex), until));
}

void cnd_destroy(cnd_t *cond)
{
    pthread_cond_destroy(COND(cond));
}
