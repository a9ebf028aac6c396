#include "text/json_guard.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

/* Of this thread: whether a stretch is guarded, whether memory ran out in it, and the parse under way with the blocks it holds. */
static _Thread_local bool guarded, starved, parsing;
static _Thread_local jmp_buf given_up;
static _Thread_local void **blocks;
static _Thread_local size_t n_blocks, blocks_cap;

static void *guarded_alloc(size_t bytes)
{
  bool room = !parsing || gr_grow((void **)&blocks, &blocks_cap, n_blocks + 1, sizeof *blocks);
  void *p = !room || (guarded && starved) ? NULL : gr_alloc(bytes);
  if (!p) {
    starved = true;
    if (parsing) longjmp(given_up, 1);
    return NULL;
  }
  if (parsing) blocks[n_blocks++] = p;
  return p;
}

/* A parser frees what it took last, so looking from the end is short. Other blocks than its own may be freed too. */
static void guarded_free(void *p)
{
  for (size_t i = n_blocks; parsing && p && i-- > 0;)
    if (blocks[i] == p) {
      blocks[i] = blocks[--n_blocks];
      break;
    }
  gr_free(p);
}

static void install(void) { json_set_alloc_funcs(guarded_alloc, guarded_free); }

static void install_once(void)
{
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, install);
}

void gr_json_guard_begin(void)
{
  install_once();
  guarded = true;
  starved = false;
}

bool gr_json_guard_end(void)
{
  guarded = false;
  return starved;
}

static void end_parse(bool drop)
{
  parsing = false;
  for (size_t i = 0; drop && i < n_blocks; i++) gr_free(blocks[i]);
  gr_free(blocks);
  blocks = NULL;
  n_blocks = blocks_cap = 0;
}

json_t *gr_json_parse(const char *text, size_t n, size_t flags, json_error_t *why)
{
  install_once();
  if (setjmp(given_up)) {
    end_parse(true);
    if (why) {
      memset(why, 0, sizeof *why);
      snprintf(why->text, sizeof why->text, "out of memory");
      why->text[JSON_ERROR_TEXT_LENGTH - 1] = (char)json_error_out_of_memory; /* where json_error_code looks */
    }
    return NULL;
  }
  parsing = true;
  json_t *json = json_loadb(text, n, flags, why);
  end_parse(false);
  return json;
}
