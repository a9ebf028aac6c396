/* Fused: the gradient of a stack of experts and its adapter to x, dx = (sum +) W^T dy + A^T h and h = s B^T dy by the matrices of each
 * pair's expert: w [k,m,E] of any type, dy [m,used,n], ids [k,n] and their grouping (ops/experts.h), a [k,r,E], b [r,m,E] F32, and sum
 * [k,slots,n] or NULL, what x has of gradient already; dx [k,slots,n], summed over the pairs that read one row of x, and h [r,used,n],
 * which the gradient of A reads: zeros for pairs that go nowhere. Made by the fusion pass; the nodes it replaces (three matmul_id_back, a
 * scale, up to two sums) are its oracle. */
#include "base/alloc.h"
#include "ops/experts.h"
#include "ops/fused.h"

enum { W, DY, A = GR_EXPERTS_OFFSETS + 1, B, SUM };

static gr_status infer(gr_infer *c, gr_error *e)
{
  char text[160];
  const struct gr_slots_lora_params *p = c->params;
  const struct gr_slots_params slots = { p->slots };
  gr_tensor *const *in = c->in, *low_in[] = { in[B], in[DY], in[GR_EXPERTS_IDS], in[GR_EXPERTS_PERM], in[GR_EXPERTS_OFFSETS] };
  const gr_tensor *w = in[W], *a = in[A], *b = in[B], *sum = c->n_in > SUM ? in[SUM] : NULL;
  GR_TRY(gr_infer_need_f32(c, "matmul_id_lora_back", 1u << DY | 1u << A | 1u << B | 1u << SUM, e));
  gr_infer base = { .params = &slots, .n_in = 5, .n_out = 1, .in = in, .out = { c->out[0] } };
  GR_TRY(gr_op_get(GR_OP_matmul_id_back)->infer(&base, e));
  const struct gr_slots_params each = { in[GR_EXPERTS_IDS]->ne[0] };
  gr_infer low = { .params = &each, .n_in = 5, .n_out = 1, .in = low_in, .out = { c->out[1] } };
  GR_TRY(gr_op_get(GR_OP_matmul_id_back)->infer(&low, e));
  GR_TRY(gr_experts_check_stack("matmul_id_lora_back", a, in[GR_EXPERTS_OFFSETS], e));
  if (a->ne[0] != w->ne[0] || a->ne[1] != b->ne[0] || b->ne[0] > GR_FUSED_DEPTH)
    return gr_fail(e, GR_ERR_MISMATCH, "matmul_id_lora_back: A %s must hold matrices [%lld, %lld], of a rank of %d at most",
                   gr_tensor_describe(a, text, sizeof text), (long long)w->ne[0], (long long)b->ne[0], GR_FUSED_DEPTH);
  for (int i = 0; sum && i < GR_DIMS; i++)
    if (sum->ne[i] != base.out[0].ne[i] || sum->dim[i] != base.out[0].dim[i])
      return gr_fail(e, GR_ERR_MISMATCH, "matmul_id_lora_back: %s has not the shape of the gradient",
                     gr_tensor_describe(sum, text, sizeof text));
  c->out[0] = base.out[0];
  c->out[1] = low.out[0];
  return GR_OK;
}

/* matmul_id_back of a stack and rows, as the op defines it; dense, in double. */
static bool product(const gr_op_call *c, const gr_array *w, const gr_array *dy, int64_t slots, gr_array *d)
{
  const struct gr_slots_params p = { slots };
  *d = (gr_array){ .dtype = GR_F64, .ne = { w->ne[0], slots, c->in[GR_EXPERTS_IDS].ne[1], 1 } };
  gr_strides_contiguous(GR_F64, d->ne, d->nb);
  if (!(d->data = gr_reference_scratch(c, gr_array_count(d)))) return false;
  gr_op_call one = { .op = GR_OP_matmul_id_back, .params = &p, .n_in = 5, .n_out = 1, .in = { *w, *dy }, .out = { *d } };
  for (int i = GR_EXPERTS_IDS; i <= GR_EXPERTS_OFFSETS; i++) one.in[i] = c->in[i];
  gr_op_get(GR_OP_matmul_id_back)->reference(&one);
  return true;
}

