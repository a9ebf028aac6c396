/* Gradients of glu from gate, up and dy: outputs dgate, dup. Formulas: ops/glu.h. */
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

gr_tensor *gr_glu_back(gr_graph *g, int kind, gr_tensor *gate, gr_tensor *up, gr_tensor *dy)
{
  struct gr_glu_params p = { .kind = kind };
  return gr_graph_node(g, GR_OP_glu_back, (gr_tensor *[]){ gate, up, dy }, 3, &p);
}

const gr_op gr_op_glu_back = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 2,
  .flags = GR_OP_NO_BACKWARD,
  .params_bytes = sizeof(struct gr_glu_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
};
