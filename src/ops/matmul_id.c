/* y = W of the pair's expert times x: w [K,M,E] of any float or quantized type with dense rows, x [K,nb,n] F32, ids [k,n] and their
 * grouping (ops/experts.h) -> y [M,k,n]; y[j,i,t] = sum over c of w[c,j,ids[i,t]] x[c, i mod nb, t]. nb is a divisor of k: 1 where all
 * slots of a token read one row, k where each has its own. A pair that goes nowhere gives a row of zeros.
 * Gradient: dx = matmul_id_back, through a frozen or quantized stack too (A6); dw = out_prod_id for an F32 stack only: a packed one is
 * frozen, asking for its gradient is an error in words (A5). Ids have none. */
#include "base/alloc.h"
#include "ops/experts.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *w = c->in[0], *x = c->in[1], *ids = c->in[GR_EXPERTS_IDS];
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "matmul_id", 2, e));
  GR_TRY(gr_experts_check_stack("matmul_id", w, c->in[GR_EXPERTS_OFFSETS], e));
  if (w->ne[0] != x->ne[0] || w->dim[0] != x->dim[0])
    return gr_fail(e, GR_ERR_MISMATCH, "matmul_id: rows of %s and of %s differ in length", gr_tensor_describe(w, a, sizeof a),
                   gr_tensor_describe(x, b, sizeof b));
  GR_TRY(gr_experts_check_ids("matmul_id", ids, x, 2, true, e));
  GR_TRY(gr_experts_check(c, "matmul_id", e));
  gr_infer_dim(&c->out[0], 0, w, 1);
  gr_infer_dim(&c->out[0], 1, ids, 0);
  gr_infer_dim(&c->out[0], 2, ids, 1);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  gr_tensor **in = b->node->in, *w = in[0], *x = in[1], *dy = b->dout[0];
  GR_TRY(gr_backward_refuse(b, 0x1c, "ids and their grouping are integers", e));
  if (w->dtype != GR_F32) GR_TRY(gr_backward_refuse(b, 1, "it is stored packed and frozen", e));
  if (b->wants[0]) b->din[0] = gr_out_prod_id(b->graph, x, dy, in[GR_EXPERTS_IDS], in[GR_EXPERTS_PERM], in[GR_EXPERTS_OFFSETS]);
  if (b->wants[1])
    b->din[1] = gr_matmul_id_back(b->graph, w, dy, in[GR_EXPERTS_IDS], in[GR_EXPERTS_PERM], in[GR_EXPERTS_OFFSETS], x->ne[1]);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *w = &c->in[0], *x = &c->in[1], *ids = &c->in[GR_EXPERTS_IDS], *y = &c->out[0];
  int64_t used = ids->ne[0], pairs = used * ids->ne[1];
  if (!gr_experts_grouped(c)) return;
  double *row = gr_reference_scratch(c, w->ne[0]);
  if (!row) return;
  for (int64_t j = 0; j < w->ne[1] * w->ne[2]; j++) {
    int64_t expert = j / w->ne[1];
    gr_reference_row(w, j % w->ne[1], expert, 0, row);
    for (int64_t p = 0; p < pairs; p++) {
      if (gr_experts_of(ids, p, w->ne[2]) != expert) continue;
      double sum = 0;
      for (int64_t i = 0; i < w->ne[0]; i++) sum += row[i] * gr_array_get(x, i, p % used % x->ne[1], p / used, 0);
      gr_array_set(y, j % w->ne[1], p % used, p / used, 0, sum);
    }
  }
  gr_free(row);
}

/* ---- cases ---- */

static void fit(gr_case *c, const gr_experts_shape *x)
{
  const gr_experts_routing *r = &x->routing;
  c->in[0] = (gr_case_in){ .dtype = x->type, .ne = { x->k, x->m, r->experts }, .layout = x->other, .grad = x->type == GR_F32 };
  c->in[1] =
      (gr_case_in){ .ne = { x->k, x->slots, r->n }, .dim = { 0, 0, GR_DIM_TOKENS }, .layout = x->layout, .fill = x->fill, .grad = true };
  gr_experts_zero_tokens(c, r, 2);
}

static void refusals(gr_case_sink *s)
{
  static const double list[] = { 3, 0, 0, 2, -1, 3 };
  gr_experts_shape x = { .k = 32, .m = 7, .slots = 2, .routing = { "", 2, 3, 4, gr_fill_values(list, 6), 0 } };
  gr_experts_refusals(s, fit, true);
  x.type = GR_Q4_0;
  gr_experts_case(s, fit, &(gr_case){ .wants = 1, .refuse = GR_ERR_UNSUPPORTED, .says = "packed and frozen" }, &x);
  x.type = GR_BF16;
  gr_experts_case(s, fit, &(gr_case){ .wants = 3, .refuse = GR_ERR_UNSUPPORTED, .says = "packed and frozen" }, &x);
  for (unsigned i = GR_EXPERTS_IDS; i <= GR_EXPERTS_OFFSETS; i++)
    gr_experts_case(s, fit, &(gr_case){ .wants = 1u << i, .refuse = GR_ERR_UNSUPPORTED, .says = "integers" }, &x);
}

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-5, .max = 1e-4, .seen = 4.2e-6, .defect = 6e-5 };
  s->slice = gr_experts_slice_pairs;
  gr_experts_cases(s, fit, true);
  gr_experts_perf(s, fit, true);
  refusals(s);
}

gr_tensor *gr_matmul_id(gr_graph *g, gr_tensor *w, gr_tensor *x, gr_tensor *ids, gr_tensor *perm, gr_tensor *offsets)
{
  return gr_graph_node(g, GR_OP_matmul_id, (gr_tensor *[]){ w, x, ids, perm, offsets }, 5, NULL);
}

const gr_op gr_op_matmul_id = {
  .inputs_min = 5,
  .inputs_max = 5,
  .outputs = 1,
  .saves_in = 0x1f,
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = gr_experts_cost,
  .cases = cases,
};