static void reference(const gr_op_call *c)
{
  const struct gr_slots_lora_params *p = c->params;
  const gr_array *dx = &c->out[0], *h = &c->out[1], *sum = &c->in[SUM];
  gr_array base = { 0 }, low = { 0 }, added = { 0 };
  if (product(c, &c->in[W], &c->in[DY], p->slots, &base) && product(c, &c->in[B], &c->in[DY], c->in[GR_EXPERTS_IDS].ne[0], &low)) {
    for (int64_t i = 0; i < gr_array_count(&low); i++) ((double *)low.data)[i] *= (double)p->s;
    for (gr_row r = { 0 }; gr_row_valid(&r, h); gr_row_next(&r, h))
      for (int64_t i = 0; i < h->ne[0]; i++) gr_row_set(h, i, &r, gr_row_get(&low, i, &r));
    if (product(c, &c->in[A], &low, p->slots, &added))
      for (gr_row r = { 0 }; gr_row_valid(&r, dx); gr_row_next(&r, dx))
        for (int64_t i = 0; i < dx->ne[0]; i++) {
          double first = c->n_in > SUM && sum->ne[0] ? gr_row_get(sum, i, &r) : 0;
          gr_row_set(dx, i, &r, first + gr_row_get(&base, i, &r) + gr_row_get(&added, i, &r));
        }
  }
  gr_free(base.data);
  gr_free(low.data);
  gr_free(added.data);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *w = &c->in[W], *a = &c->in[A], *ids = &c->in[GR_EXPERTS_IDS];
  const double added = c->n_in > SUM && c->in[SUM].ne[0] ? (double)gr_array_count(&c->out[0]) : 0;
  gr_experts_cost(c, k);
  k->flops += 2 * (double)a->ne[1] * (double)(w->ne[0] + w->ne[1]) * (double)gr_array_count(ids) + added;
  k->bytes_read += gr_experts_bytes(a, ids) + gr_experts_bytes(&c->in[B], ids) + 4 * added;
  k->bytes_written += 4 * (double)gr_array_count(&c->out[1]);
}

/* ---- cases ---- */

static void fit(gr_case *c, const gr_experts_shape *x)
{
  static const struct gr_slots_lora_params half[] = { { 0, 0.5f }, { 1, 0.5f }, { 2, 0.5f }, { 3, 0.5f }, { 4, 0.5f },
                                                      { 5, 0.5f }, { 6, 0.5f }, { 7, 0.5f }, { 8, 0.5f } };
  const gr_experts_routing *r = &x->routing;
  const int64_t rank = r->n > 200 ? 16 : 1 + (x->k + x->m + r->n) % 7; /* odd ones among them */
  c->params = &half[x->slots];
  c->in[W] = (gr_case_in){ .dtype = x->type, .ne = { x->k, x->m, r->experts }, .layout = x->other };
  c->in[DY] = (gr_case_in){ .ne = { x->m, r->used, r->n }, .dim = { 0, 0, GR_DIM_TOKENS }, .layout = x->layout, .fill = x->fill };
  c->in[A] = (gr_case_in){ .ne = { x->k, rank, r->experts }, .layout = x->other == GR_LAYOUT_ROWS ? GR_LAYOUT_ROWS : GR_LAYOUT_DENSE };
  c->in[B] = (gr_case_in){ .ne = { rank, x->m, r->experts } };
  gr_experts_zero_tokens(c, r, 2);
}

static void with_sum(gr_case *c, const gr_experts_shape *x)
{
  fit(c, x);
  c->n_zero = 0;
  c->flags &= ~(unsigned)GR_CASE_ZERO;
  c->in[SUM] = (gr_case_in){ .ne = { x->k, x->slots, x->routing.n }, .dim = { 0, 0, GR_DIM_TOKENS }, .layout = x->layout };
}

