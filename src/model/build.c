/* The whole graph of a model: inputs, embedding, layers, head. */
#include <string.h>

#include "base/alloc.h"
#include "base/mutant.h"
#include "model/arch.h"

static gr_tensor *input(gr_builder *b, gr_leaf leaf, gr_dtype dtype, const char *name, int64_t ne0, int64_t ne1, int64_t ne2, gr_dim last)
{
  uint8_t dims[GR_DIMS] = { 0 };
  dims[ne2 > 0 ? 2 : ne1 > 0 ? 1 : 0] = (uint8_t)last;
  const int64_t ne[GR_DIMS] = { ne0, ne1 > 0 ? ne1 : 1, ne2 > 0 ? ne2 : 1, 1 };
  return gr_graph_leaf(b->graph, leaf, dtype, ne, dims, NULL, name);
}

static gr_status make_inputs(gr_builder *b, gr_error *e)
{
  const gr_build *o = b->options;
  const gr_hparams *hp = &b->model->hp;
  gr_model_graph *out = b->out;
  int64_t n = o->tokens, m = o->keys;
  out->ids = input(b, GR_LEAF_INPUT, GR_I32, "ids", n, 0, 0, GR_DIM_TOKENS);
  out->positions = input(b, GR_LEAF_INPUT, GR_I32, "positions", n, 0, 0, GR_DIM_TOKENS);
  out->segments = input(b, GR_LEAF_INPUT, GR_I32, "segments", n, 0, 0, GR_DIM_TOKENS);
  for (int i = 0; i < GR_ROPE_TABLES; i++) {
    if (i == GR_ROPE_LOCAL && !(hp->rope_base_local > 0)) continue;
    out->cosines[i] = input(b, GR_LEAF_INPUT, GR_F32, i ? "local_cosines" : "cosines", hp->rope_dims / 2, n, 0, GR_DIM_TOKENS);
    out->sines[i] = input(b, GR_LEAF_INPUT, GR_F32, i ? "local_sines" : "sines", hp->rope_dims / 2, n, 0, GR_DIM_TOKENS);
  }
  if (hp->query_growth > 0) out->query_scale = input(b, GR_LEAF_INPUT, GR_F32, "query_scale", 1, 1, n, GR_DIM_TOKENS);
  if (o->loss) out->labels = input(b, GR_LEAF_INPUT, GR_I32, "labels", n, 0, 0, GR_DIM_TOKENS);
  if (o->outputs) out->output_rows = input(b, GR_LEAF_INPUT, GR_I32, "output_rows", o->outputs, 0, 0, GR_DIM_OUTPUTS);
  if (o->dropout > 0) {
    out->dropout_keys = input(b, GR_LEAF_INPUT, GR_I32, "dropout_keys", 2, n, 0, GR_DIM_TOKENS);
    out->dropout_run = input(b, GR_LEAF_INPUT, GR_I32, "dropout_run", 4, 0, 0, GR_DIM_STATIC);
  }
  if (!m) return GR_OK;
  out->slots = input(b, GR_LEAF_INPUT, GR_I32, "slots", n, 0, 0, GR_DIM_TOKENS);
  out->key_positions = input(b, GR_LEAF_INPUT, GR_I32, "key_positions", m, 0, 0, GR_DIM_KEYS);
  out->key_segments = input(b, GR_LEAF_INPUT, GR_I32, "key_segments", m, 0, 0, GR_DIM_KEYS);
  out->k_cache = gr_calloc((size_t)hp->layers, sizeof(gr_tensor *));
  out->v_cache = gr_calloc((size_t)hp->layers, sizeof(gr_tensor *));
  if (!out->k_cache || !out->v_cache) return gr_fail_memory(e, (size_t)hp->layers * sizeof(gr_tensor *));
  for (int32_t i = 0; i < hp->layers; i++) {
    out->k_cache[i] = gr_tensor_name(input(b, GR_LEAF_STATE, GR_F32, "", hp->head_k, hp->heads_kv, m, GR_DIM_KEYS), "k_cache.%d", i);
    out->v_cache[i] = gr_tensor_name(input(b, GR_LEAF_STATE, GR_F32, "", hp->head_v, hp->heads_kv, m, GR_DIM_KEYS), "v_cache.%d", i);
  }
  return GR_OK;
}

static gr_status find_trained(gr_builder *b, gr_error *e)
{
  const gr_adapter_use *trained = NULL;
  for (size_t i = 0; i < b->options->n_adapters; i++) {
    if (!b->options->adapters[i].train) continue;
    if (trained) return gr_fail(e, GR_ERR_USAGE, "only one adapter can be trained at a time");
    trained = &b->options->adapters[i];
  }
  if (!trained) return GR_OK;
  size_t n = gr_lora_pair_count(trained->lora);
  b->out->a = gr_calloc(n, sizeof(gr_tensor *));
  b->out->b = gr_calloc(n, sizeof(gr_tensor *));
  b->out->n_pairs = n;
  return b->out->a && b->out->b ? GR_OK : gr_fail_memory(e, n * sizeof(gr_tensor *));
}

