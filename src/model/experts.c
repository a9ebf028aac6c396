/* A mixture of experts: each token goes through the few that its router chooses (architectures.md 3.5). */
#include "base/mutant.h"
#include "model/arch.h"

/* ggml's lower bound of the sum that weights are divided by. */
static const float sum_min = 6.103515625e-5f;

/* The router's gradient flows into x whether or not the router is trained: it is a linear like others. */
static gr_routing route(gr_builder *b, gr_tensor *x, enum gr_bias bias)
{
  const gr_hparams *hp = &b->model->hp;
  gr_routing r = { 0 };
  const struct gr_route_params p = { .used = hp->experts_used,
                                     .gating = hp->gating,
                                     .renormalise = hp->renormalise && !GR_MUTANT(model_no_renormalise),
                                     .clamp = sum_min,
                                     .scale = hp->expert_scale };
  gr_tensor *logits = gr_block_linear(b, x, "ffn_gate_inp", hp->experts, bias);
  gr_tensor *weights = gr_tensor_name(gr_route(b->graph, logits, NULL, &p), "blk.%d.route", b->layer);
  if (!weights) return r;
  gr_tensor *ids = weights->node->out[1], *perm = gr_group_experts(b->graph, ids, hp->experts);
  if (!perm) return r;
  return (
      gr_routing){ .weights = weights, .ids = ids, .perm = gr_tensor_name(perm, "blk.%d.group", b->layer), .offsets = perm->node->out[1] };
}

static gr_tensor *routed(gr_builder *b, gr_tensor *x, int glu_kind, enum gr_bias bias)
{
  const gr_hparams *hp = &b->model->hp;
  gr_graph *g = b->graph;
  int64_t ff = hp->expert_ff;
  gr_routing r = route(b, x, bias);
  if (!r.weights) return NULL;
  x = gr_reshape(g, x, x->ne[0], 1, x->ne[1], 0); /* one slot, which all the experts of a token read */
  gr_tensor *gate, *up;
  if (gr_block_fused(b, "ffn_gate_up_exps", "ffn_gate_exps")) {
    gr_tensor *both = gr_block_expert_linear(b, x, "ffn_gate_up_exps", 2 * ff, bias, &r);
    gate = gr_slice(g, both, GR_MUTANT(model_gate_is_up) ? ff : 0, ff);
    up = gr_slice(g, both, ff, ff);
  } else {
    gate = gr_block_expert_linear(b, x, "ffn_gate_exps", ff, bias, &r);
    up = gr_block_expert_linear(b, x, "ffn_up_exps", ff, bias, &r);
  }
  gr_tensor *y = gr_block_expert_linear(b, gr_glu(g, glu_kind, gate, up), "ffn_down_exps", hp->width, bias, &r);
  return gr_combine(g, y, r.weights);
}

static gr_tensor *shared(gr_builder *b, gr_tensor *x, int glu_kind)
{
  gr_tensor *y = gr_block_ffn(b, x, "_shexp", b->model->hp.shared_ff, glu_kind, false);
  if (!b->model->arch->shared_gate || GR_MUTANT(model_no_shared_gate)) return y;
  return gr_mul(b->graph, y, gr_sigmoid(b->graph, gr_block_linear(b, x, "ffn_gate_inp_shexp", 1, GR_BIAS_OPTIONAL)));
}

gr_tensor *gr_block_experts(gr_builder *b, gr_tensor *x, int glu_kind, enum gr_bias bias)
{
  if (!x) return NULL;
  gr_tensor *y = gr_tensor_name(routed(b, x, glu_kind, bias), "blk.%d.experts", b->layer);
  return b->model->hp.shared_ff ? gr_add(b->graph, y, shared(b, x, glu_kind)) : y;
}
