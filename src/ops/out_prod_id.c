/* The gradient of matmul_id to a stack in F32 (A4): x [K,nb,n], dy [M,k,n], ids [k,n] and their grouping -> dw [K,M,E];
 * dw[c,j,e] = sum over the pairs (i,t) with ids[i,t] = e of dy[j,i,t] x[c, i mod nb, t]. An expert without tokens gets exactly 0. */
#include "base/alloc.h"
#include "base/mutant.h"
#include "ops/experts.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *x = c->in[0], *dy = c->in[1], *ids = c->in[GR_EXPERTS_IDS];
  GR_TRY(gr_infer_need_f32(c, "out_prod_id", 3, e));
  GR_TRY(gr_experts_check_ids("out_prod_id", ids, x, 2, true, e));
  GR_TRY(gr_experts_check_ids("out_prod_id", ids, dy, 2, false, e));
  GR_TRY(gr_experts_check(c, "out_prod_id", e));
  gr_infer_dim(&c->out[0], 0, x, 0);
  gr_infer_dim(&c->out[0], 1, dy, 0);
  c->out[0].ne[2] = c->in[GR_EXPERTS_OFFSETS]->ne[0] - 1;
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *x = &c->in[0], *dy = &c->in[1], *ids = &c->in[GR_EXPERTS_IDS], *dw = &c->out[0];
  int64_t length = x->ne[0], used = ids->ne[0], pairs = used * ids->ne[1];
  if (!gr_experts_grouped(c)) return;
  double *sum = gr_reference_scratch(c, length);
  if (!sum) return;
  for (int64_t expert = 0; expert < dw->ne[2]; expert++)
    for (int64_t j = 0; j < dw->ne[1]; j++) {
      for (int64_t i = 0; i < length; i++) sum[i] = 0;
      for (int64_t p = 0; p < pairs; p++) {
        if (gr_experts_of(ids, p, dw->ne[2]) != expert) continue;
        double g = gr_array_get(dy, j, GR_MUTANT(rule_matmul_id_grad_row_0) ? 0 : p % used, p / used, 0);
        for (int64_t i = 0; i < length; i++)
          sum[i] += g * gr_array_get(x, i, GR_MUTANT(rule_matmul_id_no_broadcast) ? 0 : p % used % x->ne[1], p / used, 0);
      }
      for (int64_t i = 0; i < length; i++) gr_array_set(dw, i, j, expert, 0, sum[i]);
    }
  gr_free(sum);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *x = &c->in[0], *dy = &c->in[1], *ids = &c->in[GR_EXPERTS_IDS];
  *k = (gr_cost){ .flops = 2.0 * (double)x->ne[0] * (double)dy->ne[0] * (double)gr_array_count(ids),
                  .bytes_read = 4 * (double)gr_array_count(x) + 4 * (double)gr_array_count(dy) + 8 * (double)gr_array_count(ids),
                  .bytes_written = 4 * (double)gr_array_count(&c->out[0]) };
}

/* ---- cases ---- */

static void fit(gr_case *c, const gr_experts_shape *x)
{
  const gr_experts_routing *r = &x->routing;
  c->in[0] = (gr_case_in){ .ne = { x->k, x->slots, r->n }, .dim = { 0, 0, GR_DIM_TOKENS }, .layout = x->other };
  c->in[1] = (gr_case_in){ .ne = { x->m, r->used, r->n }, .dim = { 0, 0, GR_DIM_TOKENS }, .layout = x->layout, .fill = x->fill };
  gr_experts_zero_experts(c, r, 2);
}

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-5, .max = 1e-4, .seen = 3.2e-7, .defect = 4e-5 };
  s->slice = gr_experts_slice_stack;
  gr_experts_cases(s, fit, false);
  gr_experts_perf(s, fit, false);
  gr_experts_refusals(s, fit, false);
}

gr_tensor *gr_out_prod_id(gr_graph *g, gr_tensor *x, gr_tensor *dy, gr_tensor *ids, gr_tensor *perm, gr_tensor *offsets)
{
  return gr_graph_node(g, GR_OP_out_prod_id, (gr_tensor *[]){ x, dy, ids, perm, offsets }, 5, NULL);
}

const gr_op gr_op_out_prod_id = {
  .inputs_min = 5,
  .inputs_max = 5,
  .outputs = 1,
  .flags = GR_OP_NO_BACKWARD,
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
