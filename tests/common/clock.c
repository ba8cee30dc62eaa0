// Preloaded into a server: shifts its wall clock by the seconds and then the milliseconds in the file that
// CLOCK_SHIFT names, which may change at any time. Time that only runs on stays as it is.
//
// libfaketime does not do here: Redis' allocator asks for the time before libfaketime can look the
// real function up, and that asks the allocator. These functions ask the kernel.

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void open_shift(void) {
    int file = open(getenv("CLOCK_SHIFT"), O_RDONLY);
    void *page = file < 0 ? MAP_FAILED : mmap(0, 2 * sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED) _exit(99);
    close(file);
    shift = page;
}

// Whether this is the thread of MariaDB's timers, the one with a stack of 64 KiB. It keeps the true time when the others are
// beyond 2038, because the last entry of its queue is due then, has no function to call, and ends the server.
static int is_timer(void) {
    static __thread size_t stack;
    pthread_attr_t attributes;
    if (!stack && !pthread_getattr_np(pthread_self(), &attributes)) {
        pthread_attr_getstacksize(&attributes, &stack);
        pthread_attr_destroy(&attributes);
    }
    return stack == 64 << 10;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    int is_wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (!failed && is_wall && shift && !(shift[0] > INT32_MAX && is_timer())) {
        now->tv_nsec += shift[1] % 1000 * 1000000;
        now->tv_sec += shift[0] + shift[1] / 1000 + now->tv_nsec / 1000000000;
        now->tv_nsec %= 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec time;
    int failed = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
