/* cache[:,:,ids[t]] = x[:,:,t], in place; the output is the cache: cache [a,b,m] of F32, F16 or BF16, a leaf kept from run to run,
 * x [a,b,n] F32 with dense rows, ids [n] I32. An id outside the cache (padding) writes nothing. Ids inside it differ from each other.
 * Gradient: dx = the slices of dy at ids. What the cache held before belongs to an earlier run, and has none. */
#include "ops/cases.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  gr_tensor *cache = c->in[0];
  const gr_tensor *x = c->in[1], *ids = c->in[2];
  gr_infer_out *o = &c->out[0];
  char a[160], b[160];
  gr_tensor_describe(cache, a, sizeof a);
  gr_tensor_describe(x, b, sizeof b);
  GR_TRY(gr_infer_need_f32(c, "store_rows", 2, e));
  const gr_tensor *root = cache->base ? cache->base : cache;
  if (root->leaf != GR_LEAF_STATE) return gr_fail(e, GR_ERR_UNSUPPORTED, "store_rows: %s is not kept from run to run", a);
  if (!gr_dtype_is_float(cache->dtype)) return gr_fail(e, GR_ERR_UNSUPPORTED, "store_rows: %s cannot be written row by row", a);
  if (ids->dtype != GR_I32)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "store_rows: ids must be I32, not %s", gr_tensor_describe(ids, b, sizeof b));
  if (cache->ne[0] != x->ne[0] || cache->ne[1] != x->ne[1] || cache->ne[3] != 1 || x->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "store_rows: slices of %s do not fit in %s", b, a);
  if (ids->ne[0] != x->ne[2] || ids->dim[0] != x->dim[2] || ids->ne[1] != 1 || ids->ne[2] != 1 || ids->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "store_rows: %s needs one id for each slice", b);
  gr_infer_like(o, cache);
  o->dtype = cache->dtype;
  o->view_of = cache;
  for (int i = 0; i < GR_DIMS; i++) o->nb[i] = cache->nb[i];
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  gr_tensor *x = b->node->in[1], *ids = b->node->in[2], *dy = b->dout[0];
  GR_TRY(gr_backward_refuse(b, 1, "it was written by an earlier run", e));
  GR_TRY(gr_backward_refuse(b, 4, "ids are integers", e));
  if (!b->wants[1] || !dy) return GR_OK;
  if (!gr_tensor_contiguous(dy)) dy = gr_cont(b->graph, dy);
  gr_tensor *rows = gr_get_rows(b->graph, gr_reshape(b->graph, dy, dy->ne[0] * dy->ne[1], dy->ne[2], 0, 0), ids);
  b->din[1] = gr_reshape(b->graph, rows, x->ne[0], x->ne[1], x->ne[2], 0);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *cache = &c->out[0], *x = &c->in[1], *ids = &c->in[2];
  for (int64_t t = 0; t < x->ne[2]; t++) {
    int64_t id = (int64_t)gr_array_get(ids, t, 0, 0, 0);
    if (id < 0 || id >= cache->ne[2]) continue;
    for (int64_t j = 0; j < x->ne[1]; j++)
      for (int64_t i = 0; i < x->ne[0]; i++) gr_array_set(cache, i, j, id, 0, gr_array_get(x, i, j, t, 0));
  }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->in[1]);
  *k = (gr_cost){ .bytes_read = 4 * n, .bytes_written = n * gr_dtype_get(c->out[0].dtype)->block_bytes };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-30, .max = 1e-30, .defect = 2e-4 }; /* a copy, or one rounding that is defined: exact */
  gr_case_in cache = { .ne = { 8, 2, 9 }, .dim = { 0, 0, GR_DIM_KEYS }, .leaf = GR_LEAF_STATE };
  gr_case_in x = { .ne = { 8, 2, 4 }, .dim = { 0, 0, GR_DIM_TOKENS }, .grad = true };
  gr_case_in ids = { .dtype = GR_I32, .ne = { 4 }, .dim = { GR_DIM_TOKENS }, .fill = GR_FILL_LIST(7, 0, -1, 3) };
  gr_case_in half = cache, integers = cache, leaf = cache, wide = x;
  half.dtype = GR_F16, integers.dtype = GR_I32, leaf.leaf = GR_LEAF_INPUT, wide.ne[0] = 9;
  gr_case_add(s, &(gr_case){ .in = { cache, x, ids } });
  half.fill = gr_fill_values((const double[]){ 1, -2, 0.5 }, 3);
  gr_case_add(s, &(gr_case){ .name = "a cache in half", .flags = GR_CASE_NO_GRAD, .in = { half, x, ids } });
  half.dtype = GR_BF16;
  gr_case_add(s, &(gr_case){ .name = "a cache in bfloat16", .flags = GR_CASE_NO_GRAD, .in = { half, x, ids } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_OFFSET; a++) {
    gr_case_in strided = x;
    strided.layout = (gr_layout)a;
    gr_case_add(s, &(gr_case){ .in = { cache, strided, ids } });
  }
  gr_case_add(s, &(gr_case){ .name = "one token",
                             .in = { { .ne = { 67, 3, 5 }, .leaf = GR_LEAF_STATE },
                                     { .ne = { 67, 3, 1 }, .grad = true },
                                     { .dtype = GR_I32, .ne = { 1 }, .fill = gr_fill_below(5) } } });
  gr_case_add(s, &(gr_case){ .in = { cache, x, ids }, .wants = 1, .refuse = GR_ERR_UNSUPPORTED, .says = "earlier run" });
  gr_case_add(s, &(gr_case){ .in = { cache, x, ids }, .wants = 4, .refuse = GR_ERR_UNSUPPORTED, .says = "integers" });
  gr_case_add(s, &(gr_case){ .in = { leaf, x, ids }, .refuse = GR_ERR_UNSUPPORTED, .says = "not kept from run to run" });
  gr_case_add(s, &(gr_case){ .in = { integers, x, ids }, .refuse = GR_ERR_UNSUPPORTED, .says = "cannot be written" });
  gr_case_add(s, &(gr_case){ .in = { cache, wide, ids }, .refuse = GR_ERR_MISMATCH, .says = "do not fit" });
  gr_case_add(
      s, &(gr_case){ .in = { cache, x, { .dtype = GR_I32, .ne = { 3 } } }, .refuse = GR_ERR_MISMATCH, .says = "one id for each slice" });
}

gr_tensor *gr_store_rows(gr_graph *g, gr_tensor *cache, gr_tensor *x, gr_tensor *ids)
{
  return gr_graph_node(g, GR_OP_store_rows, (gr_tensor *[]){ cache, x, ids }, 3, NULL);
}

const gr_op gr_op_store_rows = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 1,
  .flags = GR_OP_INPLACE,
  .saves_in = 4,
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
