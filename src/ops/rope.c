/* Rotates pairs of each head of x [dh,H,n] by the token's angles, given as cosines and sines [n_rot/2,n] that the host computed in
 * double (magnitude scaling included); dimensions from n_rot on pass through. With c, s of pair p:
 *   y0 = x0 c - x1 s,  y1 = x0 s + x1 c;  inverse: y0 = x0 c + x1 s,  y1 = x1 c - x0 s, the transposed matrix.
 * Pairs: NORMAL (2p, 2p+1), NEOX (p, p + n_rot/2).
 * Gradient: dx = the same rotation of dy, the other way round; angles have none. */
#include "base/mutant.h"
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_rope_params *p = c->params;
  const gr_tensor *x = c->in[0], *cosines = c->in[1];
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "rope", 7, e));
  GR_TRY(gr_infer_need_same("rope", c->in[1], c->in[2], e));
  gr_tensor_describe(x, a, sizeof a);
  gr_tensor_describe(cosines, b, sizeof b);
  if (p->mode != GR_ROPE_NORMAL && p->mode != GR_ROPE_NEOX)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "rope: there is no mode %d", (int)p->mode);
  if (x->ne[3] != 1 || cosines->ne[2] != 1 || cosines->ne[3] != 1)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "rope: takes heads [dh, H, n] and angles [n_rot/2, n], not %s and %s", a, b);
  if (cosines->ne[0] > x->ne[0] / 2) return gr_fail(e, GR_ERR_MISMATCH, "rope: %s holds more pairs than the heads of %s have", b, a);
  if (cosines->ne[1] != x->ne[2] || cosines->dim[1] != x->dim[2])
    return gr_fail(e, GR_ERR_MISMATCH, "rope: %s and the angles %s differ in tokens", a, b);
  gr_infer_like(&c->out[0], x);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  const struct gr_rope_params *p = (const void *)b->node->params;
  GR_TRY(gr_backward_refuse(b, 6, "angles are constants", e));
  if (b->wants[0])
    b->din[0] =
        gr_rope(b->graph, b->dout[0], b->node->in[1], b->node->in[2], p->mode, GR_MUTANT(rule_rope_same_sign) ? p->inverse : !p->inverse);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_rope_params *p = c->params;
  const gr_array *x = &c->in[0], *cosines = &c->in[1], *sines = &c->in[2], *y = &c->out[0];
  int64_t half = cosines->ne[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y)) {
    for (int64_t i = 0; i < half; i++) {
      int64_t i0 = p->mode == GR_ROPE_NEOX ? i : 2 * i, i1 = p->mode == GR_ROPE_NEOX ? i + half : 2 * i + 1;
      double x0 = gr_row_get(x, i0, &r), x1 = gr_row_get(x, i1, &r);
      double co = gr_array_get(cosines, i, r.i2, 0, 0), si = gr_array_get(sines, i, r.i2, 0, 0);
      if (p->inverse) si = -si;
      gr_row_set(y, i0, &r, x0 * co - x1 * si);
      gr_row_set(y, i1, &r, x0 * si + x1 * co);
    }
    for (int64_t i = 2 * half; i < x->ne[0]; i++) gr_row_set(y, i, &r, gr_row_get(x, i, &r));
  }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 3 * n, .bytes_read = 4 * (n + 2 * (double)gr_array_count(&c->in[1])), .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 4.7e-8, .defect = 2e-4 };
  struct gr_rope_params p[4], wrong = { 7, 0 };
  gr_case_in angle = { .ne = { 4, 5 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_uniform(-1, 1) };
  gr_case_in x = { .ne = { 8, 3, 5 }, .dim = { 0, 0, GR_DIM_TOKENS }, .grad = true }, partial = x, odd = x;
  partial.ne[0] = 14, odd.ne[0] = 11;
  for (int i = 0; i < 4; i++) {
    p[i] = (struct gr_rope_params){ .mode = i & 1, .inverse = i >> 1 };
    gr_case_add(s, &(gr_case){ .name = i >> 1 ? "inverse" : "", .params = &p[i], .in = { x, angle, angle } });
    gr_case_add(s, &(gr_case){ .name = "part of the head", .params = &p[i], .in = { partial, angle, angle } });
    gr_case_add(s, &(gr_case){ .name = "a head of odd size", .params = &p[i], .in = { odd, angle, angle } });
    gr_case_add(s, &(gr_case){ .name = "one token",
                               .params = &p[i],
                               .in = { { .ne = { 64, 1, 1 }, .grad = true }, { .ne = { 32, 1 } }, { .ne = { 32, 1 } } } });
    gr_case_add(s, &(gr_case){ .name = "many tokens",
                               .flags = GR_CASE_NO_GRAD,
                               .params = &p[i],
                               .in = { { .ne = { 64, 9, 130 }, .dim = { 0, 0, GR_DIM_TOKENS } },
                                       { .ne = { 32, 130 }, .dim = { 0, GR_DIM_TOKENS } },
                                       { .ne = { 32, 130 }, .dim = { 0, GR_DIM_TOKENS } } } });
    for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
      gr_case_add(s, &(gr_case){ .params = &p[i],
                                 .in = { { .ne = { 8, 3, 5 }, .layout = (gr_layout)a, .grad = true },
                                         { .ne = { 4, 5 }, .layout = GR_LAYOUT_ROWS },
                                         { .ne = { 4, 5 }, .layout = GR_LAYOUT_OFFSET } } });
    gr_case_add(s, &(gr_case){ .name = "gradients to 1.5e5",
                               .flags = GR_CASE_NO_GRAD,
                               .params = &p[i],
                               .in = { { .ne = { 8, 3, 5 }, .fill = gr_fill_normal(1.5e5) }, { .ne = { 4, 5 } }, { .ne = { 4, 5 } } } });
    if (i < 2)
      gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF,
                                 .params = &p[i],
                                 .in = { { .ne = { 128, 32, 512 } }, { .ne = { 64, 512 } }, { .ne = { 64, 512 } } } });
  }
  gr_case_in wide = angle, fewer = angle;
  wide.ne[0] = 5, fewer.ne[1] = 4;
  gr_case_add(s, &(gr_case){ .params = &p[0], .in = { x, wide, wide }, .refuse = GR_ERR_MISMATCH, .says = "more pairs" });
  gr_case_add(s, &(gr_case){ .params = &p[0], .in = { x, fewer, fewer }, .refuse = GR_ERR_MISMATCH, .says = "differ in tokens" });
  gr_case_add(s, &(gr_case){ .params = &p[0], .in = { x, angle, fewer }, .refuse = GR_ERR_MISMATCH, .says = "differ in shape" });
  gr_case_add(s, &(gr_case){ .params = &wrong, .in = { x, angle, angle }, .refuse = GR_ERR_UNSUPPORTED, .says = "no mode 7" });
  gr_case_add(
      s, &(gr_case){ .params = &p[0], .in = { { .ne = { 8, 3, 5, 2 } }, angle, angle }, .refuse = GR_ERR_UNSUPPORTED, .says = "heads" });
  gr_case_add(
      s,
      &(gr_case){ .params = &p[0], .in = { x, angle, angle }, .wants = 3, .refuse = GR_ERR_UNSUPPORTED, .says = "angles are constants" });
}

gr_tensor *gr_rope(gr_graph *g, gr_tensor *x, gr_tensor *cos, gr_tensor *sin, int mode, bool inverse)
{
  struct gr_rope_params p = { .mode = mode, .inverse = inverse };
  return gr_graph_node(g, GR_OP_rope, (gr_tensor *[]){ x, cos, sin }, 3, &p);
}

const gr_op gr_op_rope = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 1,
  .flags = GR_OP_ALIAS,
  .saves_in = 6,
  .params_bytes = sizeof(struct gr_rope_params),
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
