#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

const char *gr_status_name(gr_status status)
{
  switch (status) {
  case GR_OK: return "ok";
  case GR_ERR_USAGE: return "usage";
  case GR_ERR_MEMORY: return "memory";
  case GR_ERR_IO: return "io";
  case GR_ERR_FORMAT: return "format";
  case GR_ERR_UNSUPPORTED: return "unsupported";
  case GR_ERR_MISMATCH: return "mismatch";
  case GR_ERR_NUMERIC: return "numeric";
  case GR_ERR_DEVICE: return "device";
  case GR_ERR_CANCELLED: return "cancelled";
  }
  return "unknown";
}

/* Length of a well-formed UTF-8 sequence at p (1..4), or 0. Overlong forms, surrogates and values past U+10FFFF are not. */
static size_t utf8_length(const unsigned char *p)
{
  static const unsigned char low[] = { 0x80, 0x80, 0xa0, 0x90 };
  if (p[0] < 0x80) return 1;
  if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
  size_t n = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
  unsigned char first_low = 0x80, first_high = 0xbf;
  if (p[0] == 0xe0) first_low = low[2];
  if (p[0] == 0xed) first_high = 0x9f;
  if (p[0] == 0xf0) first_low = low[3];
  if (p[0] == 0xf4) first_high = 0x8f;
  if (p[1] < first_low || p[1] > first_high) return 0;
  for (size_t i = 2; i < n; i++)
    if (p[i] < 0x80 || p[i] > 0xbf) return 0;
  return n;
}

/* Copies src to dst with control bytes and broken UTF-8 written as \xNN; never splits a sequence. */
static void copy_printable(char *dst, size_t size, const char *src)
{
  size_t used = 0;
  for (const unsigned char *p = (const unsigned char *)src; *p;) {
    size_t n = *p < 0x20 || *p == 0x7f ? 0 : utf8_length(p);
    size_t need = n ? n : 4;
    if (used + need + 1 > size) break;
    if (n) memcpy(dst + used, p, n);
    else snprintf(dst + used, 5, "\\x%02x", *p);
    used += need;
    p += n ? n : 1;
  }
  dst[used] = 0;
}

gr_status gr_fail(gr_error *e, gr_status status, const char *fmt, ...)
{
  if (!e) return status;
  char raw[sizeof e->text];
  va_list args;
  va_start(args, fmt);
  vsnprintf(raw, sizeof raw, fmt, args);
  va_end(args);
  copy_printable(e->text, sizeof e->text, raw);
  e->status = status;
  return status;
}

gr_status gr_error_context(gr_error *e, const char *fmt, ...)
{
  if (!e || e->status == GR_OK) return e ? e->status : GR_OK;
  char raw[sizeof e->text], joined[2 * sizeof e->text + 2];
  va_list args;
  va_start(args, fmt);
  vsnprintf(raw, sizeof raw, fmt, args);
  va_end(args);
  snprintf(joined, sizeof joined, "%s: %s", raw, e->text);
  copy_printable(e->text, sizeof e->text, joined);
  return e->status;
}

gr_status gr_fail_memory(gr_error *e, size_t bytes)
{
  return gr_fail(e, GR_ERR_MEMORY, "out of memory: could not allocate %zu bytes", bytes);
}

gr_status gr_fail_errno(gr_error *e, int errno_value, const char *verb, const char *path)
{
  char why[128];
#if defined(__GLIBC__) && defined(_GNU_SOURCE)
  const char *text = strerror_r(errno_value, why, sizeof why);
#else
  const char *text = strerror_r(errno_value, why, sizeof why) == 0 ? why : "unknown error";
#endif
  return gr_fail(e, GR_ERR_IO, "cannot %s %s: %s", verb, path, text);
}
