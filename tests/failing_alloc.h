/* The library's allocator, with failures on demand and a count of what lives. Including this in a program's own source defines
 * all of base/alloc.h there, so the linker takes none of it from the library. Any thread may allocate; which allocation fails is told of
 * one thread alone. */
#ifndef GR_TESTS_FAILING_ALLOC_H
#define GR_TESTS_FAILING_ALLOC_H
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static struct {
  atomic_size_t seen; /* allocations asked for */
  size_t fail_at;     /* the one that fails, counted from 1; 0: none */
  bool fail_rest;     /* and all after it */
  atomic_size_t failed;
  atomic_long live;
  atomic_size_t bytes; /* asked for, in sum */
} allocations;

static bool allocation_fails(size_t bytes)
{
  allocations.bytes += bytes;
  size_t n = ++allocations.seen;
  bool fails = allocations.fail_at && (allocations.fail_rest ? n >= allocations.fail_at : n == allocations.fail_at);
  allocations.failed += fails;
  return fails;
}

static void *counted(void *p)
{
  allocations.live += p != NULL;
  return p;
}

static void *failing_malloc(size_t n) { return allocation_fails(n) ? NULL : counted(malloc(n)); }
static void *failing_calloc(size_t n, size_t size) { return allocation_fails(n * size) ? NULL : counted(calloc(n, size)); }
static void *failing_aligned(size_t align, size_t n) { return allocation_fails(n) ? NULL : counted(aligned_alloc(align, n)); }

static void *failing_realloc(void *p, size_t n)
{
  if (allocation_fails(n)) return NULL;
  void *q = realloc(p, n);
  allocations.live += q && !p;
  return q;
}

static void counted_free(void *p)
{
  allocations.live -= p != NULL;
  free(p);
}

#define malloc failing_malloc
#define calloc failing_calloc
#define realloc failing_realloc
#define aligned_alloc failing_aligned
#define free counted_free
#include "base/alloc.c"
#undef malloc
#undef calloc
#undef realloc
#undef aligned_alloc
#undef free

static inline void allocations_fail(size_t at, bool rest)
{
  allocations.seen = 0;
  allocations.failed = 0;
  allocations.bytes = 0;
  allocations.fail_at = at;
  allocations.fail_rest = rest;
}

#endif