static void of_rank(gr_case *c, const gr_experts_shape *x)
{
  with_sum(c, x);
  c->in[A].ne[1] = c->in[B].ne[0] = 70;
}

static void of_other_rank(gr_case *c, const gr_experts_shape *x)
{
  fit(c, x);
  c->in[A].ne[1]++;
}

static void of_other_sum(gr_case *c, const gr_experts_shape *x)
{
  with_sum(c, x);
  c->in[SUM].ne[0]++;
}

/* Every routing, type of weight and layout on top of a gradient that is there already. */
static void sums(gr_case_sink *s)
{
  gr_dtype type;
  gr_experts_shape x = { .k = 37, .m = 19 };
  for (int i = 0; gr_experts_routing_get(i, &x.routing); i++)
    for (int each = 0; each < 2; each++) {
      x.slots = each ? x.routing.used : 1;
      gr_experts_case(s, with_sum, &(gr_case){ .name = "on top of a sum" }, &x);
    }
  gr_experts_routing_get(11, &x.routing);
  for (int i = 0; gr_case_weight_type(i, &type); i++) {
    x.type = type, x.k = gr_dtype_get(type)->block_elems == 1 ? 67 : 512, x.slots = i % 2 ? 1 : x.routing.used;
    gr_experts_case(s, with_sum, &(gr_case){ .name = "on top of a sum, tails" }, &x);
  }
  x.type = GR_F32, x.slots = 1;
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_OFFSET; a++) {
    x.layout = (gr_layout)a, x.slots = x.routing.used - x.slots + 1;
    gr_experts_case(s, with_sum, &(gr_case){ .name = "on top of a strided sum" }, &x);
  }
}

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-5, .max = 1e-4, .seen = 4.2e-6, .defect = 1.2e-4 };
  s->slice = gr_experts_slice_pairs;
  gr_experts_cases(s, fit, true);
  gr_experts_perf(s, fit, true);
  gr_experts_refusals(s, fit, true);
  sums(s);
  gr_experts_shape x = { .type = GR_Q4_K, .k = 1024, .m = 150, .slots = 1, .routing = { "", 2, 140, 3, gr_fill_below(3), 0 } };
  gr_experts_case(s, of_rank, &(gr_case){ .name = "a large rank, several panels and parts" }, &x);
  x.slots = 2;
  gr_experts_case(s, of_rank, &(gr_case){ .name = "a large rank, several panels and parts" }, &x);
  x.k = 32, x.m = 2600, x.type = GR_Q8_0, x.routing.n = 30;
  gr_experts_case(s, with_sum, &(gr_case){ .name = "several chunks" }, &x);
  x.m = 40, x.type = GR_F32;
  gr_experts_case(s, of_other_rank, &(gr_case){ .refuse = GR_ERR_MISMATCH, .says = "of a rank of" }, &x);
  gr_experts_case(s, of_other_sum, &(gr_case){ .refuse = GR_ERR_MISMATCH, .says = "shape of the gradient" }, &x);
  x.slots = 3;
  gr_experts_case(s, fit, &(gr_case){ .refuse = GR_ERR_MISMATCH, .says = "3 rows a token" }, &x);
}

gr_tensor *gr_matmul_id_lora_back(gr_graph *g, gr_tensor *w, gr_tensor *dy, gr_tensor *const route[3], gr_tensor *a, gr_tensor *b,
                                  gr_tensor *sum, const struct gr_slots_lora_params *p)
{
  return gr_graph_node(g, GR_OP_matmul_id_lora_back, (gr_tensor *[]){ w, dy, route[0], route[1], route[2], a, b, sum }, sum ? 8 : 7, p);
}

const gr_op gr_op_matmul_id_lora_back = {
  .inputs_min = 7,
  .inputs_max = 8,
  .outputs = 2,
  .flags = GR_OP_FUSED | GR_OP_ALIAS_LAST,
  .params_bytes = sizeof(struct gr_slots_lora_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
