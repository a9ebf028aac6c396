/* Adapters in memory: which linears they sit on, how they begin, reading and writing them. */
#include "model/lora.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/mutant.h"
#include "base/rng.h"
#include "io/adapter.h"
#include "io/identity.h"
#include "model/arch.h"
#include "model/targets.h"
#include "quant/quant.h"

struct gr_lora {
  gr_lora_pair *pairs;
  size_t n, cap;
  double alpha;
  float *values; /* all A and B, one block */
  size_t n_values;
  gr_arena names;
  const char *path;          /* of the file it was loaded from; NULL: a fresh one, and no more of the following */
  const char *hash, *sample; /* of the base that the file says it was trained on (io/identity.h); "": it does not say */
};

/* "attn_q, attn_k, ..." once each, for refusals. */
static void list_targets(const gr_model *m, gr_buf *out)
{
  for (size_t i = 0; i < m->n_linears; i++) {
    char brief[64], other[64];
    gr_lora_short_name(m->linears[i].name, brief, sizeof brief);
    bool seen = false;
    for (size_t k = 0; k < i && !seen; k++) {
      gr_lora_short_name(m->linears[k].name, other, sizeof other);
      seen = strcmp(brief, other) == 0;
    }
    const char *also = strcmp(brief, "output") == 0 ? " or lm_head" : strcmp(brief, "ffn_gate_inp") == 0 ? " or router" : "";
    if (!seen) gr_buf_printf(out, "%s%s%s", out->len ? ", " : "", brief, also);
  }
}

/* Why a target that users mean does not exist. */
static const char *why_not(const gr_model *m, const char *target)
{
  bool embedding = gr_lora_match(target, "token_embd.weight"), head = gr_lora_match(target, "output.weight");
  if (m->tied && (embedding || head))
    return "; the head of this model is its token embedding (tied), and llama.cpp cannot load an adapter on it";
  return embedding ? "; embeddings are looked up, not multiplied, and take no adapter" : "";
}

static gr_status unknown_target(const gr_model *m, const char *target, gr_error *e)
{
  gr_buf list = { 0 };
  list_targets(m, &list);
  gr_status s = gr_fail(e, GR_ERR_USAGE,
                        "the target module '%s' matches nothing in this model%s; valid: %s, their Hugging Face names, attention, mlp, "
                        "experts, all-linear, or re:EXPRESSION",
                        target, why_not(m, target), list.data ? list.data : "");
  gr_buf_free(&list);
  return s;
}

/* ---- storage ---- */

static gr_status add_pair(gr_lora *l, const gr_linear *w, int64_t rank, gr_error *e)
{
  const char *name = w->name;
  char *copy = gr_arena_strndup(&l->names, name, strlen(name));
  if (!copy || !gr_grow((void **)&l->pairs, &l->cap, l->n + 1, sizeof *l->pairs)) return gr_fail_memory(e, l->cap * sizeof *l->pairs);
  l->pairs[l->n++] = (gr_lora_pair){ .name = copy, .in = w->in, .out = w->out, .rank = rank, .experts = w->experts };
  return GR_OK;
}

static gr_status allocate_values(gr_lora *l, gr_error *e)
{
  l->n_values = 0;
  for (size_t i = 0; i < l->n; i++) l->n_values += gr_lora_pair_a(&l->pairs[i]) + gr_lora_pair_b(&l->pairs[i]);
  l->values = gr_calloc(l->n_values, sizeof(float));
  if (!l->values) return gr_fail_memory(e, l->n_values * sizeof(float));
  float *at = l->values;
  for (size_t i = 0; i < l->n; i++) {
    gr_lora_pair *p = &l->pairs[i];
    p->a = at;
    p->b = at + gr_lora_pair_a(p);
    at = p->b + gr_lora_pair_b(p);
  }
  return GR_OK;
}

void gr_lora_free(gr_lora *l)
{
  if (!l) return;
  gr_free(l->pairs);
  gr_free(l->values);
  gr_arena_free(&l->names);
  gr_free(l);
}

/* FNV-1a: a stable number for a name, so that A depends on the tensor and not on which others are adapted. */
static uint64_t name_number(const char *name)
{
  uint64_t h = 0xcbf29ce484222325u;
  for (const char *p = name; *p; p++) h = (h ^ (unsigned char)*p) * 0x100000001b3u;
  return h;
}

static void initialise(gr_lora *l, uint64_t seed)
{
  for (size_t i = 0; i < l->n; i++) {
    gr_lora_pair *p = &l->pairs[i];
    double bound = 1 / sqrt((double)p->in);
    int64_t each = p->rank * p->in;
    for (int64_t x = 0; x < p->experts; x++) {
      uint64_t stream = name_number(p->name) ^ (uint64_t)x * 0x9e3779b97f4a7c15u; /* odd: another stream for every expert */
      for (int64_t k = 0; k < each; k++) p->a[x * each + k] = (float)((2 * gr_random_uniform(seed, stream, (uint64_t)k) - 1) * bound);
    }
  }
}

