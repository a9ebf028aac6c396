#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

void *gr_alloc(size_t bytes) { return malloc(bytes ? bytes : 1); }

void *gr_calloc(size_t count, size_t size)
{
  size_t bytes;
  if (!gr_mul_size(count, size, &bytes)) return NULL;
  return calloc(bytes ? bytes : 1, 1);
}

void *gr_realloc_array(void *p, size_t count, size_t size)
{
  size_t bytes;
  if (!gr_mul_size(count, size, &bytes)) return NULL;
  return realloc(p, bytes ? bytes : 1);
}

void *gr_alloc_aligned(size_t bytes, size_t align)
{
  size_t rounded;
  if (!gr_add_size(bytes ? bytes : 1, align - 1, &rounded)) return NULL;
  return aligned_alloc(align, rounded & ~(align - 1));
}

void gr_free(void *p) { free(p); }

char *gr_strndup(const char *s, size_t n)
{
  char *copy = n == SIZE_MAX ? NULL : gr_alloc(n + 1);
  if (!copy) return NULL;
  memcpy(copy, s, n);
  copy[n] = 0;
  return copy;
}

char *gr_strdup(const char *s) { return gr_strndup(s, strlen(s)); }

bool gr_grow(void **items, size_t *cap, size_t need, size_t size)
{
  if (need <= *cap) return true;
  size_t grown = *cap < 8 ? 8 : *cap;
  while (grown < need) {
    if (grown > SIZE_MAX / 2) return false;
    grown *= 2;
  }
  void *p = gr_realloc_array(*items, grown, size);
  if (!p) return false;
  *items = p;
  *cap = grown;
  return true;
}
