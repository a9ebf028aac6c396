/* Support mode: which row of which backend runs an op, by the type of its first input, read off the rows' own predicates; and
 * docs/ops.md. */
#include <jansson.h>
#include <string.h>

#include "base/alloc.h"
#include "optest/internal.h"

enum { TARGETS_MAX = 16 };

/* Of the cases of an op whose first input has one type: how many a backend admits, and the row that takes the first of them. */
typedef struct support_cell {
  size_t admitted, cases;
  const char *row;
} support_cell;

static gr_status count_cells(const gr_case_list *l, gr_dtype type, gr_backend *const *backends, size_t n, support_cell *cells, gr_error *e)
{
  for (size_t i = 0; i < l->n; i++) {
    const gr_case *c = l->items[i];
    gr_case_graph cg;
    gr_op_call call;
    if (c->refuse || c->in[0].dtype != type) continue;
    GR_TRY(gr_case_build(&cg, l->op, c, e));
    gr_case_call(&cg, &call);
    for (size_t b = 0; b < n; b++) {
      const gr_kernel_row *row = gr_backend_find(backends[b], &call);
      cells[b].cases++;
      cells[b].admitted += row != NULL;
      if (row && !cells[b].row) cells[b].row = row->name;
    }
    gr_case_graph_free(&cg);
  }
  return GR_OK;
}

static void tell_cells(gr_optest *o, gr_op_id op, gr_dtype type, const support_cell *cells, size_t n)
{
  o->cases += cells[0].cases;
  for (size_t b = 0; b < n; b++) o->checks += cells[b].cases;
  if (!o->out) return;
  if (!o->json) fprintf(o->out, "%-16s %-7s", gr_op_name(op), gr_dtype_name(type));
  for (size_t b = 0; b < n; b++) {
    const char *name = gr_optest_target_name(o, b);
    if (o->json) {
      json_t *j =
          json_pack("{s:s,s:s,s:s,s:s,s:s*,s:I,s:I}", "event", "support", "op", gr_op_name(op), "dtype", gr_dtype_name(type), "backend",
                    name, "row", cells[b].row, "admitted", (json_int_t)cells[b].admitted, "cases", (json_int_t)cells[b].cases);
      if (j && json_dumpf(j, o->out, JSON_COMPACT) == 0) fputc('\n', o->out);
      json_decref(j);
    } else {
      fprintf(o->out, "  %s: %-28s %zu/%zu", name, cells[b].row ? cells[b].row : "-", cells[b].admitted, cells[b].cases);
    }
  }
  if (!o->json) fputc('\n', o->out);
}

static gr_status support_op(gr_optest *o, gr_op_id id, gr_backend *const *backends, size_t n, gr_error *e)
{
  gr_case_list l;
  gr_status status = GR_OK;
  GR_TRY(gr_case_list_make(&l, o->swap, id, e));
  for (int type = 0; type < GR_DTYPE_COUNT && status == GR_OK; type++) {
    support_cell cells[TARGETS_MAX] = { 0 };
    status = count_cells(&l, (gr_dtype)type, backends, n, cells, e);
    if (status == GR_OK && n && cells[0].cases) tell_cells(o, id, (gr_dtype)type, cells, n);
  }
  gr_case_list_free(&l);
  return status;
}

gr_status gr_optest_support(gr_optest *o, gr_error *e)
{
  gr_backend *backends[TARGETS_MAX] = { 0 };
  size_t n = 0;
  gr_status status = GR_OK;
  for (; status == GR_OK && gr_optest_target_name(o, n) && n < TARGETS_MAX; n++) status = gr_optest_open(o, n, NULL, &backends[n], e);
  for (int id = 1; id < GR_OP_COUNT && status == GR_OK; id++)
    if (gr_optest_wanted(o, (gr_op_id)id) && !(gr_op_get((gr_op_id)id)->flags & GR_OP_VIEW))
      status = support_op(o, (gr_op_id)id, backends, n, e);
  if (status == GR_OK) gr_optest_summary(o, "support");
  for (size_t i = 0; i < n; i++) gr_backend_close(backends[i]);
  return status;
}

/* ---- docs/ops.md ---- */

static const char *gradient_text(const gr_op *op)
{
  if (op->flags & GR_OP_FUSED) return "of the nodes it replaces";
  return op->backward ? "yes" : "none: made by a backward";
}

static const char *kind_text(const gr_op *op)
{
  if (op->flags & GR_OP_VIEW) return "view";
  if (op->flags & GR_OP_INPLACE) return "in place";
  return op->flags & GR_OP_FUSED ? "fused" : "";
}

gr_status gr_optest_doc(gr_optest *o, gr_error *e)
{
  (void)e;
  if (!o->out) return GR_OK;
  fputs("# Ops\n\nWritten by `graft ops doc` from `src/ops/ops.def` and the descriptors; do not edit. `graft ops support` tells which "
        "kernel\n"
        "of which backend runs each, by type; `graft ops grad` proves every gradient. Shapes are in ggml's order, the fastest first.\n\n"
        "| op | in ggml | what it computes | gradient | kind |\n|---|---|---|---|---|\n",
        o->out);
  for (int id = 1; id < GR_OP_COUNT; id++) {
    const gr_op *op = gr_op_get((gr_op_id)id);
    fprintf(o->out, "| `%s` | %s | %s | %s | %s |\n", gr_op_name((gr_op_id)id), gr_op_ggml((gr_op_id)id), gr_op_doc((gr_op_id)id),
            gradient_text(op), kind_text(op));
  }
  return GR_OK;
}
