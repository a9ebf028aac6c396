/* Adapters in memory: which linears they sit on, how they begin, reading and writing them. */
#include "model/lora.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/rng.h"
#include "io/adapter.h"
#include "model/arch.h"
#include "quant/quant.h"

struct gr_lora {
  gr_lora_pair *pairs;
  size_t n, cap;
  double alpha;
  float *values; /* all A and B, one block */
  size_t n_values;
  gr_arena names;
};

/* ---- targets ---- */

static const struct {
  const char *alias, *name;
} aliases[] = {
  { "q_proj", "attn_q" },  { "k_proj", "attn_k" },      { "v_proj", "attn_v" },      { "o_proj", "attn_output" },
  { "up_proj", "ffn_up" }, { "gate_proj", "ffn_gate" }, { "down_proj", "ffn_down" }, { "lm_head", "output" },
};

/* "blk.3.attn_q.weight" -> "attn_q". */
static void short_name(const char *name, char *out, size_t size)
{
  if (strncmp(name, "blk.", 4) == 0) {
    const char *p = strchr(name + 4, '.');
    if (p) name = p + 1;
  }
  size_t n = strlen(name);
  if (n > 7 && strcmp(name + n - 7, ".weight") == 0) n -= 7;
  snprintf(out, size, "%.*s", (int)n, name);
}

static bool match_expression(const char *expression, const char *name)
{
  gr_buf whole = { 0 };
  gr_buf_printf(&whole, "^(%s)$", expression);
  regex_t re;
  bool hit = !whole.failed && regcomp(&re, whole.data, REG_EXTENDED | REG_NOSUB) == 0;
  if (hit) {
    hit = regexec(&re, name, 0, NULL, 0) == 0;
    regfree(&re);
  }
  gr_buf_free(&whole);
  return hit;
}

bool gr_lora_match(const char *target, const char *name)
{
  if (strncmp(target, "re:", 3) == 0) return match_expression(target + 3, name);
  char brief[64];
  short_name(name, brief, sizeof brief);
  bool attention = strncmp(brief, "attn_", 5) == 0, mlp = strncmp(brief, "ffn_", 4) == 0;
  if (strcmp(target, "attention") == 0) return attention;
  if (strcmp(target, "mlp") == 0) return mlp;
  if (strcmp(target, "all-linear") == 0) return attention || mlp;
  for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
    if (strcmp(target, aliases[i].alias) == 0) target = aliases[i].name;
  if (strcmp(target, brief) == 0 || strcmp(target, name) == 0) return true;
  size_t n = strlen(target);
  return strncmp(target, name, n) == 0 && strcmp(name + n, ".weight") == 0;
}

static gr_status check_expression(const char *target, gr_error *e)
{
  regex_t re;
  if (strncmp(target, "re:", 3) != 0) return GR_OK;
  if (regcomp(&re, target + 3, REG_EXTENDED | REG_NOSUB) != 0)
    return gr_fail(e, GR_ERR_USAGE, "the target module '%s': '%s' is not a regular expression (POSIX extended)", target, target + 3);
  regfree(&re);
  return GR_OK;
}

/* "attn_q, attn_k, ..." once each, for refusals. */
static void list_targets(const gr_model *m, gr_buf *out)
{
  for (size_t i = 0; i < m->n_linears; i++) {
    char brief[64], other[64];
    short_name(m->linears[i].name, brief, sizeof brief);
    bool seen = false;
    for (size_t k = 0; k < i && !seen; k++) {
      short_name(m->linears[k].name, other, sizeof other);
      seen = strcmp(brief, other) == 0;
    }
    if (!seen) gr_buf_printf(out, "%s%s", out->len ? ", " : "", brief);
  }
}

static gr_status unknown_target(const gr_model *m, const char *target, gr_error *e)
{
  gr_buf list = { 0 };
  list_targets(m, &list);
  const char *tied = m->tied && (gr_lora_match(target, "output.weight") || gr_lora_match(target, "token_embd.weight"))
                         ? "; the head of this model is tied to token_embd, and llama.cpp cannot load an adapter on it"
                         : "";
  gr_status s = gr_fail(e, GR_ERR_USAGE,
                        "the target module '%s' matches nothing in this model%s; valid: %s, their Hugging Face names, attention, mlp, "
                        "all-linear, or re:EXPRESSION",
                        target, tied, list.data ? list.data : "");
  gr_buf_free(&list);
  return s;
}

/* ---- storage ---- */

static gr_status add_pair(gr_lora *l, const char *name, int64_t in, int64_t out, int64_t rank, gr_error *e)
{
  char *copy = gr_arena_strndup(&l->names, name, strlen(name));
  if (!copy || !gr_grow((void **)&l->pairs, &l->cap, l->n + 1, sizeof *l->pairs)) return gr_fail_memory(e, l->cap * sizeof *l->pairs);
  l->pairs[l->n++] = (gr_lora_pair){ .name = copy, .in = in, .out = out, .rank = rank };
  return GR_OK;
}

