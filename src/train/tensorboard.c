#define _DEFAULT_SOURCE
#include "train/tensorboard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"

struct gr_tensorboard {
  int fd;
  char *path;
  gr_buf event, record;
};

/* ---- CRC-32C ---- */

uint32_t gr_crc32c(const void *bytes, size_t n)
{
  const unsigned char *p = bytes;
  uint32_t crc = 0xffffffffu;
  for (size_t i = 0; i < n; i++) {
    crc ^= p[i];
    for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0x82f63b78u & -(crc & 1));
  }
  return ~crc;
}

/* Rotated and shifted, so that a checksum of data that holds checksums is not weak. */
static uint32_t masked(const void *bytes, size_t n)
{
  uint32_t crc = gr_crc32c(bytes, n);
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* ---- protocol-buffer encoding: a field is key = number * 8 + type, then the value ---- */

enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_varint(gr_buf *b, uint64_t v)
{
  for (; v >= 0x80; v >>= 7) gr_buf_putc(b, (char)(v | 0x80));
  gr_buf_putc(b, (char)v);
}

static void put_key(gr_buf *b, unsigned field, unsigned type) { put_varint(b, field * 8 + type); }

static void put_le(gr_buf *b, uint64_t v, int bytes)
{
  for (int i = 0; i < bytes; i++) gr_buf_putc(b, (char)(v >> 8 * i));
}

static void put_double(gr_buf *b, unsigned field, double v)
{
  uint64_t bits;
  memcpy(&bits, &v, sizeof bits);
  put_key(b, field, FIXED64);
  put_le(b, bits, 8);
}

static void put_float(gr_buf *b, unsigned field, float v)
{
  uint32_t bits;
  memcpy(&bits, &v, sizeof bits);
  put_key(b, field, FIXED32);
  put_le(b, bits, 4);
}

static void put_bytes(gr_buf *b, unsigned field, const void *bytes, size_t n)
{
  put_key(b, field, BYTES);
  put_varint(b, n);
  gr_buf_append(b, bytes, n);
}

static void begin_event(gr_buf *b, uint64_t step)
{
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  gr_buf_clear(b);
  put_double(b, 1, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
  put_key(b, 2, VARINT);
  put_varint(b, step);
}

/* ---- records ---- */

/* One write a record: a reader that watches the file sees whole ones. */
static gr_status write_record(gr_tensorboard *t, gr_error *e)
{
  gr_buf *r = &t->record;
  gr_buf_clear(r);
  put_le(r, t->event.len, 8);
  if (!r->failed) put_le(r, masked(r->data, 8), 4);
  gr_buf_append(r, t->event.data, t->event.len);
  if (!t->event.failed) put_le(r, masked(t->event.data, t->event.len), 4);
  if (r->failed || t->event.failed) return gr_fail_memory(e, t->event.len);
  for (size_t at = 0; at < r->len;) {
    ssize_t n = write(t->fd, r->data + at, r->len - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return gr_fail_errno(e, errno, "write", t->path);
    at += (size_t)n;
  }
  return GR_OK;
}

gr_status gr_tensorboard_add(gr_tensorboard *t, uint64_t step, const gr_scalar *scalars, size_t n, gr_error *e)
{
  gr_buf value = { 0 }, summary = { 0 };
  for (size_t i = 0; i < n; i++) { /* Summary.value = 1: Value { tag = 1; simple_value = 2 } */
    gr_buf_clear(&value);
    put_bytes(&value, 1, scalars[i].tag, strlen(scalars[i].tag));
    put_float(&value, 2, (float)scalars[i].value);
    if (!value.failed) put_bytes(&summary, 1, value.data, value.len);
    summary.failed |= value.failed;
  }
  begin_event(&t->event, step);
  if (!summary.failed) put_bytes(&t->event, 5, summary.data, summary.len);
  t->event.failed |= summary.failed;
  gr_buf_free(&value);
  gr_buf_free(&summary);
  return write_record(t, e);
}

/* ---- files ---- */

static const char prefix[] = "events.out.tfevents.";

static void remove_events(const char *folder)
{
  DIR *d = opendir(folder);
  if (!d) return;
  for (struct dirent *entry; (entry = readdir(d));)
    if (strncmp(entry->d_name, prefix, sizeof prefix - 1) == 0) unlinkat(dirfd(d), entry->d_name, 0);
  closedir(d);
}

/* TensorBoard reads the files of a folder in the order of their names, which begin with the second they were made in. */
static gr_status create_file(gr_tensorboard *t, const char *folder, gr_error *e)
{
  char host[65] = "host";
  gethostname(host, sizeof host - 1);
  gr_buf path = { 0 };
  for (int i = 0; i < 1000 && t->fd < 0; i++) {
    gr_buf_clear(&path);
    gr_buf_printf(&path, "%s/%s%010lld.%s.%ld.%03d", folder, prefix, (long long)time(NULL), host, (long)getpid(), i);
    if (path.failed) break;
    t->fd = open(path.data, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (t->fd < 0 && errno != EEXIST) break;
  }
  if (path.failed) {
    gr_buf_free(&path);
    return gr_fail_memory(e, strlen(folder) + 128);
  }
  t->path = path.data;
  return t->fd < 0 ? gr_fail_errno(e, errno, "create", t->path) : GR_OK;
}

static gr_status begin_file(gr_tensorboard *t, uint64_t first_step, gr_error *e)
{
  static const char version[] = "brain.Event:2";
  begin_event(&t->event, 0);
  put_bytes(&t->event, 3, version, sizeof version - 1);
  GR_TRY(write_record(t, e));
  if (!first_step) return GR_OK;
  begin_event(&t->event, first_step);
  static const char start[] = { 1 * 8 + VARINT, 1 }; /* SessionLog { status = 1: START } */
  put_bytes(&t->event, 7, start, sizeof start);
  return write_record(t, e);
}

gr_status gr_tensorboard_open(gr_tensorboard **out, const char *folder, uint64_t first_step, gr_error *e)
{
  *out = NULL;
  if (mkdir(folder, 0777) < 0 && errno != EEXIST) return gr_fail_errno(e, errno, "create the folder", folder);
  gr_tensorboard *t = gr_calloc(1, sizeof *t);
  if (!t) return gr_fail_memory(e, sizeof *t);
  t->fd = -1;
  if (!first_step) remove_events(folder);
  gr_status s = create_file(t, folder, e);
  if (s == GR_OK) s = begin_file(t, first_step, e);
  if (s != GR_OK) {
    gr_tensorboard_close(t);
    return s;
  }
  *out = t;
  return GR_OK;
}

void gr_tensorboard_close(gr_tensorboard *t)
{
  if (!t) return;
  if (t->fd >= 0) close(t->fd);
  gr_free(t->path);
  gr_buf_free(&t->event);
  gr_buf_free(&t->record);
  gr_free(t);
}
