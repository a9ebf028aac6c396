/* Fused: a stack of experts and its adapter, y = W x + B h and h = s A x by the matrices of each pair's expert: w [k,m,E] of any type,
 * x [k,nb,n], ids [k,n] and their grouping (ops/experts.h), a [k,r,E], b [r,m,E] F32; y [m,used,n] and h [r,used,n], which the gradient of
 * B reads. Rows of pairs that go nowhere are zeros. Made by the fusion pass; the nodes it replaces (three matmul_id, a scale, a sum) are
 * its oracle. */
#include "base/alloc.h"
#include "ops/experts.h"
#include "ops/fused.h"

enum { W, X, A = GR_EXPERTS_OFFSETS + 1, B };

static gr_status infer(gr_infer *c, gr_error *e)
{
  char text[160];
  const gr_tensor *w = c->in[W], *a = c->in[A], *b = c->in[B];
  gr_tensor *const *in = c->in, *low_in[] = { in[A], in[X], in[GR_EXPERTS_IDS], in[GR_EXPERTS_PERM], in[GR_EXPERTS_OFFSETS] };
  GR_TRY(gr_infer_need_f32(c, "matmul_id_lora", 1u << X | 1u << A | 1u << B, e));
  gr_infer base = { .n_in = 5, .n_out = 1, .in = in, .out = { c->out[0] } };
  gr_infer low = { .n_in = 5, .n_out = 1, .in = low_in, .out = { c->out[1] } };
  GR_TRY(gr_op_get(GR_OP_matmul_id)->infer(&base, e));
  GR_TRY(gr_op_get(GR_OP_matmul_id)->infer(&low, e));
  GR_TRY(gr_experts_check_stack("matmul_id_lora", b, in[GR_EXPERTS_OFFSETS], e));
  if (b->ne[0] != a->ne[1] || b->ne[1] != w->ne[1] || b->ne[0] > GR_FUSED_DEPTH)
    return gr_fail(e, GR_ERR_MISMATCH, "matmul_id_lora: B %s must hold matrices [%lld, %lld], of a rank of %d at most",
                   gr_tensor_describe(b, text, sizeof text), (long long)a->ne[1], (long long)w->ne[1], GR_FUSED_DEPTH);
  c->out[0] = base.out[0];
  c->out[1] = low.out[0];
  return GR_OK;
}

/* matmul_id of stack and rows, as the op defines it; dense, in double. */
static bool product(const gr_op_call *c, const gr_array *w, const gr_array *x, gr_array *y)
{
  const gr_array *ids = &c->in[GR_EXPERTS_IDS];
  *y = (gr_array){ .dtype = GR_F64, .ne = { w->ne[1], ids->ne[0], ids->ne[1], 1 } };
  gr_strides_contiguous(GR_F64, y->ne, y->nb);
  if (!(y->data = gr_reference_scratch(c, gr_array_count(y)))) return false;
  gr_op_call one = { .op = GR_OP_matmul_id, .n_in = 5, .n_out = 1, .in = { *w, *x }, .out = { *y } };
  for (int i = GR_EXPERTS_IDS; i <= GR_EXPERTS_OFFSETS; i++) one.in[i] = c->in[i];
  gr_op_get(GR_OP_matmul_id)->reference(&one);
  return true;
}

static void reference(const gr_op_call *c)
{
  const struct gr_scale_params *p = c->params;
  gr_array base = { 0 }, h = { 0 }, added = { 0 };
  if (product(c, &c->in[W], &c->in[X], &base) && product(c, &c->in[A], &c->in[X], &h)) {
    for (int64_t i = 0; i < gr_array_count(&h); i++) ((double *)h.data)[i] *= (double)p->s;
    if (product(c, &c->in[B], &h, &added))
      for (int out = 0; out < 2; out++)
        for (gr_row r = { 0 }; gr_row_valid(&r, &c->out[out]); gr_row_next(&r, &c->out[out]))
          for (int64_t i = 0; i < c->out[out].ne[0]; i++)
            gr_row_set(&c->out[out], i, &r, out ? gr_row_get(&h, i, &r) : gr_row_get(&base, i, &r) + gr_row_get(&added, i, &r));
  }
  gr_free(base.data);
  gr_free(h.data);
  gr_free(added.data);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *w = &c->in[W], *a = &c->in[A], *ids = &c->in[GR_EXPERTS_IDS];
  gr_experts_cost(c, k);
  k->flops += 2 * (double)a->ne[1] * (double)(w->ne[0] + w->ne[1]) * (double)gr_array_count(ids);
  k->bytes_read += gr_experts_bytes(a, ids) + gr_experts_bytes(&c->in[B], ids);
  k->bytes_written += 4 * (double)gr_array_count(&c->out[1]);
}

