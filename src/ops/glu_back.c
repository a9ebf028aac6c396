/* Gradients of glu from gate, up and dy: outputs dgate, dup. Formulas: ops/glu.h. */
#include "ops/cases.h"
#include "ops/glu.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_glu_params *p = c->params;
  GR_TRY(gr_infer_need_f32(c, "glu_back", 7, e));
  for (int i = 1; i < 3; i++) GR_TRY(gr_infer_need_same("glu_back", c->in[0], c->in[i], e));
  if (p->kind < 0 || p->kind >= GR_GLU_KINDS) return gr_fail(e, GR_ERR_UNSUPPORTED, "glu_back: there is no kind %d", (int)p->kind);
  for (int i = 0; i < 2; i++) gr_infer_like(&c->out[i], c->in[0]);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_glu_params *p = c->params;
  const gr_array *gate = &c->in[0], *up = &c->in[1], *dy = &c->in[2];
  for (gr_row r = { 0 }; gr_row_valid(&r, dy); gr_row_next(&r, dy))
    for (int64_t i = 0; i < dy->ne[0]; i++) {
      gr_glu_value v = gr_glu_reference(p->kind, gr_row_get(gate, i, &r), gr_row_get(up, i, &r));
      double d = gr_row_get(dy, i, &r);
      gr_row_set(&c->out[0], i, &r, d * v.dg);
      gr_row_set(&c->out[1], i, &r, d * v.du);
    }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 16 * n, .bytes_read = 12 * n, .bytes_written = 8 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 2.3e-7, .defect = 2e-4 };
  struct gr_glu_params p[GR_GLU_KINDS];
  gr_case_in x = { .ne = { 67, 5 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_uniform(-9, 9) }, large = x;
  large.fill = gr_fill_normal(1.5e5);
  for (int i = 0; i < GR_GLU_KINDS; i++) {
    p[i].kind = i;
    gr_case_add(s, &(gr_case){ .params = &p[i], .in = { x, x, x } });
    gr_case_add(s, &(gr_case){ .name = "gradients to 1.5e5", .params = &p[i], .in = { x, x, large } });
    gr_case_add(s, &(gr_case){ .name = "near 0",
                               .params = &p[i],
                               .in = { { .ne = { 33 }, .fill = gr_fill_normal(1e-6) }, { .ne = { 33 } }, { .ne = { 33 } } } });
    gr_case_add(s, &(gr_case){ .name = "saturated",
                               .params = &p[i],
                               .in = { { .ne = { 9, 5 }, .fill = GR_FILL_LIST(-800, -90, -20, 20, 90, 800, 1e4, -1e4, 0) },
                                       { .ne = { 9, 5 } },
                                       { .ne = { 9, 5 } } } });
    gr_case_add(s,
                &(gr_case){ .name = "many rows",
                            .params = &p[i],
                            .in = { { .ne = { 1536, 33 }, .fill = gr_fill_normal(3) }, { .ne = { 1536, 33 } }, { .ne = { 1536, 33 } } } });
    for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
      gr_case_add(s, &(gr_case){ .params = &p[i],
                                 .in = { { .ne = { 13, 7, 2 }, .layout = (gr_layout)a },
                                         { .ne = { 13, 7, 2 }, .layout = GR_LAYOUT_ROWS },
                                         { .ne = { 13, 7, 2 }, .layout = GR_LAYOUT_TRANSPOSED } } });
    gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF,
                               .params = &p[i],
                               .in = { { .ne = { 5632, 512 } }, { .ne = { 5632, 512 } }, { .ne = { 5632, 512 } } } });
  }
  gr_case_add(s, &(gr_case){ .params = &p[0], .in = { x, x, { .ne = { 67, 4 } } }, .refuse = GR_ERR_MISMATCH, .says = "differ in shape" });
}

gr_tensor *gr_glu_back(gr_graph *g, int kind, gr_tensor *gate, gr_tensor *up, gr_tensor *dy)
{
  struct gr_glu_params p = { .kind = kind };
  return gr_graph_node(g, GR_OP_glu_back, (gr_tensor *[]){ gate, up, dy }, 3, &p);
}

const gr_op gr_op_glu_back = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 2,
  .flags = GR_OP_NO_BACKWARD | GR_OP_ALIAS_BOTH,
  .params_bytes = sizeof(struct gr_glu_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
