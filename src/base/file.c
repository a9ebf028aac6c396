#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

static gr_status fail_folder(const char *verb, const char *path, gr_error *e)
{
  return gr_fail(e, GR_ERR_IO, "cannot %s %s: it is a folder, and a file is wanted: name the file in it", verb, path);
}

gr_status gr_map_open(gr_map *m, const char *path, gr_error *e)
{
  *m = (gr_map){ 0 };
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return gr_fail_errno(e, errno, "open", path);
  struct stat st;
  gr_status s = GR_OK;
  if (fstat(fd, &st) < 0) {
    s = gr_fail_errno(e, errno, "read", path);
  } else if (!S_ISREG(st.st_mode)) {
    if (S_ISDIR(st.st_mode)) s = fail_folder("map", path, e);
    else s = gr_fail(e, GR_ERR_IO, "cannot map %s: it is not a regular file", path);
  } else if (st.st_size > 0) {
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) s = gr_fail_errno(e, errno, "map", path);
    else *m = (gr_map){ p, (size_t)st.st_size };
  }
  close(fd);
  return s;
}

void gr_map_close(gr_map *m)
{
  if (m->data) munmap((void *)(uintptr_t)m->data, m->size);
  *m = (gr_map){ 0 };
}

gr_status gr_file_read(const char *path, size_t limit, char **data, size_t *size, gr_error *e)
{
  bool is_stdin = strcmp(path, "-") == 0;
  int fd = is_stdin ? 0 : open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return gr_fail_errno(e, errno, "open", path);
  char *text = NULL;
  size_t used = 0, cap = 0;
  gr_status s = GR_OK;
  for (;;) {
    if (!gr_grow((void **)&text, &cap, used + (64 << 10), 1)) {
      s = gr_fail_memory(e, used + (64 << 10));
      break;
    }
    ssize_t n = read(fd, text + used, cap - used - 1);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      s = errno == EISDIR ? fail_folder("read", path, e) : gr_fail_errno(e, errno, "read", path);
      break;
    }
    if (n == 0) break;
    used += (size_t)n;
    if (used > limit) {
      s = gr_fail(e, GR_ERR_FORMAT, "%s is larger than the limit of %zu bytes", path, limit);
      break;
    }
  }
  if (!is_stdin) close(fd);
  if (s != GR_OK) {
    gr_free(text);
    return s;
  }
  text[used] = 0;
  *data = text;
  *size = used;
  return GR_OK;
}

bool gr_file_exists(const char *path) { return access(path, F_OK) == 0; }

