/* Metadata to gr_hparams: defaults, ranges, and the relations between them that the graph relies on (architectures.md 3.1). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/arch.h"

/* Far above any model, so that products of two of them stay far below 2^63. */
enum { LAYERS_MAX = 4096, WIDTH_MAX = 1 << 20, HEADS_MAX = 1 << 16, FF_MAX = 1 << 24, CONTEXT_MAX = 1 << 30, EXPERTS_MAX = 1 << 20 };

/* Reads one key after another; after the first failure the rest do nothing. */
struct reader {
  const gr_gguf *file;
  const char *arch;
  gr_error *e;
  gr_status status;
  char key[128];
};

static const char *key_of(struct reader *r, const char *suffix)
{
  snprintf(r->key, sizeof r->key, "%s.%s", r->arch, suffix);
  return r->key;
}

static int32_t read_int(struct reader *r, const char *suffix, gr_gguf_need need, uint64_t min, uint64_t max, int32_t preset)
{
  uint64_t v = (uint64_t)preset;
  if (r->status == GR_OK) r->status = gr_gguf_u64(r->file, key_of(r, suffix), need, min, max, &v, r->e);
  return (int32_t)v;
}

static double read_real(struct reader *r, const char *suffix, double min, double max, double preset)
{
  double v = preset;
  if (r->status == GR_OK) r->status = gr_gguf_f64(r->file, key_of(r, suffix), GR_GGUF_OPTIONAL, min, max, &v, r->e);
  return v;
}

/* A count that may be given for each layer: the architectures here have one for all. preset < 0: the key is required. */
static int32_t read_uniform(struct reader *r, const char *suffix, uint64_t max, int32_t layers, int32_t preset)
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

static void read_rope(struct reader *r, gr_hparams *hp)
{
  gr_gguf_str type = { "", 0 };
  hp->rope_dims = read_int(r, "rope.dimension_count", GR_GGUF_OPTIONAL, 2, (uint64_t)hp->head_k, hp->head_k);
  hp->rope_base = read_real(r, "rope.freq_base", 1e-3, 1e12, 10000);
  double old_factor = read_real(r, "rope.scale_linear", 0, 1e6, 1);
  hp->rope_factor = read_real(r, "rope.scaling.factor", 0, 1e6, old_factor);
  if (hp->rope_factor <= 0) hp->rope_factor = 1; /* llama.cpp takes 0 as "not set" */
  hp->rope_original_context = read_int(r, "rope.scaling.original_context_length", GR_GGUF_OPTIONAL, 1, CONTEXT_MAX, hp->context);
  if (r->status == GR_OK) r->status = gr_gguf_string(r->file, key_of(r, "rope.scaling.type"), GR_GGUF_OPTIONAL, &type, r->e);
  bool yarn = gr_gguf_str_is(type, "yarn"), known = !type.len || yarn || gr_gguf_str_is(type, "linear");
  if (gr_gguf_str_is(type, "none")) hp->rope_factor = 1;
  else if (!known && r->status == GR_OK)
    r->status = gr_fail(r->e, GR_ERR_UNSUPPORTED, "%s: RoPE scaling of type '%.*s' is not handled (none, linear and yarn are)",
                        gr_gguf_path(r->file), (int)(type.len < 40 ? type.len : 40), type.data);
  hp->rope_attn_factor = read_real(r, "rope.scaling.attn_factor", 1e-6, 1e6, 1);
  hp->yarn_ext_factor = read_real(r, "rope.scaling.yarn_ext_factor", 0, 1e6, yarn ? 1 : 0);
  hp->rope_attn_factor *= read_real(r, "rope.scaling.yarn_attn_factor", 1e-6, 1e6, 1);
  hp->yarn_beta_fast = read_real(r, "rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32);
  hp->yarn_beta_slow = read_real(r, "rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1);
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

static gr_status read_sizes(struct reader *r, gr_hparams *hp)
{
  hp->layers = read_int(r, "block_count", GR_GGUF_REQUIRED, 1, LAYERS_MAX, 0);
  hp->width = read_int(r, "embedding_length", GR_GGUF_REQUIRED, 1, WIDTH_MAX, 0);
  hp->context = read_int(r, "context_length", GR_GGUF_REQUIRED, 1, CONTEXT_MAX, 0);
  GR_TRY(r->status);
  hp->heads = read_uniform(r, "attention.head_count", HEADS_MAX, hp->layers, -1);
  GR_TRY(r->status);
  hp->heads_kv = read_uniform(r, "attention.head_count_kv", HEADS_MAX, hp->layers, hp->heads);
  hp->ff = read_uniform(r, "feed_forward_length", FF_MAX, hp->layers, -1);
  int32_t head = hp->width / hp->heads;
  hp->head_k = read_int(r, "attention.key_length", GR_GGUF_OPTIONAL, 2, WIDTH_MAX, head);
  hp->head_v = read_int(r, "attention.value_length", GR_GGUF_OPTIONAL, 1, WIDTH_MAX, head);
  if (r->status == GR_OK && (hp->head_k < 2 || hp->head_v < 1))
    r->status = gr_fail(r->e, GR_ERR_FORMAT, "%s: %d heads do not fit a width of %d", gr_gguf_path(r->file), hp->heads, hp->width);
  return r->status;
}

gr_status gr_hparams_read(gr_model *m, gr_error *e)
{
  GR_TRY(find_arch(m, e));
  struct reader r = { .file = m->file, .arch = m->arch->name, .e = e };
  gr_hparams *hp = &m->hp;
  GR_TRY(read_sizes(&r, hp));
  double eps = 0;
  GR_TRY(gr_gguf_f64(m->file, key_of(&r, "attention.layer_norm_rms_epsilon"), GR_GGUF_REQUIRED, 0, 1, &eps, e));
  hp->eps = (float)eps;
  double scale = read_real(&r, "attention.scale", 0, 1e6, 0);
  hp->attention_scale = (float)(scale > 0 ? scale : 1 / sqrt((double)hp->head_k));
  int32_t experts = read_int(&r, "expert_count", GR_GGUF_OPTIONAL, 0, EXPERTS_MAX, 0);
  if (r.status == GR_OK && experts)
    return gr_fail(e, GR_ERR_UNSUPPORTED,
                   "%s: a mixture of %d experts: this version of Graft handles dense models of the architecture %s only",
                   gr_gguf_path(m->file), experts, m->arch->name);
  read_rope(&r, hp);
  GR_TRY(r.status);
  return check(m, e);
}
