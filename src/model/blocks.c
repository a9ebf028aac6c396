/* The blocks that architectures share. */
#include <stdio.h>

#include "base/mutant.h"
#include "model/arch.h"

gr_tensor *gr_block_norm(gr_builder *b, gr_tensor *x, const char *stem)
{
  if (!x) return NULL;
  gr_tensor *w = gr_block_values(b, stem, ".weight", x->ne[0], 1, false);
  return gr_tensor_name(gr_mul(b->graph, gr_rms_norm(b->graph, x, b->model->hp.eps), w), "%s", w ? w->name : stem);
}

/* ---- attention ---- */

/* Rows [heads*dh, n], perhaps a slice of longer ones -> [dh, heads, n]. */
static gr_tensor *split_heads(gr_builder *b, gr_tensor *x, int32_t head, int32_t heads)
{
  return x ? gr_reshape(b->graph, x, head, heads, x->ne[1], 0) : NULL;
}

/* Projected q or k [heads*dh, n] -> [dh, heads, n], normed and rotated. */
static gr_tensor *heads_of(gr_builder *b, gr_tensor *x, int32_t heads, enum gr_qk_norm norm, const char *norm_stem)
{
  const gr_hparams *hp = &b->model->hp;
  if (norm == GR_QK_NORM_WHOLE) x = gr_block_norm(b, x, norm_stem);
  x = split_heads(b, x, hp->head_k, heads);
  if (norm == GR_QK_NORM_HEAD) x = gr_block_norm(b, x, norm_stem);
  if (!hp->rope) return x;
  int table = hp->rope_base_local > 0 && gr_layer_slides(b->model, b->layer) ? GR_ROPE_LOCAL : GR_ROPE_GLOBAL;
  return gr_rope(b->graph, x, b->out->cosines[table], b->out->sines[table], b->model->arch->rope_mode, false);
}

static void project(gr_builder *b, gr_tensor *x, enum gr_bias bias, gr_tensor **q, gr_tensor **k, gr_tensor **v)
{
  const gr_hparams *hp = &b->model->hp;
  int64_t nq = (int64_t)hp->heads * hp->head_k, nk = (int64_t)hp->heads_kv * hp->head_k, nv = (int64_t)hp->heads_kv * hp->head_v;
  if (gr_block_fused(b, "attn_qkv", "attn_q")) {
    gr_tensor *all = gr_block_linear(b, x, "attn_qkv", nq + nk + nv, bias);
    *q = gr_slice(b->graph, all, 0, nq);
    *k = gr_slice(b->graph, all, nq, nk);
    *v = gr_slice(b->graph, all, nq + nk, nv);
    return;
  }
  *q = gr_block_linear(b, x, "attn_q", nq, bias);
  *k = gr_block_linear(b, x, "attn_k", nk, bias);
  *v = gr_block_linear(b, x, "attn_v", nv, bias);
}

gr_tensor *gr_block_attention(gr_builder *b, gr_tensor *x, const gr_attention_spec *spec)
{
  const gr_hparams *hp = &b->model->hp;
  const gr_model_graph *out = b->out;
  gr_graph *g = b->graph;
  gr_tensor *q, *k, *v;
  project(b, x, spec->qkv_bias, &q, &k, &v);
  q = heads_of(b, q, hp->heads, spec->qk_norm, "attn_q_norm");
  k = heads_of(b, k, hp->heads_kv, spec->qk_norm, "attn_k_norm");
  v = split_heads(b, v, hp->head_v, hp->heads_kv);
  if (!q || !k || !v) return NULL;
  if (out->query_scale) q = gr_mul(g, q, out->query_scale);
  struct gr_attention_inputs in = {
    .q = q, .k = k, .v = v, .pos_q = out->positions, .seg_q = out->segments, .pos_k = out->positions, .seg_k = out->segments
  };
  if (spec->sinks && !(in.sinks = gr_block_values(b, "attn_sinks", ".weight", hp->heads, 1, false))) return NULL;
  if (out->k_cache) {
    in.k = gr_store_rows(g, out->k_cache[b->layer], k, out->slots);
    in.v = gr_store_rows(g, out->v_cache[b->layer], v, out->slots);
    in.pos_k = out->key_positions;
    in.seg_k = out->key_segments;
  }
  const struct gr_attention_params p = { .scale = hp->attention_scale,
                                         .softcap = hp->attention_softcap,
                                         .window =
                                             gr_layer_slides(b->model, b->layer) || GR_MUTANT(model_every_layer_slides) ? hp->window : 0 };
  gr_tensor *o = gr_attention(g, &in, &p);
  if (!o) return NULL;
  gr_tensor_name(o, "blk.%d.attention", b->layer);
  o = gr_reshape(g, o, (int64_t)hp->heads * hp->head_v, o->ne[2], 0, 0);
  return gr_block_linear(b, o, "attn_output", hp->width, spec->out_bias);
}

/* ---- feed-forward ---- */

gr_tensor *gr_block_ffn(gr_builder *b, gr_tensor *x, const char *tail, int64_t rows, int glu_kind, bool fused)
{
  gr_graph *g = b->graph;
  char gate_stem[32], up_stem[32], down_stem[32];
  snprintf(gate_stem, sizeof gate_stem, "ffn_gate%s", tail);
  snprintf(up_stem, sizeof up_stem, "ffn_up%s", tail);
  snprintf(down_stem, sizeof down_stem, "ffn_down%s", tail);
  gr_tensor *gate, *up;
  if (fused) {
    gr_tensor *both = gr_block_linear(b, x, up_stem, 2 * rows, GR_BIAS_OPTIONAL);
    gate = gr_slice(g, both, 0, rows);
    up = gr_slice(g, both, rows, rows);
  } else {
    gate = gr_block_linear(b, x, gate_stem, rows, GR_BIAS_OPTIONAL);
    up = gr_block_linear(b, x, up_stem, rows, GR_BIAS_OPTIONAL);
  }
  return gr_block_linear(b, gr_glu(g, glu_kind, gate, up), down_stem, b->model->hp.width, GR_BIAS_OPTIONAL);
}

/* ---- layers ---- */

static gr_tensor *add_branch(gr_builder *b, gr_tensor *x, gr_tensor *y, const char *norm)
{
  float scale = GR_MUTANT(model_no_residual_scale) ? 1 : b->model->hp.residual_scale;
  if (norm) y = gr_block_norm(b, y, norm);
  if (scale < 1 || scale > 1) y = gr_scale(b->graph, y, scale);
  return gr_add(b->graph, x, y);
}

gr_tensor *gr_block_layer(gr_builder *b, gr_tensor *x, const gr_layer_spec *spec)
{
  const gr_hparams *hp = &b->model->hp;
  x = add_branch(b, x, gr_block_attention(b, gr_block_norm(b, x, "attn_norm"), &spec->attention), spec->after_attention);
  gr_tensor *f = gr_block_norm(b, x, spec->ffn_norm ? spec->ffn_norm : "ffn_norm");
  if (hp->experts && b->layer >= hp->dense_layers) f = gr_block_experts(b, f, spec->glu_kind, spec->expert_bias);
  else f = gr_block_ffn(b, f, "", hp->ff, spec->glu_kind, spec->fused_ffn);
  return add_branch(b, x, f, spec->after_ffn);
}
