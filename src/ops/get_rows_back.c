/* The adjoint of get_rows: out, of like's shape (of which only the shape is read) and F32, is zero but for
 * out[:,v,b] = sum over the t with ids[t,b] == v of dy[:,t,b]: dy [D,n,B1,B2], ids [n,B1,B2] I32. Ids outside the table add nothing. */
#include "base/alloc.h"
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
  for (int i = 2; i < GR_DIMS; i++) fits = fits && like->ne[i] == dy->ne[i];
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
    for (int64_t t = 0; t < dy->ne[1]; t++) {
      if ((int64_t)gr_array_get(ids, t, r.i2, r.i3, 0) != r.i1) continue;
      for (int64_t i = 0; i < out->ne[0]; i++) sum[i] = (any ? sum[i] : 0) + gr_array_get(dy, i, t, r.i2, r.i3);
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
};
