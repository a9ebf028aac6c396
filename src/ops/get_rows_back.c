/* The adjoint of get_rows: out, of like's shape (of which only the shape is read) and F32, is zero but for
 * out[:,v,b] = sum over the t with ids[t,b] == v of dy[:,t,b]: dy [D,n,B1,B2], ids [n,B1,B2] I32. A table without batches gets the sum
 * over b too. Ids outside the table add nothing. */
#include "base/alloc.h"
#include "base/mutant.h"
#include "ops/cases.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *dy = c->in[0], *ids = c->in[1], *like = c->in[2];
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "get_rows_back", 1, e));
  if (ids->dtype != GR_I32)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "get_rows_back: ids must be I32, not %s", gr_tensor_describe(ids, a, sizeof a));
  bool fits = dy->ne[0] == like->ne[0] && ids->ne[3] == 1;
  for (int i = 1; i < GR_DIMS; i++) fits = fits && dy->ne[i] == ids->ne[i - 1] && dy->dim[i] == ids->dim[i - 1];
  bool whole = like->ne[2] == 1 && like->ne[3] == 1; /* one table that every batch gathered from */
  for (int i = 2; i < GR_DIMS && !whole; i++) fits = fits && like->ne[i] == dy->ne[i];
  if (!fits)
    return gr_fail(e, GR_ERR_MISMATCH, "get_rows_back: the rows of %s do not fit ids and a table like %s",
                   gr_tensor_describe(dy, a, sizeof a), gr_tensor_describe(like, b, sizeof b));
  gr_infer_like(&c->out[0], like);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *dy = &c->in[0], *ids = &c->in[1], *out = &c->out[0];
  gr_reference_fill(out, 0);
  double *sum = gr_reference_scratch(c, out->ne[0]);
  if (!sum) return;
  /* Row by row of the result, so that each is summed in double and rounded once. */
  for (gr_row r = { 0 }; gr_row_valid(&r, out); gr_row_next(&r, out)) {
    bool any = false;
    for (gr_row t = { 0 }; gr_row_valid(&t, dy); gr_row_next(&t, dy)) {
      int64_t batch = GR_MUTANT(rule_get_rows_no_batch) ? 0 : t.i2;
      if (t.i2 % out->ne[2] != r.i2 || t.i3 % out->ne[3] != r.i3 || (int64_t)gr_array_get(ids, t.i1, batch, t.i3, 0) != r.i1) continue;
      for (int64_t i = 0; i < out->ne[0]; i++) sum[i] = (any && !GR_MUTANT(rule_get_rows_overwrites) ? sum[i] : 0) + gr_row_get(dy, i, &t);
      any = true;
    }
    for (int64_t i = 0; any && i < out->ne[0]; i++) gr_row_set(out, i, &r, sum[i]);
  }
  gr_free(sum);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->in[0]);
  *k = (gr_cost){ .flops = n,
                  .bytes_read = 4 * n + 4 * (double)gr_array_count(&c->in[1]),
                  .bytes_written = 4 * (double)gr_array_count(&c->out[0]) };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 1.8e-7, .defect = 2e-4 };
  gr_case_in ids = { .dtype = GR_I32, .ne = { 7 }, .dim = { GR_DIM_TOKENS }, .fill = GR_FILL_LIST(8, 0, 3, 3, -1, 9, 0) };
  gr_case_in dy = { .ne = { 37, 7 }, .dim = { 0, GR_DIM_TOKENS } };
  gr_case_add(s, &(gr_case){ .name = "repeats and padding", .in = { dy, ids, { .ne = { 37, 9 } } } });
  gr_case_add(
      s, &(gr_case){ .name = "all on one row",
                     .in = { { .ne = { 1030, 90 } }, { .dtype = GR_I32, .ne = { 90 }, .fill = GR_FILL_LIST(4) }, { .ne = { 1030, 5 } } } });
  gr_case_add(s, &(gr_case){ .name = "a packed table's shape",
                             .in = { { .ne = { 32, 3 } },
                                     { .dtype = GR_I32, .ne = { 3 }, .fill = gr_fill_below(5) },
                                     { .dtype = GR_Q8_0, .ne = { 32, 5 } } } });
  gr_case_add(s, &(gr_case){ .name = "batches",
                             .in = { { .ne = { 3, 4, 2, 3 } },
                                     { .dtype = GR_I32, .ne = { 4, 2, 3 }, .fill = gr_fill_below(5) },
                                     { .ne = { 3, 5, 2, 3 } } } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s,
                &(gr_case){ .in = { { .ne = { 21, 7 }, .dim = { 0, GR_DIM_TOKENS }, .layout = (gr_layout)a }, ids, { .ne = { 21, 9 } } } });
  gr_case_add(
      s, &(gr_case){ .name = "large",
                     .in = { { .ne = { 37, 7 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_normal(1.5e5) }, ids, { .ne = { 37, 9 } } } });
  gr_case_add(
      s,
      &(gr_case){ .name = "one table for every token: biases of the chosen experts",
                  .in = { { .ne = { 37, 2, 4 }, .dim = { 0, 0, GR_DIM_TOKENS } },
                          { .dtype = GR_I32, .ne = { 2, 4 }, .dim = { 0, GR_DIM_TOKENS }, .fill = GR_FILL_LIST(5, 0, 1, 2, -1, 5, 4, 1) },
                          { .ne = { 37, 6 } } } });
  gr_case_add(
      s, &(gr_case){ .name = "padding alone",
                     .flags = GR_CASE_ZERO,
                     .in = { { .ne = { 5, 2 } }, { .dtype = GR_I32, .ne = { 2 }, .fill = GR_FILL_LIST(-1, 7) }, { .ne = { 5, 7 } } } });
  gr_case_add(s, &(gr_case){ .in = { dy, ids, { .ne = { 36, 9 } } }, .refuse = GR_ERR_MISMATCH, .says = "do not fit" });
  gr_case_add(
      s,
      &(gr_case){ .in = { dy, { .dtype = GR_I32, .ne = { 6 } }, { .ne = { 37, 9 } } }, .refuse = GR_ERR_MISMATCH, .says = "do not fit" });
}

gr_tensor *gr_get_rows_back(gr_graph *g, gr_tensor *dy, gr_tensor *ids, gr_tensor *like)
{
  return gr_graph_node(g, GR_OP_get_rows_back, (gr_tensor *[]){ dy, ids, like }, 3, NULL);
}

const gr_op gr_op_get_rows_back = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 1,
  .flags = GR_OP_NO_BACKWARD,
  .shapes_in = 4,
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
