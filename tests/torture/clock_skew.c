/* Loaded before the C library (LD_PRELOAD). It adds EMTC_STORM_SKEW_S seconds to the wall clock of a process and its children.
 * CLOCK_MONOTONIC and the file times of the kernel are not changed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static long skew_s;

__attribute__((constructor)) static void begin(void) {
  const char *text = getenv("EMTC_STORM_SKEW_S");
  skew_s = text ? atol(text) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int code = real(clock, now);
  if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew_s;
  return code;
}

int gettimeofday(struct timeval *now, void *zone) {
  struct timespec precise;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
  now->tv_sec = precise.tv_sec, now->tv_usec = precise.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *where) {
  struct timespec now;
  if (clock_gettime(CLOCK_REALTIME, &now)) return (time_t)-1;
  if (where) *where = now.tv_sec;
  return now.tv_sec;
}
