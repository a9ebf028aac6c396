/* The blocks that architectures share. Plain ops only: fusing them is the graph's business. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/arch.h"

/* ---- weights ---- */

static void full_name(const gr_builder *b, const char *stem, const char *suffix, char *name, size_t size)
{
  if (b->layer >= 0) snprintf(name, size, "blk.%d.%s%s", b->layer, stem, suffix);
  else snprintf(name, size, "%s%s", stem, suffix);
}

gr_tensor *gr_block_weight(gr_builder *b, const char *stem, const char *suffix, int64_t ne0, int64_t ne1, bool optional)
{
  char name[80];
  full_name(b, stem, suffix, name, sizeof name);
  const gr_gguf *file = b->model->file;
  const gr_gguf_tensor *t = gr_gguf_tensor_find(file, name);
  if (!t && optional) return NULL;
  if (!t) {
    gr_graph_fail(b->graph, GR_ERR_FORMAT, "%s: the tensor %s is missing", gr_gguf_path(file), name);
    return NULL;
  }
  if (t->ne[0] != ne0 || t->ne[1] != ne1 || t->ne[2] != 1 || t->ne[3] != 1) {
    gr_graph_fail(b->graph, GR_ERR_FORMAT, "%s: the tensor %s has the shape [%lld, %lld, %lld, %lld], and [%lld, %lld] is needed",
                  gr_gguf_path(file), name, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3],
                  (long long)ne0, (long long)ne1);
    return NULL;
  }
  if (gr_dtype_get(t->dtype)->kind == GR_KIND_INT || t->dtype == GR_F64) {
    gr_graph_fail(b->graph, GR_ERR_UNSUPPORTED, "%s: the tensor %s is stored as %s, which weights are not", gr_gguf_path(file), name,
                  gr_dtype_name(t->dtype));
    return NULL;
  }
  size_t index = 0;
  while (gr_gguf_tensor_at(file, index) != t) index++;
  if (!b->weights[index])
    b->weights[index] = gr_graph_leaf(b->graph, GR_LEAF_WEIGHT, t->dtype, t->ne, NULL, (void *)(uintptr_t)t->data, name);
  return b->weights[index];
}

/* Norm weights and biases: small vectors that the ops take as F32. */
static gr_tensor *vector(gr_builder *b, const char *stem, const char *suffix, int64_t n, bool optional)
{
  gr_tensor *w = gr_block_weight(b, stem, suffix, n, 1, optional);
  if (w && w->dtype != GR_F32) {
    gr_graph_fail(b->graph, GR_ERR_UNSUPPORTED, "%s: %s is stored as %s; norms and biases must be F32", gr_gguf_path(b->model->file),
                  w->name, gr_dtype_name(w->dtype));
    return NULL;
  }
  return w;
}

/* ---- linear ---- */

static void collect_linear(gr_builder *b, const char *name, int64_t in, int64_t out)
{
  if (!gr_grow((void **)&b->linears, &b->linears_cap, b->n_linears + 1, sizeof *b->linears)) {
    gr_graph_fail(b->graph, GR_ERR_MEMORY, "out of memory while reading the model");
    return;
  }
  b->linears[b->n_linears++] = (gr_linear){ .name = name, .in = in, .out = out, .layer = b->layer };
}

static gr_tensor *adapter_leaf(gr_builder *b, const char *name, const char *suffix, float *data, int64_t ne0, int64_t ne1)
{
  char full[96];
  snprintf(full, sizeof full, "%s.%s", name, suffix);
  return gr_graph_leaf(b->graph, GR_LEAF_PARAM, GR_F32, (const int64_t[GR_DIMS]){ ne0, ne1, 1, 1 }, NULL, data, full);
}

/* The scale goes on the low-rank side, where it costs r values a token instead of `out`. */
static gr_tensor *add_adapter(gr_builder *b, gr_tensor *y, gr_tensor *x, const gr_adapter_use *use, const char *name)
{
  ptrdiff_t at = gr_lora_find(use->lora, name);
  if (at < 0) return y;
  const gr_lora_pair *p = gr_lora_pair_at(use->lora, (size_t)at);
  gr_tensor *a = adapter_leaf(b, name, "lora_a", p->a, p->in, p->rank), *bb = adapter_leaf(b, name, "lora_b", p->b, p->rank, p->out);
  if (use->train && b->out->a && !b->out->a[at]) { /* the head's is the loss's own */
    b->out->a[at] = a;
    b->out->b[at] = bb;
  }
  if (use->train && b->options->dropout > 0)
    x = gr_dropout(b->graph, x, b->out->dropout_keys, b->out->dropout_run, b->options->dropout, (int)at);
  gr_tensor *low = gr_scale(b->graph, gr_matmul(b->graph, a, x), gr_lora_scale(use->lora, p, use->scale));
  return gr_add(b->graph, y, gr_matmul(b->graph, bb, low));
}

