/* Fused: y = rms_norm(x) * w, x [n, ...] and w [n] F32. Made by the fusion pass; the two nodes it replaces are its oracle. */
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  GR_TRY(gr_infer_need_f32(c, "rms_norm_mul", 3, e));
  GR_TRY(gr_infer_need_channels("rms_norm_mul", c->in[1], c->in[0], e));
  gr_infer_like(&c->out[0], c->in[0]);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_norm_params *p = c->params;
  const gr_array *x = &c->in[0], *w = &c->in[1], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y)) {
    double squares = 0;
    for (int64_t i = 0; i < x->ne[0]; i++) squares += gr_row_get(x, i, &r) * gr_row_get(x, i, &r);
    double rho = 1 / sqrt(squares / (double)x->ne[0] + (double)p->eps);
    for (int64_t i = 0; i < x->ne[0]; i++) gr_row_set(y, i, &r, gr_row_get(x, i, &r) * rho * gr_array_get(w, i, 0, 0, 0));
  }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = 4 * n, .bytes_read = 4 * (n + (double)c->in[1].ne[0]), .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 1e-7, .defect = 2e-4 };
  struct gr_norm_params p = { 1e-6f };
  gr_case_add(s, &(gr_case){ .params = &p, .in = { { .ne = { 67, 5 }, .dim = { 0, GR_DIM_TOKENS } }, { .ne = { 67 } } } });
  gr_case_add(
      s, &(gr_case){ .name = "heads", .params = &p, .in = { { .ne = { 16, 3, 7 }, .dim = { 0, 0, GR_DIM_TOKENS } }, { .ne = { 16 } } } });
  gr_case_add(s, &(gr_case){ .params = &p, .in = { { .ne = { 16384, 3 }, .fill = gr_fill_uniform(0, 4) }, { .ne = { 16384 } } } });
  gr_case_add(s,
              &(gr_case){ .name = "near 0", .params = &p, .in = { { .ne = { 33, 3 }, .fill = gr_fill_normal(1e-3) }, { .ne = { 33 } } } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s, &(gr_case){ .params = &p,
                               .in = { { .ne = { 13, 7, 2 }, .layout = (gr_layout)a }, { .ne = { 13 }, .layout = GR_LAYOUT_OFFSET } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .params = &p, .in = { { .ne = { 2048, 512 } }, { .ne = { 2048 } } } });
  gr_case_add(s, &(gr_case){ .params = &p,
                             .in = { { .ne = { 6, 5 } }, { .ne = { 3 } } },
                             .refuse = GR_ERR_MISMATCH,
                             .says = "one weight for each channel" });
}

gr_tensor *gr_rms_norm_mul(gr_graph *g, gr_tensor *x, gr_tensor *w, float eps)
{
  struct gr_norm_params p = { .eps = eps };
  return gr_graph_node(g, GR_OP_rms_norm_mul, (gr_tensor *[]){ x, w }, 2, &p);
}

const gr_op gr_op_rms_norm_mul = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .flags = GR_OP_FUSED,
  .params_bytes = sizeof(struct gr_norm_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
