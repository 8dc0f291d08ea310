/* The system's clock as a process sees it, moved by what the file ANBAR_TEST_CLOCK holds: seconds, as a
   64-bit number. Loaded before libc (LD_PRELOAD). The clock that only counts up stays. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t nothing;
static volatile int64_t *moved = &nothing;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("ANBAR_TEST_CLOCK");
    int file = path ? open(path, O_RDONLY) : -1;
    real = dlsym(RTLD_NEXT, "clock_gettime");
    if (file >= 0) {
        void *seen = mmap(0, sizeof *moved, PROT_READ, MAP_SHARED, file, 0);
        if (seen != MAP_FAILED)
            moved = seen;
        close(file);
    }
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    if (!real)
        real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        now->tv_sec += *moved;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec exact;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return result;
}

time_t time(time_t *into)
{
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (into)
        *into = exact.tv_sec;
    return exact.tv_sec;
}
