#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <string.h>

#include "base/alloc.h"

struct gr_arena_chunk {
  struct gr_arena_chunk *next;
  size_t used, size;
  alignas(max_align_t) unsigned char data[];
};

enum { CHUNK_BYTES = 64 << 10, ALIGN = alignof(max_align_t) };

void *gr_arena_alloc(gr_arena *a, size_t bytes)
{
  if (bytes > SIZE_MAX / 2) return NULL;
  size_t need = (bytes + ALIGN - 1) / ALIGN * ALIGN;
  struct gr_arena_chunk *c = a->chunk;
  if (!c || c->size - c->used < need) {
    size_t size = need > CHUNK_BYTES ? need : CHUNK_BYTES;
    c = gr_alloc(sizeof *c + size);
    if (!c) return NULL;
    c->next = a->chunk;
    c->used = 0;
    c->size = size;
    a->chunk = c;
  }
  void *p = c->data + c->used;
  c->used += need;
  a->bytes += need;
  return memset(p, 0, need);
}

char *gr_arena_strndup(gr_arena *a, const char *s, size_t n)
{
  char *copy = n == SIZE_MAX ? NULL : gr_arena_alloc(a, n + 1);
  return copy ? memcpy(copy, s, n) : NULL;
}

void gr_arena_free(gr_arena *a)
{
  for (struct gr_arena_chunk *c = a->chunk, *next; c; c = next) {
    next = c->next;
    gr_free(c);
  }
  *a = (gr_arena){ 0 };
}
