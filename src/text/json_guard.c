#include "text/json_guard.h"

#include <jansson.h>
#include <pthread.h>

#include "base/alloc.h"

/* Of this thread: whether a stretch is guarded, and whether memory ran out in it. */
static _Thread_local bool guarded, starved;

static void *guarded_alloc(size_t bytes)
{
  void *p = guarded && starved ? NULL : gr_alloc(bytes);
  if (!p) starved = true;
  return p;
}

static void install(void) { json_set_alloc_funcs(guarded_alloc, gr_free); }

void gr_json_guard_begin(void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install);
  guarded = true;
  starved = false;
}

bool gr_json_guard_end(void)
{
  guarded = false;
  return starved;
}