bool gr_file_is_folder(const char *path)
{
  struct stat st;
  return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

gr_status gr_file_fail_folder(const char *path, const char *wanted, const char *example, gr_status status, gr_error *e)
{
  size_t n = strlen(path);
  while (n > 1 && path[n - 1] == '/') n--;
  return gr_fail(e, status, "%s is a folder%s, such as %.*s/%s", path, wanted, (int)n, path, example);
}

gr_status gr_file_check_folder(const char *path, const char *otherwise, gr_error *e)
{
  const char *slash = strrchr(path, '/');
  if (!slash || slash == path) return GR_OK;
  char *folder = gr_strndup(path, (size_t)(slash - path));
  if (!folder) return gr_fail_memory(e, strlen(path));
  gr_status s = GR_OK;
  if (!gr_file_is_folder(folder))
    s = gr_fail(e, GR_ERR_IO, "cannot create %s: there is no folder %s: make it, or %s", path, folder, otherwise);
  gr_free(folder);
  return s;
}

bool gr_file_same(const char *a, const char *b)
{
  struct stat x, y;
  return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Writes are gathered in a buffer so that a GGUF's many small fields cost few system calls. */
struct gr_file {
  int fd;
  size_t used;
  char *path, *temporary;
  unsigned char buffer[1 << 16];
};

static void file_close(gr_file *f, bool remove_temporary)
{
  if (f->fd >= 0) close(f->fd);
  if (remove_temporary && f->temporary) unlink(f->temporary);
  gr_free(f->path);
  gr_free(f->temporary);
  gr_free(f);
}

/* A rename would put a file in the place of a device. */
static gr_status check_place(const char *path, gr_error *e)
{
  struct stat st;
  if (stat(path, &st) < 0 || S_ISREG(st.st_mode)) return GR_OK;
  return gr_fail(e, GR_ERR_IO, "cannot write %s: it is %s, not a file", path, S_ISDIR(st.st_mode) ? "a folder" : "a device or pipe");
}

/* The file that a link leads to, which is the one to replace, not the link; NULL: no link, or to nothing. Freed with free. */
static char *linked_file(const char *path)
{
  struct stat st;
  return lstat(path, &st) == 0 && S_ISLNK(st.st_mode) ? realpath(path, NULL) : NULL;
}

gr_status gr_file_create(gr_file **out, const char *path, gr_error *e)
{
  GR_TRY(check_place(path, e));
  gr_file *f = gr_calloc(1, sizeof *f);
  if (!f) return gr_fail_memory(e, sizeof *f);
  f->fd = -1;
  char *target = linked_file(path);
  f->path = gr_strdup(target ? target : path);
  free(target);
  size_t n = (f->path ? strlen(f->path) : 0) + 48;
  f->temporary = gr_alloc(n);
  if (!f->path || !f->temporary) {
    file_close(f, false);
    return gr_fail_memory(e, n);
  }
  /* Not mkstemp: that makes the file private, and an adapter is an ordinary file. */
  for (int i = 0; i < 1000 && f->fd < 0; i++) {
    snprintf(f->temporary, n, "%s.tmp-%ld-%d", f->path, (long)getpid(), i);
    f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0 && errno != EEXIST) break;
  }
  if (f->fd < 0) {
    int why = errno;
    gr_status s = why == ENOENT || why == ENOTDIR ? gr_file_check_folder(f->path, "name another file", e) : GR_OK;
    file_close(f, false);
    return s != GR_OK ? s : gr_fail_errno(e, why, "create", path);
  }
  *out = f;
  return GR_OK;
}

static gr_status file_put(gr_file *f, const void *bytes, size_t n, gr_error *e)
{
  const unsigned char *p = bytes;
  while (n) {
    ssize_t w = write(f->fd, p, n < (1u << 30) ? n : (1u << 30));
    if (w < 0 && errno == EINTR) continue;
    if (w < 0) return gr_fail_errno(e, errno, "write", f->path);
    p += w;
    n -= (size_t)w;
  }
  return GR_OK;
}

static gr_status file_flush(gr_file *f, gr_error *e)
{
  size_t n = f->used;
  f->used = 0;
  return n ? file_put(f, f->buffer, n, e) : GR_OK;
}

gr_status gr_file_write(gr_file *f, const void *bytes, size_t n, gr_error *e)
{
  if (n <= sizeof f->buffer - f->used) {
    if (n) memcpy(f->buffer + f->used, bytes, n);
    f->used += n;
    return GR_OK;
  }
  GR_TRY(file_flush(f, e));
  if (n >= sizeof f->buffer) return file_put(f, bytes, n, e);
  memcpy(f->buffer, bytes, n);
  f->used = n;
  return GR_OK;
}

/* The rename itself must reach the disk, or a power cut brings the old file back after we said "saved". */
static void sync_folder(const char *path)
{
  char *folder = gr_strdup(path);
  if (!folder) return;
  char *slash = strrchr(folder, '/');
  if (slash) slash[slash == folder] = 0;
  int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    fsync(fd);
    close(fd);
  }
  gr_free(folder);
}

gr_status gr_file_commit(gr_file *f, gr_error *e)
{
  gr_status s = file_flush(f, e);
  if (s == GR_OK && fsync(f->fd) < 0) s = gr_fail_errno(e, errno, "write", f->path);
  if (s == GR_OK) {
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) < 0) s = gr_fail_errno(e, errno, "write", f->path);
  }
  if (s == GR_OK && rename(f->temporary, f->path) < 0) s = gr_fail_errno(e, errno, "create", f->path);
  if (s == GR_OK) sync_folder(f->path);
  file_close(f, s != GR_OK);
  return s;
}

void gr_file_abandon(gr_file *f)
{
  if (f) file_close(f, true);
}