/* The loss's head takes one adapter inside (it never stores logits); logits for generation are an ordinary linear. */
static gr_tensor *head_loss(gr_builder *b, gr_tensor *h, gr_tensor *w)
{
  struct gr_head_inputs in = { .w = w, .h = h, .labels = b->out->labels };
  struct gr_head_params p = { .scale = b->model->hp.head_scale, .softcap = b->model->hp.head_softcap };
  for (size_t i = 0; i < b->options->n_adapters && !b->model->tied; i++) {
    const gr_adapter_use *use = &b->options->adapters[i];
    ptrdiff_t at = gr_lora_find(use->lora, "output.weight");
    if (at < 0) continue;
    if (in.a) {
      gr_graph_fail(b->graph, GR_ERR_UNSUPPORTED, "two adapters on output.weight: only one can be used when a loss is computed");
      return NULL;
    }
    const gr_lora_pair *pair = gr_lora_pair_at(use->lora, (size_t)at);
    in.a = gr_graph_leaf(b->graph, GR_LEAF_PARAM, GR_F32, (const int64_t[GR_DIMS]){ pair->in, pair->rank, 1, 1 }, NULL, pair->a,
                         "output.weight.lora_a");
    in.b = gr_graph_leaf(b->graph, GR_LEAF_PARAM, GR_F32, (const int64_t[GR_DIMS]){ pair->rank, pair->out, 1, 1 }, NULL, pair->b,
                         "output.weight.lora_b");
    p.lora_scale = gr_lora_scale(use->lora, pair, use->scale);
    if (use->train && b->out->a) {
      b->out->a[at] = in.a;
      b->out->b[at] = in.b;
    }
  }
  in.bias = gr_block_weight(b, "output", ".bias", w->ne[1], 1, true);
  return gr_tensor_name(gr_head_loss(b->graph, &in, &p), "nll");
}

static void build_head(gr_builder *b, gr_tensor *x)
{
  const gr_hparams *hp = &b->model->hp;
  gr_model_graph *out = b->out;
  x = gr_block_norm(b, x, "output_norm");
  const char *stem = b->model->tied ? "token_embd" : "output";
  gr_tensor *w = gr_block_weight(b, stem, ".weight", hp->width, hp->vocab, false);
  if (!x || !w) return;
  if (out->labels) out->nll = head_loss(b, x, w);
  if (out->output_rows) {
    gr_tensor *rows = gr_get_rows(b->graph, x, out->output_rows);
    gr_tensor *z = b->model->tied ? gr_matmul(b->graph, w, rows) : gr_block_linear(b, rows, "output", hp->vocab, GR_BIAS_OPTIONAL);
    if (hp->head_scale < 1 || hp->head_scale > 1) z = gr_scale(b->graph, z, hp->head_scale);
    if (hp->head_softcap > 0) z = gr_scale(b->graph, gr_tanh(b->graph, gr_scale(b->graph, z, 1 / hp->head_softcap)), hp->head_softcap);
    out->logits = gr_tensor_name(z, "logits");
  }
}

gr_status gr_builder_run(gr_builder *b, gr_error *e)
{
  const gr_hparams *hp = &b->model->hp;
  b->layer = b->graph->layer = -1;
  GR_TRY(make_inputs(b, e));
  GR_TRY(find_trained(b, e));
  gr_tensor *embedding = gr_block_weight(b, "token_embd", ".weight", hp->width, hp->vocab, false);
  gr_block_weight(b, "rope_freqs", ".weight", hp->rope_dims / 2, 1, true);
  gr_tensor *x = gr_tensor_name(gr_get_rows(b->graph, embedding, b->out->ids), "embedding");
  if (hp->embedding_scale < 1 || hp->embedding_scale > 1)
    x = gr_scale(b->graph, x, GR_MUTANT(model_no_embedding_scale) ? 1 : hp->embedding_scale);
  for (int32_t i = 0; i < hp->layers && x; i++) {
    b->layer = b->graph->layer = i;
    x = b->model->arch->layer(b, x);
    gr_tensor_name(x, "blk.%d", i);
  }
  b->layer = b->graph->layer = -1;
  build_head(b, x);
  return gr_graph_status(b->graph, e);
}

/* One output leaf may be used by two heads (loss and logits): pairs that no linear of this graph carries would never train. */
static gr_status check_pairs(const gr_build *o, const gr_model_graph *out, gr_error *e)
{
  for (size_t u = 0; u < o->n_adapters; u++)
    for (size_t i = 0; o->adapters[u].train && i < out->n_pairs; i++)
      if (!out->a[i] || !out->b[i])
        return gr_fail(e, GR_ERR_MISMATCH, "the adapter of %s is not reached by the loss", gr_lora_pair_at(o->adapters[u].lora, i)->name);
  return GR_OK;
}

gr_status gr_model_build(const gr_model *m, const gr_build *o, gr_model_graph *out, gr_error *e)
{
  *out = (gr_model_graph){ 0 };
  if (o->tokens < 1) return gr_fail(e, GR_ERR_USAGE, "a graph needs room for at least one token");
  gr_builder b = { .model = m, .options = o, .out = out };
  out->graph = b.graph = gr_graph_create();
  b.weights = gr_calloc(gr_gguf_tensor_count(m->file), sizeof(gr_tensor *));
  gr_status s = b.graph && b.weights ? GR_OK : gr_fail_memory(e, gr_gguf_tensor_count(m->file) * sizeof(gr_tensor *));
  if (s == GR_OK) s = gr_builder_run(&b, e);
  if (s == GR_OK) s = check_pairs(o, out, e);
  gr_free(b.weights);
  gr_free(b.linears);
  if (s != GR_OK) gr_model_graph_free(out);
  return s;
}

void gr_model_graph_free(gr_model_graph *mg)
{
  gr_graph_free(mg->graph);
  gr_free(mg->k_cache);
  gr_free(mg->v_cache);
  gr_free(mg->a);
  gr_free(mg->b);
  *mg = (gr_model_graph){ 0 };
}