static int64_t most_rank(const gr_linear *w) { return w->in < w->out ? w->in : w->out; }

/* A rank that none of them can have is a mistake; where only some cannot, as a router of few experts, these have what they can. */
static gr_status check_rank(const gr_model *m, const gr_lora_options *o, const bool *hit, gr_error *e)
{
  const gr_linear *widest = NULL;
  for (size_t i = 0; i < m->n_linears; i++)
    if (hit[i] && (!widest || most_rank(&m->linears[i]) > most_rank(widest))) widest = &m->linears[i];
  if (!widest || o->rank <= most_rank(widest)) return GR_OK;
  return gr_fail(e, GR_ERR_USAGE, "rank %lld is larger than %s allows, which is %lld x %lld: use --lora-r %lld or less", (long long)o->rank,
                 widest->name, (long long)widest->in, (long long)widest->out, (long long)most_rank(widest));
}

static gr_status choose_pairs(gr_lora *l, const gr_model *m, const gr_lora_options *o, gr_error *e)
{
  static const char *const everything[] = { "all-linear" };
  const char *const *targets = o->n_targets ? o->targets : everything;
  size_t n_targets = o->n_targets ? o->n_targets : 1;
  for (size_t t = 0; t < n_targets; t++) {
    bool hit = false;
    GR_TRY(gr_lora_check_expression(targets[t], e));
    for (size_t i = 0; i < m->n_linears && !hit; i++) hit = gr_lora_match(targets[t], m->linears[i].name);
    if (!hit) return unknown_target(m, targets[t], e);
  }
  bool *hit = gr_calloc(m->n_linears + 1, sizeof *hit);
  if (!hit) return gr_fail_memory(e, m->n_linears);
  for (size_t i = 0; i < m->n_linears; i++)
    for (size_t t = 0; t < n_targets && !hit[i]; t++) hit[i] = gr_lora_match(targets[t], m->linears[i].name);
  gr_status s = check_rank(m, o, hit, e);
  for (size_t i = 0; i < m->n_linears && s == GR_OK; i++) {
    const gr_linear *w = &m->linears[i];
    if (hit[i]) s = add_pair(l, w, o->rank < most_rank(w) ? o->rank : most_rank(w), e);
  }
  gr_free(hit);
  return s;
}

gr_status gr_lora_create(gr_lora **out, const gr_model *m, const gr_lora_options *o, gr_error *e)
{
  *out = NULL;
  if (o->rank < 1) return gr_fail(e, GR_ERR_USAGE, "the rank of an adapter must be at least 1, not %lld", (long long)o->rank);
  if (!isfinite(o->alpha) || o->alpha <= 0) return gr_fail(e, GR_ERR_USAGE, "alpha must be a positive number, not %g", o->alpha);
  gr_lora *l = gr_calloc(1, sizeof *l);
  if (!l) return gr_fail_memory(e, sizeof *l);
  l->alpha = o->rslora ? o->alpha * sqrt((double)o->rank) : o->alpha;
  gr_status s = choose_pairs(l, m, o, e);
  if (s == GR_OK) s = allocate_values(l, e);
  if (s != GR_OK) {
    gr_lora_free(l);
    return s;
  }
  initialise(l, o->seed);
  *out = l;
  return GR_OK;
}

/* ---- files ---- */

static gr_status load_base(gr_lora *l, const gr_adapter *file, gr_error *e)
{
  const gr_gguf *g = gr_adapter_gguf(file);
  gr_gguf_str hash = { "", 0 }, sample = { "", 0 };
  GR_TRY(gr_gguf_string(g, "graft.base.hash", GR_GGUF_OPTIONAL, &hash, e));
  GR_TRY(gr_gguf_string(g, "graft.base.sample", GR_GGUF_OPTIONAL, &sample, e));
  l->path = gr_arena_strndup(&l->names, gr_gguf_path(g), strlen(gr_gguf_path(g)));
  l->hash = gr_arena_strndup(&l->names, hash.data, hash.len);
  l->sample = gr_arena_strndup(&l->names, sample.data, sample.len);
  return l->path && l->hash && l->sample ? GR_OK : gr_fail_memory(e, hash.len + sample.len);
}

