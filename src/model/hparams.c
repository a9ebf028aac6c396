/* Metadata to gr_hparams: defaults, ranges, and the relations between them that the graph relies on (architectures.md 3.1). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/arch.h"

/* Far above any model, so that products of two of them stay far below 2^63. */
enum { LAYERS_MAX = 4096, WIDTH_MAX = 1 << 20, HEADS_MAX = 1 << 16, FF_MAX = 1 << 24, CONTEXT_MAX = 1 << 30, EXPERTS_MAX = 1 << 20 };

static const char *key_of(gr_reader *r, const char *suffix)
{
  snprintf(r->key, sizeof r->key, "%s.%s", r->model->arch->name, suffix);
  return r->key;
}

int32_t gr_reader_int(gr_reader *r, const char *suffix, gr_gguf_need need, uint64_t min, uint64_t max, int32_t preset)
{
  uint64_t v = (uint64_t)preset;
  if (r->status == GR_OK) r->status = gr_gguf_u64(r->file, key_of(r, suffix), need, min, max, &v, r->e);
  return (int32_t)v;
}

double gr_reader_real(gr_reader *r, const char *suffix, gr_gguf_need need, double min, double max, double preset)
{
  double v = preset;
  if (r->status == GR_OK) r->status = gr_gguf_f64(r->file, key_of(r, suffix), need, min, max, &v, r->e);
  return v;
}

bool gr_reader_bool(gr_reader *r, const char *suffix, bool preset)
{
  bool v = preset;
  if (r->status == GR_OK) r->status = gr_gguf_bool(r->file, key_of(r, suffix), GR_GGUF_OPTIONAL, &v, r->e);
  return v;
}

static double optional_real(gr_reader *r, const char *suffix, double min, double max, double preset)
{
  return gr_reader_real(r, suffix, GR_GGUF_OPTIONAL, min, max, preset);
}

/* A count that may be given for each layer: the architectures here have one for all. preset < 0: the key is required. */
static int32_t read_uniform(gr_reader *r, const char *suffix, uint64_t max, int32_t layers, int32_t preset)
{
  const char *key = key_of(r, suffix);
  if (r->status != GR_OK || (preset >= 0 && !gr_gguf_find(r->file, key))) return preset;
  uint64_t *each = gr_calloc((size_t)layers, sizeof *each), first = 0;
  if (!each) {
    r->status = gr_fail_memory(r->e, (size_t)layers * sizeof *each);
    return preset;
  }
  r->status = gr_gguf_u64_each(r->file, key, GR_GGUF_REQUIRED, 1, max, (size_t)layers, each, r->e);
  for (int32_t i = 1; i < layers && r->status == GR_OK; i++)
    if (each[i] != each[0])
      r->status = gr_fail(r->e, GR_ERR_UNSUPPORTED, "%s: %s differs between layers 0 and %d, which Graft does not handle",
                          gr_gguf_path(r->file), key, i);
  first = each[0];
  gr_free(each);
  return (int32_t)first;
}

