#include "base/buf.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

void gr_buf_append(gr_buf *b, const void *bytes, size_t n)
{
  if (b->failed) return;
  if (n > SIZE_MAX - b->len - 1 || !gr_grow((void **)&b->data, &b->cap, b->len + n + 1, 1)) {
    b->failed = true;
    return;
  }
  if (n) memcpy(b->data + b->len, bytes, n);
  b->len += n;
  b->data[b->len] = 0;
}

void gr_buf_puts(gr_buf *b, const char *s) { gr_buf_append(b, s, strlen(s)); }

void gr_buf_putc(gr_buf *b, char c) { gr_buf_append(b, &c, 1); }

void gr_buf_printf(gr_buf *b, const char *fmt, ...)
{
  char small[256];
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int n = vsnprintf(small, sizeof small, fmt, args);
  va_end(args);
  if (n >= 0 && (size_t)n < sizeof small) {
    gr_buf_append(b, small, (size_t)n);
  } else if (n >= 0) {
    char *big = gr_alloc((size_t)n + 1);
    if (big) {
      vsnprintf(big, (size_t)n + 1, fmt, again);
      gr_buf_append(b, big, (size_t)n);
      gr_free(big);
    } else {
      b->failed = true;
    }
  }
  va_end(again);
}

void gr_buf_clear(gr_buf *b)
{
  b->len = 0;
  b->failed = false;
  if (b->data) b->data[0] = 0;
}

void gr_buf_free(gr_buf *b)
{
  gr_free(b->data);
  *b = (gr_buf){ 0 };
}
