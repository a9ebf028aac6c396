/* y = act(gate) * up, elementwise, gate and up of one shape. Gradient: glu_back, which gives both. Formulas: ops/glu.h. */
#include "ops/glu.h"

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
  if (b->wants[0]) b->din[0] = dgate;
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
};
