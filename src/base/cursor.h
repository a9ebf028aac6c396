/* A bounds-checked little-endian reader over untrusted bytes. The first read past the end makes it `failed`; every later
 * read returns zero and moves nothing, so a parser checks once per record. */
#ifndef GR_BASE_CURSOR_H
#define GR_BASE_CURSOR_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct gr_cursor {
  const uint8_t *data;
  size_t size, at;
  bool failed;
} gr_cursor;

static inline size_t gr_cursor_left(const gr_cursor *c) { return c->failed ? 0 : c->size - c->at; }

/* n bytes in place, or NULL. */
static inline const uint8_t *gr_cursor_take(gr_cursor *c, size_t n)
{
  if (c->failed || n > c->size - c->at) {
    c->failed = true;
    return NULL;
  }
  const uint8_t *p = c->data + c->at;
  c->at += n;
  return p;
}

static inline uint64_t gr_load_le(const uint8_t *p, size_t n)
{
  uint64_t v = 0;
  for (size_t i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
  return v;
}

static inline uint64_t gr_cursor_le(gr_cursor *c, size_t n)
{
  const uint8_t *p = gr_cursor_take(c, n);
  return p ? gr_load_le(p, n) : 0;
}

static inline uint8_t gr_cursor_u8(gr_cursor *c) { return (uint8_t)gr_cursor_le(c, 1); }
static inline uint16_t gr_cursor_u16(gr_cursor *c) { return (uint16_t)gr_cursor_le(c, 2); }
static inline uint32_t gr_cursor_u32(gr_cursor *c) { return (uint32_t)gr_cursor_le(c, 4); }
static inline uint64_t gr_cursor_u64(gr_cursor *c) { return gr_cursor_le(c, 8); }

static inline float gr_cursor_f32(gr_cursor *c)
{
  uint32_t bits = gr_cursor_u32(c);
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline double gr_cursor_f64(gr_cursor *c)
{
  uint64_t bits = gr_cursor_u64(c);
  double d;
  memcpy(&d, &bits, sizeof d);
  return d;
}

#endif
