/* A shared object for LD_PRELOAD: makes the n-th call of a kind fail, or kills the process in the middle of it.
 *
 *   GRAFT_FAULT=KIND:N:EFFECT   KIND: alloc (malloc and its kin) or io (open, fopen, opendir, read, write, fsync, mmap of a file,
 *                               rename, mkdir). EFFECT: an errno by name (EIO, ENOSPC, ENOMEM), "+" behind it meaning all later
 *                               calls too; or kill: SIGKILL after half of a write, after an open, before anything else; or stop:
 *                               SIGSTOP before this call and each later one, which then go on as ever. N from 1; 0 only counts.
 *   GRAFT_FAULT_PATH=TEXT       io: counts only calls on files whose path holds TEXT
 *   GRAFT_FAULT_LOG=FILE        appends "hit KIND N CALL PATH" when it strikes and "seen KIND N" at the end */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

enum kind { NONE, ALLOC, IO };

static struct {
  enum kind kind;
  long at;
  bool kill, stop, rest;
  int error;
  const char *path, *log;
  atomic_long seen;
} fault;

static const char *kind_name(void) { return fault.kind == ALLOC ? "alloc" : "io"; }

/* Straight to the kernel: this must not count, allocate or fail. */
static void log_line(const char *text, size_t n)
{
  long fd = fault.log ? syscall(SYS_openat, AT_FDCWD, fault.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666) : -1;
  if (fd < 0) return;
  (void)!syscall(SYS_write, fd, text, n);
  syscall(SYS_close, fd);
}

__attribute__((constructor)) static void begin(void)
{
  const char *spec = getenv("GRAFT_FAULT");
  static const struct {
    const char *name;
    int error;
  } errors[] = { { "EIO", EIO }, { "ENOSPC", ENOSPC }, { "ENOMEM", ENOMEM }, { "EACCES", EACCES } };
  if (!spec) return;
  enum kind kind = strncmp(spec, "alloc:", 6) == 0 ? ALLOC : strncmp(spec, "io:", 3) == 0 ? IO : NONE;
  char *end;
  fault.at = strtol(strchr(spec, ':') ? strchr(spec, ':') + 1 : "0", &end, 10);
  fault.kill = strcmp(end, ":kill") == 0;
  fault.stop = fault.rest = strcmp(end, ":stop") == 0;
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    size_t n = strlen(errors[i].name);
    if (*end == ':' && strncmp(end + 1, errors[i].name, n) == 0) {
      fault.error = errors[i].error;
      fault.rest = end[n + 1] == '+';
    }
  }
  fault.path = getenv("GRAFT_FAULT_PATH");
  fault.log = getenv("GRAFT_FAULT_LOG");
  fault.kind = kind; /* last: from here on calls count */
}

__attribute__((destructor)) static void end(void)
{
  char line[80];
  if (fault.kind == NONE) return;
  int n = snprintf(line, sizeof line, "seen %s %ld\n", kind_name(), (long)fault.seen);
  fault.kind = NONE;
  log_line(line, (size_t)n);
}

/* True when this call is the one. */
static bool strikes(enum kind kind, const char *call, const char *path)
{
  if (fault.kind != kind || (fault.path && (!path || !strstr(path, fault.path)))) return false;
  long n = ++fault.seen;
  bool hit = fault.at > 0 && (n == fault.at || (fault.rest && n > fault.at));
  if (!hit) return false;
  char line[600];
  int used = snprintf(line, sizeof line, "hit %s %ld %s %s\n", kind_name(), n, call, path ? path : "");
  log_line(line, used < (int)sizeof line ? (size_t)used : sizeof line - 1);
  if (fault.stop) kill(getpid(), SIGSTOP);
  else errno = fault.error;
  return !fault.stop;
}

static bool strikes_fd(const char *call, int fd)
{
  char link[64], path[512];
  if (fault.kind != IO) return false;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  path[n > 0 ? n : 0] = 0;
  if (path[0] != '/') return false; /* pipes, terminals */
  return strikes(IO, call, path);
}

static void die(void)
{
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* ---- memory ---- */

void *malloc(size_t n) { return strikes(ALLOC, "malloc", NULL) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return strikes(ALLOC, "calloc", NULL) ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return strikes(ALLOC, "realloc", NULL) ? NULL : __libc_realloc(p, n); }
void *aligned_alloc(size_t align, size_t n) { return strikes(ALLOC, "aligned_alloc", NULL) ? NULL : __libc_memalign(align, n); }

/* ---- files ---- */

int open(const char *path, int flags, ...)
{
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list args;
    va_start(args, flags);
    mode = va_arg(args, mode_t);
    va_end(args);
  }
  bool hit = strikes(IO, "open", path);
  if (hit && !fault.kill) return -1;
  int fd = REAL(open)(path, flags, mode);
  if (hit) die();
  return fd;
}

FILE *fopen(const char *path, const char *mode)
{
  if (!strikes(IO, "fopen", path)) return REAL(fopen)(path, mode);
  if (fault.kill) die();
  return NULL;
}

DIR *opendir(const char *path)
{
  if (!strikes(IO, "opendir", path)) return REAL(opendir)(path);
  if (fault.kill) die();
  return NULL;
}

ssize_t read(int fd, void *to, size_t n)
{
  if (!strikes_fd("read", fd)) return REAL(read)(fd, to, n);
  if (fault.kill) die();
  return -1;
}

ssize_t write(int fd, const void *from, size_t n)
{
  if (!strikes_fd("write", fd)) return REAL(write)(fd, from, n);
  if (fault.kill) {
    (void)!REAL(write)(fd, from, n / 2);
    die();
  }
  return -1;
}

int fsync(int fd)
{
  if (!strikes_fd("fsync", fd)) return REAL(fsync)(fd);
  if (fault.kill) die();
  return -1;
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
  if (fd < 0 || !strikes_fd("mmap", fd)) return REAL(mmap)(at, n, protection, flags, fd, offset);
  if (fault.kill) die();
  return MAP_FAILED;
}

int rename(const char *from, const char *to)
{
  if (!strikes(IO, "rename", from)) return REAL(rename)(from, to);
  if (fault.kill) die();
  return -1;
}

int mkdir(const char *path, mode_t mode)
{
  if (!strikes(IO, "mkdir", path)) return REAL(mkdir)(path, mode);
  if (fault.kill) die();
  return -1;
}
