/* Loaded before the C library (LD_PRELOAD). It records what a disk has stored of the files in one folder.
 * The folder is EMTC_POWER_CUT_FOLDER. A sync of a file copies its content to EMTC_POWER_CUT_DISK, under the number of its
 * inode, and does not wait for the real disk. A file that was never synced has no copy. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REAL(type, name, ...) ((type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

static int is_inside(const char *path) {
  const char *folder = getenv("EMTC_POWER_CUT_FOLDER");
  return folder && path && !strncmp(path, folder, strlen(folder));
}

static void write_place(char *place, const char *name, unsigned long number) {
  snprintf(place, PATH_MAX, "%s/%s%lu", getenv("EMTC_POWER_CUT_DISK"), name, number);
}

/* Copy a file to the disk. Copies are made one after the other, so an older content never replaces a newer one. */
static int store(const char *path, unsigned long inode) {
  char place[PATH_MAX], temporary[PATH_MAX], block[1 << 16];
  ssize_t n;
  write_place(place, "lock", 0);
  int lock = open(place, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  flock(lock, LOCK_EX);
  write_place(temporary, "new", syscall(SYS_gettid));
  write_place(place, "", inode);
  int from = open(path, O_RDONLY | O_CLOEXEC), to = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  int failed = from < 0 || to < 0;
  while (!failed && (n = read(from, block, sizeof block)) > 0) failed = write(to, block, n) != n;
  if (from >= 0) close(from);
  if (to >= 0) close(to);
  if (!failed) REAL(int, rename, const char *, const char *)(temporary, place);
  close(lock);
  return failed ? -1 : 0;
}

/* Sync one file. Return 1 if it is not a file in the folder. */
static int sync_inside(int fd) {
  char link[64], path[PATH_MAX];
  struct stat status;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 1;
  path[n] = 0;
  if (!is_inside(path) || fstat(fd, &status)) return 1;
  return S_ISREG(status.st_mode) && status.st_nlink ? store(link, status.st_ino) : 0;  /* a deleted file has no links */
}

int fsync(int fd) {
  int result = sync_inside(fd);
  return result == 1 ? REAL(int, fsync, int)(fd) : result;
}

int fdatasync(int fd) {
  int result = sync_inside(fd);
  return result == 1 ? REAL(int, fdatasync, int)(fd) : result;
}

/* Forget the copy of a file that was deleted: another file may get the same number. */
static unsigned long find_inode(const char *path) {
  struct stat status;
  return is_inside(path) && !lstat(path, &status) && status.st_nlink == 1 ? status.st_ino : 0;
}

static void forget(unsigned long inode) {
  char place[PATH_MAX];
  if (!inode) return;
  write_place(place, "", inode);
  REAL(int, unlink, const char *)(place);
}

int unlink(const char *path) {
  unsigned long inode = find_inode(path);
  int result = REAL(int, unlink, const char *)(path);
  if (!result) forget(inode);
  return result;
}

int rename(const char *from, const char *to) {
  unsigned long inode = find_inode(to);
  int result = REAL(int, rename, const char *, const char *)(from, to);
  if (!result) forget(inode);
  return result;
}