static gr_status load_pairs(gr_lora *l, const gr_model *m, const gr_adapter *file, gr_error *e)
{
  GR_TRY(gr_adapter_check(file, m->file, e));
  for (size_t i = 0; i < gr_adapter_count(file); i++) {
    const gr_adapter_pair *p = gr_adapter_at(file, i);
    const gr_linear *w = NULL;
    for (size_t k = 0; k < m->n_linears && !w; k++)
      if (strcmp(m->linears[k].name, p->base) == 0) w = &m->linears[k];
    if (!w) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: an adapter on %s is not handled", gr_gguf_path(gr_adapter_gguf(file)), p->base);
    GR_TRY(add_pair(l, w, p->rank, e));
  }
  GR_TRY(allocate_values(l, e));
  for (size_t i = 0; i < l->n; i++) {
    const gr_adapter_pair *p = gr_adapter_at(file, i);
    gr_quant_decoder(p->a->dtype)(p->a->data, l->pairs[i].a, (int64_t)gr_lora_pair_a(&l->pairs[i]));
    gr_quant_decoder(p->b->dtype)(p->b->data, l->pairs[i].b, (int64_t)gr_lora_pair_b(&l->pairs[i]));
  }
  return GR_OK;
}

gr_status gr_lora_load(gr_lora **out, const gr_model *m, const char *path, gr_error *e)
{
  *out = NULL;
  gr_adapter *file = NULL;
  GR_TRY(gr_adapter_open(&file, path, e));
  gr_lora *l = gr_calloc(1, sizeof *l);
  gr_status s = l ? GR_OK : gr_fail_memory(e, sizeof *l);
  if (s == GR_OK) {
    l->alpha = gr_adapter_alpha(file);
    s = load_pairs(l, m, file, e);
    if (s == GR_OK) s = load_base(l, file, e);
  }
  gr_adapter_close(file);
  if (s != GR_OK) {
    gr_lora_free(l);
    return s;
  }
  *out = l;
  return GR_OK;
}

gr_status gr_lora_check_base(const gr_lora *l, const gr_model *m, const char *hash, gr_error *e)
{
  char sample[GR_HASH_TEXT];
  if (!l->path) return GR_OK;
  bool other = hash && l->hash[0] && strcmp(l->hash, hash) != 0;
  if (!other && l->sample[0]) {
    gr_base_sample(m->file, sample);
    other = strcmp(l->sample, sample) != 0;
  }
  if (!other) return GR_OK;
  return gr_fail(
      e, GR_ERR_MISMATCH,
      "%s was trained on another base than %s: it fits, but what it learned may not hold here; give the model that it was trained "
      "on, if you have it",
      l->path, gr_gguf_path(m->file));
}

gr_status gr_lora_save(const gr_lora *l, const gr_model *m, const char *path, const char *base_hash, gr_error *e)
{
  gr_adapter_out *pairs = gr_calloc(l->n, sizeof *pairs);
  if (!pairs) return gr_fail_memory(e, l->n * sizeof *pairs);
  for (size_t i = 0; i < l->n; i++) {
    const gr_lora_pair *p = &l->pairs[i];
    pairs[i] =
        (gr_adapter_out){ .base = p->name, .in = p->in, .out = p->out, .experts = p->experts, .rank = p->rank, .a = p->a, .b = p->b };
  }
  char sample[GR_HASH_TEXT];
  if (base_hash) gr_base_sample(m->file, sample);
  const gr_adapter_info info = { .architecture = m->arch->name,
                                 .alpha = l->alpha,
                                 .base_hash = base_hash,
                                 .base_sample = base_hash ? sample : NULL,
                                 .pairs = pairs,
                                 .pair_count = l->n };
  gr_status s = gr_adapter_save(path, &info, e);
  gr_free(pairs);
  return s;
}

/* ---- facts ---- */

size_t gr_lora_pair_count(const gr_lora *l) { return l->n; }
gr_lora_pair *gr_lora_pair_at(const gr_lora *l, size_t i) { return &l->pairs[i]; }
bool gr_lora_names_base(const gr_lora *l) { return l->path && l->hash[0]; }

double gr_lora_alpha(const gr_lora *l) { return l->alpha; }
size_t gr_lora_parameters(const gr_lora *l) { return l->n_values; }
float *gr_lora_values(gr_lora *l) { return l->values; }

ptrdiff_t gr_lora_find(const gr_lora *l, const char *name)
{
  for (size_t i = 0; i < l->n; i++)
    if (strcmp(l->pairs[i].name, name) == 0) return (ptrdiff_t)i;
  return -1;
}

float gr_lora_scale(const gr_lora *l, const gr_lora_pair *p, float scale)
{
  return (l->alpha > 0 || l->alpha < 0) && !GR_MUTANT(lora_no_scale) ? (float)((double)scale * l->alpha / (double)p->rank) : scale;
}

gr_status gr_lora_check_finite(const gr_lora *l, gr_error *e)
{
  for (size_t i = 0; i < l->n; i++) {
    const gr_lora_pair *p = &l->pairs[i];
    size_t n = gr_lora_pair_a(p) + gr_lora_pair_b(p); /* b follows a */
    for (size_t k = 0; k < n; k++)
      if (!isfinite(p->a[k]))
        return gr_fail(e, GR_ERR_NUMERIC, "%s.%s holds a value that is not finite", p->name, k < gr_lora_pair_a(p) ? "lora_a" : "lora_b");
  }
  return GR_OK;
}
