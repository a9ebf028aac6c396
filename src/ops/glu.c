/* y = act(gate) * up, elementwise, gate and up of one shape. Gradient: glu_back, which gives both. Formulas: ops/glu.h. */
#include "ops/glu.h"
#include "base/mutant.h"
#include "ops/cases.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_glu_params *p = c->params;
  GR_TRY(gr_infer_need_f32(c, "glu", 3, e));
  GR_TRY(gr_infer_need_same("glu", c->in[0], c->in[1], e));
  if (p->kind < 0 || p->kind >= GR_GLU_KINDS) return gr_fail(e, GR_ERR_UNSUPPORTED, "glu: there is no kind %d", (int)p->kind);
  gr_infer_like(&c->out[0], c->in[0]);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  const struct gr_glu_params *p = (const void *)b->node->params;
  if (!b->wants[0] && !b->wants[1]) return GR_OK;
  gr_tensor *dgate = gr_glu_back(b->graph, p->kind, b->node->in[0], b->node->in[1], b->dout[0]);
  if (!dgate) return GR_OK;
  if (b->wants[0]) b->din[0] = GR_MUTANT(rule_glu_swapped) ? dgate->node->out[1] : dgate;
  if (b->wants[1]) b->din[1] = dgate->node->out[1];
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_glu_params *p = c->params;
  const gr_array *gate = &c->in[0], *up = &c->in[1], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y))
    for (int64_t i = 0; i < y->ne[0]; i++)
      gr_row_set(y, i, &r, gr_glu_reference(p->kind, gr_row_get(gate, i, &r), gr_row_get(up, i, &r)).y);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 10 * n, .bytes_read = 8 * n, .bytes_written = 4 * n };
}

/* ---- cases ---- */

/* SWIGLU_OAI bends at gate 7 and at up -7 and 7: values stay clear of them, on both sides. */
static const double clear_of_kinks[] = { -9, -7.5, -6.5, -2, -0.7, 1e-4, 0.4, 1.9, 6.4, 7.6, 8.8 };

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 9.3e-8, .defect = 2e-4 };
  struct gr_glu_params p[GR_GLU_KINDS], wrong = { GR_GLU_KINDS };
  gr_case_in x = { .ne = { 67, 5 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_uniform(-5, 5), .grad = true };
  for (int i = 0; i < GR_GLU_KINDS; i++) {
    p[i].kind = i;
    gr_case_add(s, &(gr_case){ .params = &p[i], .in = { x, x } });
    gr_case_add(s, &(gr_case){ .name = "both sides of the limits",
                               .params = &p[i],
                               .in = { { .ne = { 11, 7 }, .fill = gr_fill_values(clear_of_kinks, 11), .grad = true },
                                       { .ne = { 11, 7 }, .fill = gr_fill_values(clear_of_kinks, 10), .grad = true } } });
    gr_case_add(s, &(gr_case){ .name = "near 0",
                               .params = &p[i],
                               .in = { { .ne = { 33, 2 }, .fill = gr_fill_normal(1e-6), .grad = true },
                                       { .ne = { 33, 2 }, .fill = gr_fill_normal(1e-6), .grad = true } } });
    gr_case_add(
        s, &(gr_case){ .name = "saturated",
                       .flags = GR_CASE_NO_GRAD,
                       .params = &p[i],
                       .in = { { .ne = { 9, 5 }, .fill = GR_FILL_LIST(-800, -90, -20, 20, 90, 800, 1e4, -1e4, 0) }, { .ne = { 9, 5 } } } });
    gr_case_add(s, &(gr_case){ .name = "many rows",
                               .flags = GR_CASE_NO_GRAD,
                               .params = &p[i],
                               .in = { { .ne = { 1536, 33 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_normal(3) },
                                       { .ne = { 1536, 33 }, .dim = { 0, GR_DIM_TOKENS } } } });
    for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
      gr_case_add(s, &(gr_case){ .params = &p[i],
                                 .in = { { .ne = { 13, 7, 2 }, .layout = (gr_layout)a, .grad = true },
                                         { .ne = { 13, 7, 2 }, .layout = GR_LAYOUT_ROWS, .grad = true } } });
    gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .params = &p[i], .in = { { .ne = { 5632, 512 } }, { .ne = { 5632, 512 } } } });
  }
  gr_case_add(s, &(gr_case){ .params = &p[0], .in = { x, { .ne = { 67, 4 } } }, .refuse = GR_ERR_MISMATCH, .says = "differ in shape" });
  gr_case_add(s, &(gr_case){ .params = &wrong, .in = { x, x }, .refuse = GR_ERR_UNSUPPORTED, .says = "no kind" });
}

gr_tensor *gr_glu(gr_graph *g, int kind, gr_tensor *gate, gr_tensor *up)
{
  struct gr_glu_params p = { .kind = kind };
  return gr_graph_node(g, GR_OP_glu, (gr_tensor *[]){ gate, up }, 2, &p);
}

const gr_op gr_op_glu = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .saves_in = 3,
  .params_bytes = sizeof(struct gr_glu_params),
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