static gr_status allocate_values(gr_lora *l, gr_error *e)
{
  l->n_values = 0;
  for (size_t i = 0; i < l->n; i++) l->n_values += (size_t)(l->pairs[i].rank * (l->pairs[i].in + l->pairs[i].out));
  l->values = gr_calloc(l->n_values, sizeof(float));
  if (!l->values) return gr_fail_memory(e, l->n_values * sizeof(float));
  float *at = l->values;
  for (size_t i = 0; i < l->n; i++) {
    gr_lora_pair *p = &l->pairs[i];
    p->a = at;
    p->b = at + p->rank * p->in;
    at = p->b + p->rank * p->out;
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
    uint64_t stream = name_number(p->name);
    double bound = 1 / sqrt((double)p->in);
    for (int64_t k = 0; k < p->rank * p->in; k++) p->a[k] = (float)((2 * gr_random_uniform(seed, stream, (uint64_t)k) - 1) * bound);
  }
}

static gr_status choose_pairs(gr_lora *l, const gr_model *m, const gr_lora_options *o, gr_error *e)
{
  static const char *const everything[] = { "all-linear" };
  const char *const *targets = o->n_targets ? o->targets : everything;
  size_t n_targets = o->n_targets ? o->n_targets : 1;
  for (size_t t = 0; t < n_targets; t++) {
    bool hit = false;
    GR_TRY(check_expression(targets[t], e));
    for (size_t i = 0; i < m->n_linears && !hit; i++) hit = gr_lora_match(targets[t], m->linears[i].name);
    if (!hit) return unknown_target(m, targets[t], e);
  }
  for (size_t i = 0; i < m->n_linears; i++) {
    const gr_linear *w = &m->linears[i];
    bool hit = false;
    for (size_t t = 0; t < n_targets && !hit; t++) hit = gr_lora_match(targets[t], w->name);
    if (!hit) continue;
    int64_t most = w->in < w->out ? w->in : w->out;
    if (o->rank > most)
      return gr_fail(e, GR_ERR_USAGE, "rank %lld is larger than %s allows, which is %lld x %lld: use --lora-r %lld or less",
                     (long long)o->rank, w->name, (long long)w->in, (long long)w->out, (long long)most);
    GR_TRY(add_pair(l, w->name, w->in, w->out, o->rank, e));
  }
  return GR_OK;
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

static gr_status load_pairs(gr_lora *l, const gr_model *m, const gr_adapter *file, gr_error *e)
{
  GR_TRY(gr_adapter_check(file, m->file, e));
  for (size_t i = 0; i < gr_adapter_count(file); i++) {
    const gr_adapter_pair *p = gr_adapter_at(file, i);
    bool known = false;
    for (size_t k = 0; k < m->n_linears && !known; k++) known = strcmp(m->linears[k].name, p->base) == 0;
    if (!known) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: an adapter on %s is not handled", gr_gguf_path(gr_adapter_gguf(file)), p->base);
    GR_TRY(add_pair(l, p->base, p->in, p->out, p->rank, e));
  }
  GR_TRY(allocate_values(l, e));
  for (size_t i = 0; i < l->n; i++) {
    const gr_adapter_pair *p = gr_adapter_at(file, i);
    gr_quant_decoder(p->a->dtype)(p->a->data, l->pairs[i].a, p->rank * p->in);
    gr_quant_decoder(p->b->dtype)(p->b->data, l->pairs[i].b, p->rank * p->out);
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
  }
  gr_adapter_close(file);
  if (s != GR_OK) {
    gr_lora_free(l);
    return s;
  }
  *out = l;
  return GR_OK;
}

gr_status gr_lora_save(const gr_lora *l, const gr_model *m, const char *path, const char *base_hash, gr_error *e)
{
  gr_adapter_out *pairs = gr_calloc(l->n, sizeof *pairs);
  if (!pairs) return gr_fail_memory(e, l->n * sizeof *pairs);
  for (size_t i = 0; i < l->n; i++) {
    const gr_lora_pair *p = &l->pairs[i];
    pairs[i] = (gr_adapter_out){ .base = p->name, .in = p->in, .out = p->out, .experts = 1, .rank = p->rank, .a = p->a, .b = p->b };
  }
  const gr_adapter_info info = {
    .architecture = m->arch->name, .alpha = l->alpha, .base_hash = base_hash, .pairs = pairs, .pair_count = l->n
  };
  gr_status s = gr_adapter_save(path, &info, e);
  gr_free(pairs);
  return s;
}

/* ---- facts ---- */

size_t gr_lora_pair_count(const gr_lora *l) { return l->n; }
gr_lora_pair *gr_lora_pair_at(const gr_lora *l, size_t i) { return &l->pairs[i]; }
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
  return l->alpha > 0 || l->alpha < 0 ? (float)((double)scale * l->alpha / (double)p->rank) : scale;
}

gr_status gr_lora_check_finite(const gr_lora *l, gr_error *e)
{
  for (size_t i = 0; i < l->n; i++) {
    const gr_lora_pair *p = &l->pairs[i];
    size_t n = (size_t)(p->rank * (p->in + p->out)); /* b follows a */
    for (size_t k = 0; k < n; k++)
      if (!isfinite(p->a[k]))
        return gr_fail(e, GR_ERR_NUMERIC, "%s.%s holds a value that is not finite", p->name,
                       k < (size_t)(p->rank * p->in) ? "lora_a" : "lora_b");
  }
  return GR_OK;
}
