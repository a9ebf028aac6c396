/* Sorts the pairs (slot, token) of ids [k,n] by expert, once for all that a layer does with them: perm [k,n] and offsets [E+1], both I32,
 * as ops/experts.h says. Stable, so that sums over an expert's pairs run by token. No gradient passes. */
#include "ops/experts.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_group_params *p = c->params;
  const gr_tensor *ids = c->in[0];
  char text[160];
  gr_tensor_describe(ids, text, sizeof text);
  if (ids->dtype != GR_I32) return gr_fail(e, GR_ERR_UNSUPPORTED, "group_experts: ids must be I32, not %s", text);
  if (ids->ne[2] != 1 || ids->ne[3] != 1 || ids->dim[0] != GR_DIM_STATIC)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "group_experts: takes ids [slots, tokens], not %s", text);
  if (p->experts < 1 || p->experts >= INT32_MAX || ids->ne[0] < 1 || ids->ne[1] > INT32_MAX / ids->ne[0])
    return gr_fail(e, GR_ERR_UNSUPPORTED, "group_experts: %s by %lld experts cannot be counted in 32 bits", text, (long long)p->experts);
  c->out[0].dtype = c->out[1].dtype = GR_I32;
  gr_infer_like(&c->out[0], ids);
  c->out[1].ne[0] = p->experts + 1;
  return GR_OK;
}

static void reference(const gr_op_call *c) { gr_experts_group(&c->in[0], &c->out[0], &c->out[1]); }

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->in[0]);
  *k = (gr_cost){ .bytes_read = 8 * n, .bytes_written = 4 * (n + (double)c->out[1].ne[0]) };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-30, .max = 1e-30, .defect = 1e-4 }; /* integers: exact */
  gr_experts_routing r;
  for (int i = 0; gr_experts_routing_get(i, &r); i++) {
    struct gr_group_params p = { r.experts };
    gr_case_add(s, &(gr_case){ .name = r.name,
                               .params = &p,
                               .in = { { .dtype = GR_I32, .ne = { r.used, r.n }, .dim = { 0, GR_DIM_TOKENS }, .fill = r.ids } } });
    for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
      gr_case_add(s, &(gr_case){ .name = "strided",
                                 .params = &p,
                                 .in = { { .dtype = GR_I32, .ne = { r.used, r.n }, .layout = (gr_layout)a, .fill = r.ids } } });
  }
  static const struct gr_group_params many = { 128 }, none = { 0 }, too_many = { INT32_MAX };
  gr_case_in ids = { .dtype = GR_I32, .ne = { 8, 512 }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_below(128) };
  gr_case_add(s, &(gr_case){ .name = "training", .params = &many, .in = { ids } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .params = &many, .in = { ids } });
  gr_case_add(s, &(gr_case){ .params = &many, .in = { { .ne = { 8, 5 } } }, .refuse = GR_ERR_UNSUPPORTED, .says = "ids must be I32" });
  gr_case_add(s, &(gr_case){ .params = &none, .in = { ids }, .refuse = GR_ERR_UNSUPPORTED, .says = "by 0 experts" });
  gr_case_add(s, &(gr_case){ .params = &too_many, .in = { ids }, .refuse = GR_ERR_UNSUPPORTED, .says = "cannot be counted" });
  ids.ne[2] = 2;
  gr_case_add(s, &(gr_case){ .params = &many, .in = { ids }, .refuse = GR_ERR_UNSUPPORTED, .says = "[slots, tokens]" });
}

gr_tensor *gr_group_experts(gr_graph *g, gr_tensor *ids, int64_t experts)
{
  struct gr_group_params p = { experts };
  return gr_graph_node(g, GR_OP_group_experts, &ids, 1, &p);
}

const gr_op gr_op_group_experts = {
  .inputs_min = 1,
  .inputs_max = 1,
  .outputs = 2,
  .flags = GR_OP_KEEP | GR_OP_NO_BACKWARD,
  .params_bytes = sizeof(struct gr_group_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