gr_tensor *gr_block_linear(gr_builder *b, gr_tensor *x, const char *stem, int64_t out, enum gr_bias bias)
{
  if (!x) return NULL;
  gr_tensor *w = gr_block_weight(b, stem, ".weight", x->ne[0], out, false);
  if (!w) return NULL;
  collect_linear(b, w->name, x->ne[0], out);
  gr_tensor *y = gr_tensor_name(gr_matmul(b->graph, w, x), "%s", w->name);
  for (size_t i = 0; i < b->options->n_adapters; i++) y = add_adapter(b, y, x, &b->options->adapters[i], w->name);
  gr_tensor *shift = vector(b, stem, ".bias", out, bias == GR_BIAS_OPTIONAL);
  return shift ? gr_add(b->graph, y, shift) : y;
}

/* ---- layers ---- */

gr_tensor *gr_block_norm(gr_builder *b, gr_tensor *x, const char *stem)
{
  if (!x) return NULL;
  gr_tensor *w = vector(b, stem, ".weight", x->ne[0], false);
  return gr_tensor_name(gr_mul(b->graph, gr_rms_norm(b->graph, x, b->model->hp.eps), w), "%s", w ? w->name : stem);
}

/* Projected q or k [heads*dh, n] -> [dh, heads, n], normed and rotated. */
static gr_tensor *heads_of(gr_builder *b, gr_tensor *x, int32_t heads, bool norm, const char *norm_stem)
{
  if (!x) return NULL;
  x = gr_reshape(b->graph, x, b->model->hp.head_k, heads, x->ne[1], 0);
  if (norm) x = gr_block_norm(b, x, norm_stem);
  return gr_rope(b->graph, x, b->out->cosines, b->out->sines, b->model->arch->rope_mode, false);
}

gr_tensor *gr_block_attention(gr_builder *b, gr_tensor *x, const gr_attention_spec *spec)
{
  const gr_hparams *hp = &b->model->hp;
  gr_graph *g = b->graph;
  gr_tensor *q = gr_block_linear(b, x, "attn_q", (int64_t)hp->heads * hp->head_k, spec->qkv_bias);
  gr_tensor *k = gr_block_linear(b, x, "attn_k", (int64_t)hp->heads_kv * hp->head_k, spec->qkv_bias);
  gr_tensor *v = gr_block_linear(b, x, "attn_v", (int64_t)hp->heads_kv * hp->head_v, spec->qkv_bias);
  if (!q || !k || !v) return NULL;
  q = heads_of(b, q, hp->heads, spec->head_norm, "attn_q_norm");
  k = heads_of(b, k, hp->heads_kv, spec->head_norm, "attn_k_norm");
  v = gr_reshape(g, v, hp->head_v, hp->heads_kv, v->ne[1], 0);
  struct gr_attention_inputs in = {
    .q = q, .k = k, .v = v, .pos_q = b->out->positions, .seg_q = b->out->segments, .pos_k = b->out->positions, .seg_k = b->out->segments
  };
  if (b->out->k_cache) {
    in.k = gr_store_rows(g, b->out->k_cache[b->layer], k, b->out->slots);
    in.v = gr_store_rows(g, b->out->v_cache[b->layer], v, b->out->slots);
    in.pos_k = b->out->key_positions;
    in.seg_k = b->out->key_segments;
  }
  gr_tensor *o = gr_attention(g, &in, &(struct gr_attention_params){ .scale = hp->attention_scale, .window = spec->window });
  if (!o) return NULL;
  gr_tensor_name(o, "blk.%d.attention", b->layer);
  o = gr_reshape(g, o, (int64_t)hp->heads * hp->head_v, o->ne[2], 0, 0);
  return gr_block_linear(b, o, "attn_output", hp->width, GR_BIAS_OPTIONAL);
}

gr_tensor *gr_block_ffn(gr_builder *b, gr_tensor *x, int glu_kind)
{
  const gr_hparams *hp = &b->model->hp;
  gr_tensor *gate = gr_block_linear(b, x, "ffn_gate", hp->ff, GR_BIAS_OPTIONAL);
  gr_tensor *up = gr_block_linear(b, x, "ffn_up", hp->ff, GR_BIAS_OPTIONAL);
  return gr_block_linear(b, gr_glu(b->graph, glu_kind, gate, up), "ffn_down", hp->width, GR_BIAS_OPTIONAL);
}

gr_tensor *gr_block_layer(gr_builder *b, gr_tensor *x, const gr_attention_spec *spec, int glu_kind)
{
  x = gr_add(b->graph, x, gr_block_attention(b, gr_block_norm(b, x, "attn_norm"), spec));
  return gr_add(b->graph, x, gr_block_ffn(b, gr_block_norm(b, x, "ffn_norm"), glu_kind));
}
