/* The gradient of matmul_id to x (A1, A2): w [K,M,E], dy [M,k,n], ids [k,n] and their grouping -> d [K,nb,n];
 * d[c,l,t] = sum over slots i with i mod nb = l of sum over j of w[c,j,ids[i,t]] dy[j,i,t], in an order that the ids of a token fix alone.
 * nb = k is the form per slot. A pair that goes nowhere adds nothing. dy reaches 1.5e5 and more: nothing is staged in half (B4). */
#include "base/alloc.h"
#include "base/mutant.h"
#include "ops/experts.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_slots_params *p = c->params;
  const gr_tensor *w = c->in[0], *dy = c->in[1], *ids = c->in[GR_EXPERTS_IDS];
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "matmul_id_back", 2, e));
  GR_TRY(gr_experts_check_stack("matmul_id_back", w, c->in[GR_EXPERTS_OFFSETS], e));
  if (w->ne[1] != dy->ne[0] || w->dim[1] != dy->dim[0])
    return gr_fail(e, GR_ERR_MISMATCH, "matmul_id_back: %s and %s differ in the length of the sum", gr_tensor_describe(w, a, sizeof a),
                   gr_tensor_describe(dy, b, sizeof b));
  GR_TRY(gr_experts_check_ids("matmul_id_back", ids, dy, 2, false, e));
  GR_TRY(gr_experts_check(c, "matmul_id_back", e));
  if (p->slots < 1 || ids->ne[0] % p->slots != 0)
    return gr_fail(e, GR_ERR_MISMATCH, "matmul_id_back: %lld rows a token cannot be read by the slots of ids %s", (long long)p->slots,
                   gr_tensor_describe(ids, a, sizeof a));
  gr_infer_dim(&c->out[0], 0, w, 0);
  c->out[0].ne[1] = p->slots;
  gr_infer_dim(&c->out[0], 2, ids, 1);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *w = &c->in[0], *dy = &c->in[1], *ids = &c->in[GR_EXPERTS_IDS], *d = &c->out[0];
  int64_t length = w->ne[0], used = ids->ne[0], pairs = used * ids->ne[1], slots = d->ne[1];
  if (!gr_experts_grouped(c)) return;
  double *row = gr_reference_scratch(c, length * (1 + slots * d->ne[2]));
  if (!row) return;
  double *sums = row + length;
  for (int64_t j = 0; j < w->ne[1] * w->ne[2]; j++) {
    gr_reference_row(w, j % w->ne[1], j / w->ne[1], 0, row);
    for (int64_t p = 0; p < pairs; p++) {
      if (gr_experts_of(ids, p, w->ne[2]) != j / w->ne[1] && !GR_MUTANT(rule_matmul_id_every_expert)) continue;
      double g = gr_array_get(dy, j % w->ne[1], p % used, p / used, 0),
             *sum = sums + length * ((GR_MUTANT(rule_matmul_id_slot_0) ? 0 : p % used % slots) + slots * (p / used));
      for (int64_t i = 0; i < length; i++) sum[i] += row[i] * g;
    }
  }
  for (int64_t r = 0; r < slots * d->ne[2]; r++)
    for (int64_t i = 0; i < length; i++) gr_array_set(d, i, r % slots, r / slots, 0, sums[length * r + i]);
  gr_free(row);
}

/* ---- cases ---- */

static void fit(gr_case *c, const gr_experts_shape *x)
{
  static const struct gr_slots_params slots[] = { { 0 }, { 1 }, { 2 }, { 3 }, { 4 }, { 5 }, { 6 }, { 7 }, { 8 } };
  const gr_experts_routing *r = &x->routing;
  c->params = &slots[x->slots];
  c->in[0] = (gr_case_in){ .dtype = x->type, .ne = { x->k, x->m, r->experts }, .layout = x->other };
  c->in[1] = (gr_case_in){ .ne = { x->m, r->used, r->n }, .dim = { 0, 0, GR_DIM_TOKENS }, .layout = x->layout, .fill = x->fill };
  gr_experts_zero_tokens(c, r, 2);
}

static void refusals(gr_case_sink *s)
{
  static const double list[] = { 3, 0, 0, 2, -1, 3 };
  gr_experts_shape x = { .k = 32, .m = 7, .slots = 0, .routing = { "", 2, 3, 4, gr_fill_values(list, 6), 0 } };
  gr_experts_refusals(s, fit, true);
  gr_experts_case(s, fit, &(gr_case){ .refuse = GR_ERR_MISMATCH, .says = "0 rows a token" }, &x);
  x.slots = 3;
  gr_experts_case(s, fit, &(gr_case){ .refuse = GR_ERR_MISMATCH, .says = "3 rows a token" }, &x);
}

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-5, .max = 1e-4, .seen = 7.2e-7, .defect = 1.2e-4 };
  s->slice = gr_experts_slice_pairs;
  gr_experts_cases(s, fit, true);
  gr_experts_perf(s, fit, true);
  refusals(s);
}

gr_tensor *gr_matmul_id_back(gr_graph *g, gr_tensor *w, gr_tensor *dy, gr_tensor *ids, gr_tensor *perm, gr_tensor *offsets, int64_t slots)
{
  struct gr_slots_params p = { slots };
  return gr_graph_node(g, GR_OP_matmul_id_back, (gr_tensor *[]){ w, dy, ids, perm, offsets }, 5, &p);
}

const gr_op gr_op_matmul_id_back = {
  .inputs_min = 5,
  .inputs_max = 5,
  .outputs = 1,
  .flags = GR_OP_NO_BACKWARD,
  .params_bytes = sizeof(struct gr_slots_params),
  .infer = infer,
  .reference = reference,
  .cost = gr_experts_cost,
  .cases = cases,
};
