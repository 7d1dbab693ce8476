/* Loaded before the C library (LD_PRELOAD). It counts the calls that change files in one folder and injects a fault into one.
 * Faults: 0 none, 1 kill before the call, 2 kill after half of the bytes are written, 3 fail with EIO, 4 fail with ENOSPC,
 * 5 delay. Writes to memory maps are not counted, such as SQLite's index of its log, which SQLite rebuilds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum harm { NONE, KILL, TEAR, EIO_ONCE, FULL_ONCE, DELAY };

static char folder[PATH_MAX];
static size_t folder_length;
static long at, seen;
static int harm;

void crash_arm(const char *under, long point, int kind) {
  strncpy(folder, under, sizeof folder - 1);
  folder_length = strlen(folder);
  at = point, harm = kind, seen = 0;
}

long crash_seen(void) { return seen; }

static int is_inside(const char *path) { return folder_length && path && !strncmp(path, folder, folder_length); }

static int is_file_inside(int fd) {
  char link[64], path[PATH_MAX];
  if (!folder_length) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return is_inside(path);
}

/* Return the fault of this call. A fault that kills the process before the call does not return. */
static int strike(int counts) {
  if (!counts || __sync_add_and_fetch(&seen, 1) != at) return NONE;
  if (harm == KILL) raise(SIGKILL);
  if (harm == DELAY) usleep(300000);
  if (harm == EIO_ONCE) errno = EIO;
  if (harm == FULL_ONCE) errno = ENOSPC;
  return harm;
}

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))
#define FAILS(what) ((what) == EIO_ONCE || (what) == FULL_ONCE)

#define WRITES(name, offset_t)                                                                  \
  ssize_t name(int fd, const void *data, size_t size, offset_t offset) {                        \
    int what = strike(is_file_inside(fd));                                                      \
    if (FAILS(what)) return -1;                                                                 \
    if (what != TEAR) return REAL(ssize_t, name, int, const void *, size_t, offset_t)(fd, data, size, offset); \
    REAL(ssize_t, name, int, const void *, size_t, offset_t)(fd, data, size / 2, offset);       \
    raise(SIGKILL);                                                                             \
    return -1;                                                                                  \
  }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)

ssize_t write(int fd, const void *data, size_t size) {
  int what = strike(is_file_inside(fd));
  if (FAILS(what)) return -1;
  if (what == TEAR) {
    REAL(ssize_t, write, int, const void *, size_t)(fd, data, size / 2);
    raise(SIGKILL);
  }
  return REAL(ssize_t, write, int, const void *, size_t)(fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int n) {
  int what = strike(is_file_inside(fd));
  if (FAILS(what)) return -1;
  ssize_t written = REAL(ssize_t, writev, int, const struct iovec *, int)(fd, parts, what == TEAR ? n / 2 : n);
  if (what == TEAR) raise(SIGKILL);
  return written;
}

/* Calls that cannot be half done: with the fault TEAR they are done, and then the process is killed. */
#define WHOLE(counts, call)            \
  int what = strike(counts);           \
  if (FAILS(what)) return -1;          \
  int result = call;                   \
  if (what == TEAR) raise(SIGKILL);    \
  return result;

int fsync(int fd) { WHOLE(is_file_inside(fd), REAL(int, fsync, int)(fd)) }
int fdatasync(int fd) { WHOLE(is_file_inside(fd), REAL(int, fdatasync, int)(fd)) }
int ftruncate(int fd, off_t size) { WHOLE(is_file_inside(fd), REAL(int, ftruncate, int, off_t)(fd, size)) }
int ftruncate64(int fd, off64_t size) { WHOLE(is_file_inside(fd), REAL(int, ftruncate64, int, off64_t)(fd, size)) }
int unlink(const char *path) { WHOLE(is_inside(path), REAL(int, unlink, const char *)(path)) }
int rename(const char *from, const char *to) {
  WHOLE(is_inside(from) || is_inside(to), REAL(int, rename, const char *, const char *)(from, to))
}
int link(const char *from, const char *to) {
  WHOLE(is_inside(from) || is_inside(to), REAL(int, link, const char *, const char *)(from, to))
}
