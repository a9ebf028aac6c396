/* Allocation with overflow checks. Everything in the library allocates through these, so that the fault tests can make
 * the n-th one fail. All return NULL on failure; free with gr_free (NULL is fine). */
#ifndef GR_BASE_ALLOC_H
#define GR_BASE_ALLOC_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *gr_alloc(size_t bytes);               /* uninitialised; 0 bytes gives a valid pointer */
void *gr_calloc(size_t count, size_t size); /* zeroed; NULL when count * size overflows */
void *gr_realloc_array(void *p, size_t count, size_t size);
void *gr_alloc_aligned(size_t bytes, size_t align); /* align a power of two; free with gr_free */
void gr_free(void *p);
char *gr_strdup(const char *s);
char *gr_strndup(const char *s, size_t n); /* copies n bytes and adds a NUL; s may hold NULs */

/* Grows *items (capacity *cap, element `size`) so that it holds at least `need`; false when out of memory (*items kept). */
bool gr_grow(void **items, size_t *cap, size_t need, size_t size);

static inline bool gr_mul_size(size_t a, size_t b, size_t *out)
{
  if (b && a > SIZE_MAX / b) return false;
  *out = a * b;
  return true;
}
static inline bool gr_add_size(size_t a, size_t b, size_t *out)
{
  if (a > SIZE_MAX - b) return false;
  *out = a + b;
  return true;
}

#endif
