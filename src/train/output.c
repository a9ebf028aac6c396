#define _DEFAULT_SOURCE
#include "train/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"

/* ---- names ---- */

static size_t stem_length(const char *output)
{
  static const char extension[] = ".gguf";
  size_t n = strlen(output), x = sizeof extension - 1;
  return n > x && strcmp(output + n - x, extension) == 0 ? n - x : n;
}

char *gr_output_beside(const char *output, const char *suffix)
{
  gr_buf b = { 0 };
  gr_buf_append(&b, output, stem_length(output));
  gr_buf_puts(&b, suffix);
  if (!b.failed) return b.data;
  gr_buf_free(&b);
  return NULL;
}

bool gr_output_file(const char *output, size_t i, char **path)
{
  static const char *const suffixes[] = { ".yaml", ".metrics.jsonl", ".metrics.csv" };
  if (i > sizeof suffixes / sizeof *suffixes) return false;
  *path = i ? gr_output_beside(output, suffixes[i - 1]) : gr_strdup(output);
  return true;
}

gr_status gr_output_split(const char *output, gr_output_name *name, gr_error *e)
{
  const char *slash = strrchr(output, '/');
  name->stem = slash ? slash + 1 : output;
  name->stem_n = stem_length(output) - (size_t)(name->stem - output);
  name->folder = slash ? gr_strndup(output, slash == output ? 1 : (size_t)(slash - output)) : gr_strdup(".");
  return name->folder ? GR_OK : gr_fail_memory(e, strlen(output));
}

gr_status gr_output_check(const char *output, gr_error *e)
{
  struct stat st;
  size_t n = strlen(output);
  bool there = stat(output, &st) == 0;
  if ((n > 1 && output[n - 1] == '/') || (there && S_ISDIR(st.st_mode)))
    return gr_file_fail_folder(output, ": -o takes the file to write", "adapter.gguf", GR_ERR_USAGE, e);
  if (there && !S_ISREG(st.st_mode))
    return gr_fail(e, GR_ERR_USAGE, "%s is a device or pipe: -o takes the file to write, such as adapter.gguf", output);
  return gr_file_check_folder(output, "give another -o", e);
}

gr_status gr_output_probe(const char *output, gr_error *e)
{
  gr_file *probe = NULL;
  GR_TRY(gr_file_create(&probe, output, e));
  gr_file_abandon(probe);
  return GR_OK;
}

size_t gr_output_room(const char *output)
{
  gr_output_name name;
  gr_error ignored = { 0 };
  struct statvfs fs;
  if (gr_output_split(output, &name, &ignored) != GR_OK) return SIZE_MAX;
  bool known = statvfs(name.folder, &fs) == 0;
  gr_free(name.folder);
  size_t room = 0;
  return known && gr_mul_size(fs.f_bavail, fs.f_frsize, &room) ? room : SIZE_MAX;
}

/* ---- lock ---- */

struct gr_output_lock {
  int fd;
  char *path;
};

/* The file that is locked must still be the one of that name: its last owner removes it. */
static bool same_file(int fd, const char *path)
{
  struct stat open_one, named;
  return fstat(fd, &open_one) == 0 && stat(path, &named) == 0 && open_one.st_dev == named.st_dev && open_one.st_ino == named.st_ino;
}

static gr_status take(gr_output_lock *lock, const char *output, gr_error *e)
{
  struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
  for (int tries = 0; tries < 100; tries++) {
    lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock->fd < 0) return gr_fail_errno(e, errno, "create", lock->path);
    if (fcntl(lock->fd, F_SETLK, &whole) < 0 && (errno == EACCES || errno == EAGAIN)) break;
    if (same_file(lock->fd, lock->path)) return GR_OK;
    close(lock->fd);
    lock->fd = -1;
  }
  if (lock->fd >= 0) close(lock->fd);
  lock->fd = -1;
  return gr_fail(e, GR_ERR_MISMATCH, "another process is training into %s: wait for it, or give another -o", output);
}

gr_status gr_output_lock_take(gr_output_lock **out, const char *output, gr_error *e)
{
  *out = NULL;
  gr_output_lock *lock = gr_calloc(1, sizeof *lock);
  if (!lock) return gr_fail_memory(e, sizeof *lock);
  lock->fd = -1;
  lock->path = gr_output_beside(output, ".lock");
  gr_status s = lock->path ? take(lock, output, e) : gr_fail_memory(e, strlen(output));
  if (s != GR_OK) {
    gr_free(lock->path);
    gr_free(lock);
    return s;
  }
  *out = lock;
  return GR_OK;
}

void gr_output_lock_free(gr_output_lock *lock)
{
  if (!lock) return;
  unlink(lock->path);
  close(lock->fd);
  gr_free(lock->path);
  gr_free(lock);
}

/* ---- leftovers ---- */

/* gr_file writes NAME.tmp-PID-N beside NAME. */
static bool left_over(const char *name)
{
  const char *tail = strstr(name, ".tmp-");
  if (!tail) return false;
  char *end;
  long pid = strtol(tail + 5, &end, 10);
  return pid > 0 && *end == '-' && kill((pid_t)pid, 0) < 0 && errno == ESRCH;
}

void gr_output_sweep(const char *output)
{
  gr_output_name name;
  gr_error ignored = { 0 };
  if (gr_output_split(output, &name, &ignored) != GR_OK) return;
  DIR *d = opendir(name.folder);
  for (struct dirent *entry; d && (entry = readdir(d));)
    if (strncmp(entry->d_name, name.stem, name.stem_n) == 0 && entry->d_name[name.stem_n] == '.' && left_over(entry->d_name + name.stem_n))
      unlinkat(dirfd(d), entry->d_name, 0);
  if (d) closedir(d);
  gr_free(name.folder);
}
