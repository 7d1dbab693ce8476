/* Loaded before the C library (LD_PRELOAD). Every request for a file lock fails, as on a network file system without locks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>

static int call(const char *name, int file, int command, void *argument) {
  if (command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK || command == F_OFD_SETLKW) {
    errno = ENOLCK;
    return -1;
  }
  int (*real)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, name);
  return real(file, command, argument);
}

#define REPLACE(name)                         \
  int name(int file, int command, ...) {      \
    va_list arguments;                        \
    va_start(arguments, command);             \
    void *argument = va_arg(arguments, void *); \
    va_end(arguments);                        \
    return call(#name, file, command, argument); \
  }

REPLACE(fcntl)
REPLACE(fcntl64)