static void read_rope(gr_reader *r, gr_hparams *hp)
{
  gr_gguf_str type = { "", 0 };
  hp->rope_dims = gr_reader_int(r, "rope.dimension_count", GR_GGUF_OPTIONAL, 2, (uint64_t)hp->head_k, hp->head_k);
  hp->rope = true;
  hp->rope_base = optional_real(r, "rope.freq_base", 1e-3, 1e12, 10000);
  double old_factor = optional_real(r, "rope.scale_linear", 0, 1e6, 1);
  hp->rope_factor = optional_real(r, "rope.scaling.factor", 0, 1e6, old_factor);
  if (hp->rope_factor <= 0) hp->rope_factor = 1; /* llama.cpp takes 0 as "not set" */
  hp->rope_original_context = gr_reader_int(r, "rope.scaling.original_context_length", GR_GGUF_OPTIONAL, 1, CONTEXT_MAX, hp->context);
  if (r->status == GR_OK) r->status = gr_gguf_string(r->file, key_of(r, "rope.scaling.type"), GR_GGUF_OPTIONAL, &type, r->e);
  bool yarn = gr_gguf_str_is(type, "yarn"), known = !type.len || yarn || gr_gguf_str_is(type, "linear");
  if (gr_gguf_str_is(type, "none")) hp->rope_factor = 1;
  else if (!known && r->status == GR_OK)
    r->status = gr_fail(r->e, GR_ERR_UNSUPPORTED, "%s: RoPE scaling of type '%.*s' is not handled (none, linear and yarn are)",
                        gr_gguf_path(r->file), (int)(type.len < 40 ? type.len : 40), type.data);
  hp->rope_attn_factor = optional_real(r, "rope.scaling.attn_factor", 1e-6, 1e6, 1);
  hp->yarn_ext_factor = optional_real(r, "rope.scaling.yarn_ext_factor", 0, 1e6, yarn ? 1 : 0);
  hp->rope_attn_factor *= optional_real(r, "rope.scaling.yarn_attn_factor", 1e-6, 1e6, 1);
  hp->yarn_beta_fast = optional_real(r, "rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32);
  hp->yarn_beta_slow = optional_real(r, "rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1);
}

static gr_status check(const gr_model *m, gr_error *e)
{
  const gr_hparams *hp = &m->hp;
  const char *path = gr_gguf_path(m->file);
  if (hp->heads % hp->heads_kv)
    return gr_fail(e, GR_ERR_FORMAT, "%s: %d attention heads cannot share %d key heads evenly", path, hp->heads, hp->heads_kv);
  if (hp->rope_dims % 2) return gr_fail(e, GR_ERR_FORMAT, "%s: RoPE over an odd number of dimensions, %d", path, hp->rope_dims);
  if (m->arch->rope_whole_head && hp->rope_dims != hp->head_k)
    return gr_fail(e, GR_ERR_FORMAT, "%s: rope.dimension_count is %d, but a head of this architecture has %d dimensions and rotates whole",
                   path, hp->rope_dims, hp->head_k);
  return GR_OK;
}

static gr_status find_arch(gr_model *m, gr_error *e)
{
  gr_gguf_str name = { "", 0 }, type = { "model", 5 };
  const char *path = gr_gguf_path(m->file);
  GR_TRY(gr_gguf_string(m->file, "general.type", GR_GGUF_OPTIONAL, &type, e));
  if (gr_gguf_str_is(type, "adapter"))
    return gr_fail(e, GR_ERR_MISMATCH, "%s is an adapter, not a model: give it with --lora, and its base with -m", path);
  GR_TRY(gr_gguf_string(m->file, "general.architecture", GR_GGUF_REQUIRED, &name, e));
  char list[256] = "";
  for (size_t i = 0; gr_archs[i]; i++) {
    if (gr_gguf_str_is(name, gr_archs[i]->name)) m->arch = gr_archs[i];
    size_t used = strlen(list);
    snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", gr_archs[i]->name);
  }
  if (m->arch) return GR_OK;
  return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: the architecture '%.*s' is not one that Graft knows: %s", path,
                 (int)(name.len < 64 ? name.len : 64), name.data, list);
}

static gr_status read_sizes(gr_reader *r, gr_hparams *hp)
{
  hp->layers = gr_reader_int(r, "block_count", GR_GGUF_REQUIRED, 1, LAYERS_MAX, 0);
  hp->width = gr_reader_int(r, "embedding_length", GR_GGUF_REQUIRED, 1, WIDTH_MAX, 0);
  hp->context = gr_reader_int(r, "context_length", GR_GGUF_REQUIRED, 1, CONTEXT_MAX, 0);
  hp->experts = gr_reader_int(r, "expert_count", GR_GGUF_OPTIONAL, 0, EXPERTS_MAX, 0);
  GR_TRY(r->status);
  hp->heads = read_uniform(r, "attention.head_count", HEADS_MAX, hp->layers, -1);
  GR_TRY(r->status);
  hp->heads_kv = read_uniform(r, "attention.head_count_kv", HEADS_MAX, hp->layers, hp->heads);
  hp->ff = read_uniform(r, "feed_forward_length", FF_MAX, hp->layers, hp->experts ? 0 : -1);
  int32_t head = hp->width / hp->heads;
  hp->head_k = gr_reader_int(r, "attention.key_length", GR_GGUF_OPTIONAL, 2, WIDTH_MAX, head);
  hp->head_v = gr_reader_int(r, "attention.value_length", GR_GGUF_OPTIONAL, 1, WIDTH_MAX, head);
  if (r->status == GR_OK && (hp->head_k < 2 || hp->head_v < 1))
    r->status = gr_fail(r->e, GR_ERR_FORMAT, "%s: %d heads do not fit a width of %d", gr_gguf_path(r->file), hp->heads, hp->width);
  return r->status;
}

/* ---- experts ---- */

/* ggml numbers the gating functions from 1. */
static int32_t read_gating(gr_reader *r, int32_t preset)
{
  static const int32_t kinds[] = { GR_GATE_SOFTMAX, GR_GATE_SIGMOID, GR_GATE_SELECTED };
  int32_t kind = gr_reader_int(r, "expert_gating_func", GR_GGUF_OPTIONAL, 0, 3, 0);
  return kind ? kinds[kind - 1] : preset;
}

static gr_status read_experts(gr_reader *r, gr_hparams *hp)
{
  const gr_arch *arch = r->model->arch;
  const char *path = gr_gguf_path(r->file);
  if (!hp->experts && arch->experts == GR_EXPERTS_REQUIRED)
    return gr_fail(r->e, GR_ERR_FORMAT, "%s: models of the architecture %s have experts, but expert_count is missing or 0", path,
                   arch->name);
  if (!hp->experts) return GR_OK;
  if (arch->experts == GR_EXPERTS_NONE)
    return gr_fail(r->e, GR_ERR_UNSUPPORTED, "%s: expert_count is %d, but models of the architecture %s have no experts", path, hp->experts,
                   arch->name);
  hp->experts_used = gr_reader_int(r, "expert_used_count", GR_GGUF_REQUIRED, 0, EXPERTS_MAX, 0);
  if (r->status == GR_OK && (hp->experts_used < 1 || hp->experts_used > hp->experts))
    return gr_fail(r->e, GR_ERR_FORMAT, "%s: expert_used_count is %d; of %d experts, 1 to %d can be used", path, hp->experts_used,
                   hp->experts, hp->experts);
  int32_t ff = arch->ff_of_all && hp->experts_used ? hp->ff / hp->experts_used : hp->ff;
  hp->expert_ff = gr_reader_int(r, "expert_feed_forward_length", GR_GGUF_OPTIONAL, 0, FF_MAX, 0);
  if (!hp->expert_ff) hp->expert_ff = ff;
  if (r->status == GR_OK && !hp->expert_ff)
    return gr_fail(r->e, GR_ERR_FORMAT, "%s: neither expert_feed_forward_length nor feed_forward_length says how long the experts are",
                   path);
  hp->shared_ff = gr_reader_int(r, "expert_shared_feed_forward_length", GR_GGUF_OPTIONAL, 0, FF_MAX, 0);
  hp->dense_layers = gr_reader_int(r, "leading_dense_block_count", GR_GGUF_OPTIONAL, 0, (uint64_t)hp->layers, 0);
  if (r->status == GR_OK && hp->dense_layers && !hp->ff)
    return gr_fail(r->e, GR_ERR_FORMAT, "%s: %d layers are dense, but feed_forward_length is missing", path, hp->dense_layers);
  hp->gating = read_gating(r, arch->gating);
  hp->renormalise = gr_reader_bool(r, "expert_weights_norm", arch->renormalise);
  hp->expert_scale = (float)optional_real(r, "expert_weights_scale", 0, 1e6, 1);
  if (hp->expert_scale <= 0) hp->expert_scale = 1; /* llama.cpp takes 0 as "not set" */
  return r->status;
}

/* ---- sliding windows ---- */

static gr_status read_pattern(gr_reader *r, int32_t period)
{
  gr_model *m = r->model;
  int32_t layers = m->hp.layers;
  const gr_gguf_kv *kv = gr_gguf_find(r->file, key_of(r, "attention.sliding_window_pattern"));
  if (kv && !kv->is_array) period = gr_reader_int(r, "attention.sliding_window_pattern", GR_GGUF_OPTIONAL, 0, LAYERS_MAX, period);
  GR_TRY(r->status);
  m->slides = gr_arena_alloc(&m->names, (size_t)layers);
  if (!m->slides) return gr_fail_memory(r->e, (size_t)layers);
  for (int32_t i = 0; i < layers; i++) m->slides[i] = period == 0 || i % period < period - 1;
  if (!kv || !kv->is_array) return GR_OK;
  if (kv->count != (uint64_t)layers)
    return gr_fail(r->e, GR_ERR_FORMAT, "%s: %s has %llu values for %d layers", gr_gguf_path(r->file), kv->key,
                   (unsigned long long)kv->count, layers);
  GR_TRY(gr_gguf_array(r->file, kv->key, GR_GGUF_REQUIRED, GR_GGUF_KIND_BOOL, &kv, r->e));
  for (int32_t i = 0; i < layers; i++) {
    bool slides = false;
    gr_gguf_kv_bool(kv, (uint64_t)i, &slides);
    m->slides[i] = slides;
  }
  return GR_OK;
}

void gr_reader_window(gr_reader *r, gr_gguf_need need, int32_t period)
{
  gr_hparams *hp = &r->model->hp;
  hp->window = gr_reader_int(r, "attention.sliding_window", need, 0, CONTEXT_MAX, 0);
  if (r->status == GR_OK && hp->window) r->status = read_pattern(r, period);
}

/* ---- all of it ---- */

static gr_status read_common(gr_reader *r, gr_hparams *hp)
{
  GR_TRY(read_sizes(r, hp));
  hp->eps = (float)gr_reader_real(r, "attention.layer_norm_rms_epsilon", GR_GGUF_REQUIRED, 0, 1, 0);
  double scale = optional_real(r, "attention.scale", 0, 1e6, 0);
  hp->attention_scale = (float)(scale > 0 ? scale : 1 / sqrt((double)hp->head_k));
  hp->attention_softcap = (float)optional_real(r, "attn_logit_softcapping", 0, 1e6, 0);
  hp->head_softcap = (float)optional_real(r, "final_logit_softcapping", 0, 1e6, 0);
  hp->embedding_scale = hp->residual_scale = hp->head_scale = hp->expert_scale = 1;
  GR_TRY(read_experts(r, hp));
  read_rope(r, hp);
  return r->status;
}

gr_status gr_hparams_read(gr_model *m, gr_error *e)
{
  GR_TRY(find_arch(m, e));
  gr_reader r = { .model = m, .file = m->file, .e = e };
  GR_TRY(read_common(&r, &m->hp));
  if (m->arch->hparams) m->arch->hparams(&r);
  GR_TRY(r.status);
  return check(m, e);
}
