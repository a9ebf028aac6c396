/* Opening a model: metadata, tokenizer, and a trial graph that asks for every tensor the architecture uses. */
#include "model/model.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "model/arch.h"

/* ggml writes the frequency factors of Llama 3.1 as a tensor; they divide the frequencies and must be positive. */
static gr_status read_rope_factors(gr_model *m, gr_error *e)
{
  const gr_gguf_tensor *t = gr_gguf_tensor_find(m->file, "rope_freqs.weight");
  if (!t) return GR_OK;
  const char *path = gr_gguf_path(m->file);
  size_t n = (size_t)m->hp.rope_dims / 2;
  if (!t->has_dtype || t->dtype != GR_F32 || t->ne[0] != (int64_t)n || t->bytes != n * sizeof(float))
    return gr_fail(e, GR_ERR_FORMAT, "%s: rope_freqs.weight must be %zu F32 values", path, n);
  m->rope_factors = gr_alloc(n * sizeof(float));
  if (!m->rope_factors) return gr_fail_memory(e, n * sizeof(float));
  memcpy(m->rope_factors, t->data, n * sizeof(float));
  for (size_t i = 0; i < n; i++)
    if (!(m->rope_factors[i] > 0) || isinf(m->rope_factors[i]))
      return gr_fail(e, GR_ERR_FORMAT, "%s: rope_freqs.weight[%zu] is not a positive number", path, i);
  return GR_OK;
}

static gr_status read_vocabulary(gr_model *m, gr_error *e)
{
  const char *path = gr_gguf_path(m->file);
  GR_TRY(gr_tokenizer_create(&m->tokenizer, m->file, e));
  const gr_gguf_tensor *embedding = gr_gguf_tensor_find(m->file, "token_embd.weight");
  if (!embedding)
    return gr_fail(e, GR_ERR_FORMAT, "%s: the tensor token_embd.weight is missing: download or convert the model again", path);
  size_t tokens = gr_tokenizer_vocab_size(m->tokenizer);
  if (embedding->ne[1] != (int64_t)tokens)
    return gr_fail(e, GR_ERR_FORMAT, "%s: the vocabulary has %zu tokens, but token_embd.weight has %lld rows", path, tokens,
                   (long long)embedding->ne[1]);
  m->hp.vocab = (int32_t)tokens;
  m->tied = !gr_gguf_tensor_find(m->file, "output.weight");
  if (m->tied && m->arch->own_head)
    return gr_fail(e, GR_ERR_FORMAT, "%s: the tensor output.weight is missing: models of the architecture %s have a head of their own",
                   path, m->arch->name);
  return GR_OK;
}

static gr_status check_all_used(const gr_model *m, gr_tensor *const *weights, gr_error *e)
{
  for (size_t i = 0; i < gr_gguf_tensor_count(m->file); i++)
    if (!weights[i])
      return gr_fail(e, GR_ERR_UNSUPPORTED,
                     "%s: the tensor %s has no place in the architecture %s as Graft builds it; ignoring it would give wrong results",
                     gr_gguf_path(m->file), gr_gguf_tensor_at(m->file, i)->name, m->arch->name);
  return GR_OK;
}

/* Names in gr_linear outlive the trial graph. */
static gr_status keep_linears(gr_model *m, gr_builder *b, gr_error *e)
{
  for (size_t i = 0; i < b->n_linears; i++) {
    b->linears[i].name = gr_arena_strndup(&m->names, b->linears[i].name, strlen(b->linears[i].name));
    if (!b->linears[i].name) return gr_fail_memory(e, 64);
  }
  m->linears = b->linears;
  m->n_linears = b->n_linears;
  b->linears = NULL;
  return GR_OK;
}

static gr_status try_graph(gr_model *m, gr_error *e)
{
  gr_model_graph mg = { 0 };
  gr_build o = { .tokens = 1, .outputs = 1 };
  size_t n = gr_gguf_tensor_count(m->file);
  gr_builder b = { .model = m, .options = &o, .out = &mg };
  mg.graph = b.graph = gr_graph_create();
  b.weights = gr_calloc(n, sizeof(gr_tensor *));
  gr_status s = b.graph && b.weights ? GR_OK : gr_fail_memory(e, n * sizeof(gr_tensor *));
  if (s == GR_OK) s = gr_builder_run(&b, e);
  if (s == GR_OK) s = check_all_used(m, b.weights, e);
  if (s == GR_OK) s = keep_linears(m, &b, e);
  gr_free(b.weights);
  gr_free(b.linears);
  gr_model_graph_free(&mg);
  return s;
}

gr_status gr_model_open_gguf(gr_model **out, gr_gguf *file, gr_error *e)
{
  *out = NULL;
  gr_model *m = gr_calloc(1, sizeof *m);
  if (!m) {
    gr_gguf_close(file);
    return gr_fail_memory(e, sizeof *m);
  }
  m->file = file;
  gr_status s = gr_hparams_read(m, e);
  if (s == GR_OK) s = gr_gguf_check_types(file, e);
  if (s == GR_OK) s = read_vocabulary(m, e);
  if (s == GR_OK) s = read_rope_factors(m, e);
  if (s == GR_OK) s = try_graph(m, e);
  if (s != GR_OK) {
    gr_model_close(m);
    return s;
  }
  *out = m;
  return GR_OK;
}

gr_status gr_model_open(gr_model **m, const char *path, gr_error *e)
{
  gr_gguf *file = NULL;
  *m = NULL;
  GR_TRY(gr_gguf_open(&file, path, e));
  return gr_model_open_gguf(m, file, e);
}

void gr_model_close(gr_model *m)
{
  if (!m) return;
  gr_tokenizer_free(m->tokenizer);
  gr_gguf_close(m->file);
  gr_free(m->rope_factors);
  gr_free(m->linears);
  gr_arena_free(&m->names);
  gr_free(m);
}

const gr_gguf *gr_model_file(const gr_model *m) { return m->file; }
const char *gr_model_arch(const gr_model *m) { return m->arch->name; }
const gr_hparams *gr_model_hparams(const gr_model *m) { return &m->hp; }
bool gr_model_tied(const gr_model *m) { return m->tied; }
size_t gr_model_linear_count(const gr_model *m) { return m->n_linears; }
const gr_linear *gr_model_linear(const gr_model *m, size_t i) { return &m->linears[i]; }
const gr_tokenizer *gr_model_tokenizer(const gr_model *m) { return m->tokenizer; }

size_t gr_model_parameters(const gr_model *m)
{
  size_t total = 0;
  for (size_t i = 0; i < gr_gguf_tensor_count(m->file); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(m->file, i);
    total += (size_t)(t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3]);
  }
  return total;
}

size_t gr_model_active_parameters(const gr_model *m)
{
  size_t total = gr_model_parameters(m);
  for (size_t i = 0; i < m->n_linears; i++) {
    const gr_linear *w = &m->linears[i];
    if (w->experts > 1) total -= (size_t)(w->in * w->out * (w->experts - m->hp.experts_used));
  }
  return total;
}

int32_t gr_model_sliding_layers(const gr_model *m)
{
  int32_t n = 0;
  for (int32_t i = 0; i < m->hp.layers; i++) n += gr_layer_slides(m, i);
  return n;
}
