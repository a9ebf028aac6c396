/* Running a mode of the harness within a test: it must pass, or fail for the right reason. */
#ifndef GR_TESTS_OPTEST_H
#define GR_TESTS_OPTEST_H
#include "check.h"

#include "optest/optest.h"

/* Runs a mode with its text kept; the caller frees it. */
typedef gr_status mode_fn(gr_optest *o, gr_error *e);

static inline char *run_mode(mode_fn *mode, gr_optest *o)
{
  char *text = NULL;
  size_t size = 0;
  gr_error e = { 0 };
  o->out = open_memstream(&text, &size);
  assert_non_null(o->out);
  o->seed = o->seed ? o->seed : GR_OPTEST_SEED;
  gr_status status = mode(o, &e);
  fclose(o->out);
  assert_ok(status, &e);
  return text;
}

static inline void passes(mode_fn *mode, gr_optest *o, size_t checks_min)
{
  char *text = run_mode(mode, o);
  if (o->failures) fail_msg("%zu failures:\n%.3000s", o->failures, text);
  assert_true(o->checks >= checks_min);
  free(text);
}

/* The mode must fail, and say why in these words. */
static inline void fails(mode_fn *mode, gr_optest *o, const char *why)
{
  char *text = run_mode(mode, o);
  if (!o->failures) fail_msg("nothing failed; '%s' was expected", why);
  if (!strstr(text, why)) fail_msg("'%s' was expected, but:\n%.2000s", why, text);
  free(text);
}

static inline gr_optest only(gr_op_id op)
{
  gr_optest o = { .chosen_any = true };
  o.chosen[op] = true;
  return o;
}

#endif
