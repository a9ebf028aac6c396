/* Telling results: lines for people, or one JSON object a line. */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "optest/internal.h"

const gr_op *gr_optest_op(const gr_optest_swap *swap, gr_op_id id) { return swap && swap->id == id ? swap->op : gr_op_get(id); }

bool gr_optest_wanted(const gr_optest *o, gr_op_id id) { return !o->chosen_any || o->chosen[id]; }

bool gr_optest_enough(const gr_optest *o) { return o->failures_max && o->failures >= o->failures_max; }

/* Writes and releases it; a NULL (no memory) is written as null, which no reader takes for a result. */
static void write_json(FILE *out, json_t *j)
{
  if (!j || json_dumpf(j, out, JSON_COMPACT) != 0) fputs("null", out);
  fputc('\n', out);
  json_decref(j);
}

void gr_optest_fail(gr_optest *o, const char *row, gr_op_id op, const gr_case *c, const char *fmt, ...)
{
  char why[512], what[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  if (c) gr_case_describe(op, c, what, sizeof what);
  else snprintf(what, sizeof what, "%s", gr_op_name(op));
  if (o->first && o->failures == 0) {
    snprintf(o->first->row, sizeof o->first->row, "%s", row ? row : "");
    memcpy(o->first->what, what, sizeof what);
    memcpy(o->first->why, why, sizeof why);
  }
  o->failures++;
  if (!o->out) return;
  if (o->json)
    write_json(o->out, json_pack("{s:s,s:s,s:s*,s:s,s:s}", "event", "failure", "op", gr_op_name(op), "row", row, "case", what, "why", why));
  else fprintf(o->out, "FAIL %s%s%s: %s\n", row ? row : "", row ? " " : "", what, why);
}

void gr_optest_note(const gr_optest *o, const char *kind, const char *fmt, ...)
{
  char text[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  if (!o->out) return;
  if (o->json) write_json(o->out, json_pack("{s:s,s:s}", "event", kind, "text", text));
  else fprintf(o->out, "%s: %s\n", kind, text);
}

void gr_optest_pass(gr_optest *o, const char *row, gr_op_id op, const gr_case *c, const gr_diff *d)
{
  char what[512];
  if (!o->out || !o->verbose) return;
  gr_case_describe(op, c, what, sizeof what);
  if (o->json)
    write_json(o->out, json_pack("{s:s,s:s,s:s*,s:s,s:f,s:f}", "event", "case", "op", gr_op_name(op), "row", row, "case", what, "norm",
                                 d->norm, "max", d->max));
  else fprintf(o->out, "ok   %s%s%s: norm %.2g max %.2g\n", row ? row : "", row ? " " : "", what, d->norm, d->max);
}

void gr_optest_summary(gr_optest *o, const char *mode)
{
  if (o->checks == 0) {
    o->failures++;
    gr_optest_note(o, "failure", "nothing was checked");
  }
  if (!o->out) return;
  if (o->json)
    write_json(o->out, json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:I}", "event", "summary", "mode", mode, "cases", (json_int_t)o->cases, "checks",
                                 (json_int_t)o->checks, "failures", (json_int_t)o->failures, "uncovered", (json_int_t)o->uncovered, "seed",
                                 (json_int_t)o->seed));
  else
    fprintf(o->out, "%s: %zu checks of %zu cases, %zu failures, %zu without a kernel (seed %llu)\n", mode, o->checks, o->cases, o->failures,
            o->uncovered, (unsigned long long)o->seed);
}

const char *gr_optest_target_name(const gr_optest *o, size_t i)
{
  if (o->n_targets) return i < o->n_targets ? o->targets[i].name : NULL;
  if (o->backend) return i == 0 ? o->backend : NULL;
  return gr_backend_name(i);
}

gr_status gr_optest_open(const gr_optest *o, size_t i, gr_pool *pool, gr_backend **b, gr_error *e)
{
  if (o->n_targets && o->targets[i].open) return o->targets[i].open(b, pool, e);
  return gr_backend_open(b, gr_optest_target_name(o, i), pool, e);
}
