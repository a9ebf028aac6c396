/* A bump arena: many small things with one lifetime. Pointers stay valid until gr_arena_free. */
#ifndef GR_BASE_ARENA_H
#define GR_BASE_ARENA_H
#include <stddef.h>

typedef struct gr_arena {
  struct gr_arena_chunk *chunk;
  size_t bytes; /* handed out so far */
} gr_arena;

void *gr_arena_alloc(gr_arena *a, size_t bytes); /* zeroed, aligned for any type; NULL when out of memory */
char *gr_arena_strndup(gr_arena *a, const char *s, size_t n);
void gr_arena_free(gr_arena *a); /* frees everything; the arena may be used again */

#endif