/* ---- cases ---- */

/* Ranks of several sizes, odd ones among them. */
static int64_t rank_of(const gr_experts_shape *x) { return x->routing.n > 200 ? 16 : 1 + (x->k + x->m + x->routing.n) % 7; }

static void fit(gr_case *c, const gr_experts_shape *x)
{
  static const struct gr_scale_params half = { 0.5f };
  const gr_experts_routing *r = &x->routing;
  const int64_t rank = rank_of(x);
  c->params = &half;
  c->in[W] = (gr_case_in){ .dtype = x->type, .ne = { x->k, x->m, r->experts }, .layout = x->other };
  c->in[X] = (gr_case_in){ .ne = { x->k, x->slots, r->n }, .dim = { 0, 0, GR_DIM_TOKENS }, .layout = x->layout, .fill = x->fill };
  c->in[A] = (gr_case_in){ .ne = { x->k, rank, r->experts } };
  c->in[B] = (gr_case_in){ .ne = { rank, x->m, r->experts }, .layout = x->other == GR_LAYOUT_ROWS ? GR_LAYOUT_ROWS : GR_LAYOUT_DENSE };
  gr_experts_zero_tokens(c, r, 2);
}

static void of_rank(gr_case *c, const gr_experts_shape *x)
{
  fit(c, x);
  c->in[A].ne[1] = c->in[B].ne[0] = 70;
}

static void of_other_rank(gr_case *c, const gr_experts_shape *x)
{
  fit(c, x);
  c->in[B].ne[0]++;
}

static void of_other_experts(gr_case *c, const gr_experts_shape *x)
{
  fit(c, x);
  c->in[B].ne[2]++;
}

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-5, .max = 1e-4, .seen = 4.2e-6, .defect = 6e-5 };
  s->slice = gr_experts_slice_pairs;
  gr_experts_cases(s, fit, true);
  gr_experts_perf(s, fit, true);
  gr_experts_refusals(s, fit, true);
  gr_experts_shape x = { .type = GR_Q4_K, .k = 2048, .m = 150, .slots = 1, .routing = { "", 2, 140, 3, gr_fill_below(3), 0 } };
  gr_experts_case(s, of_rank, &(gr_case){ .name = "a large rank, several panels and parts" }, &x);
  x.k = 5120, x.m = 40, x.type = GR_Q8_0, x.routing.n = 30;
  gr_experts_case(s, fit, &(gr_case){ .name = "several chunks" }, &x);
  x.k = 32, x.type = GR_F32;
  gr_experts_case(s, of_other_rank, &(gr_case){ .refuse = GR_ERR_MISMATCH, .says = "of a rank of" }, &x);
  gr_experts_case(s, of_other_experts, &(gr_case){ .refuse = GR_ERR_MISMATCH, .says = "are not those of 4 experts" }, &x);
}

gr_tensor *gr_matmul_id_lora(gr_graph *g, gr_tensor *w, gr_tensor *x, gr_tensor *ids, gr_tensor *perm, gr_tensor *offsets, gr_tensor *a,
                             gr_tensor *b, float scale)
{
  struct gr_scale_params p = { scale };
  return gr_graph_node(g, GR_OP_matmul_id_lora, (gr_tensor *[]){ w, x, ids, perm, offsets, a, b }, 7, &p);
}

const gr_op gr_op_matmul_id_lora = {
  .inputs_min = 7,
  .inputs_max = 7,
  .outputs = 2,
  .flags = GR_OP_FUSED,
  .params_bytes = sizeof(struct gr_scale_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
