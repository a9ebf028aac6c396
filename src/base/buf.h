/* A growable byte string. Appends that fail for want of memory set `failed` and do nothing: check it once, at the end. */
#ifndef GR_BASE_BUF_H
#define GR_BASE_BUF_H
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct gr_buf {
  char *data; /* NUL-terminated whenever it is not NULL; len does not count the NUL */
  size_t len, cap;
  bool failed;
} gr_buf;

void gr_buf_append(gr_buf *b, const void *bytes, size_t n);
void gr_buf_puts(gr_buf *b, const char *s);
void gr_buf_putc(gr_buf *b, char c);
void gr_buf_printf(gr_buf *b, const char *fmt, ...) GR_PRINTF(2, 3);
void gr_buf_clear(gr_buf *b); /* len = 0, memory kept, failed reset */
void gr_buf_free(gr_buf *b);

#endif
