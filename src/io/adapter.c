#include "io/adapter.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "io/gguf_part.h"

struct gr_adapter {
  gr_gguf *file;
  gr_arena names;
  gr_gguf_str architecture;
  double alpha;
  size_t ignored;
  gr_adapter_pair *pairs;
  const gr_adapter_pair **index; /* sorted by base */
  size_t count;
};

/* A short text that stands in sentences; what is not one is refused. */
static gr_status read_name(const gr_gguf *g, const char *key, gr_gguf_str *s, gr_error *e)
{
  GR_TRY(gr_gguf_string(g, key, GR_GGUF_REQUIRED, s, e));
  if (gr_gguf_name_ok((const uint8_t *)s->data, s->len, GR_GGUF_NAME_MAX)) return GR_OK;
  return gr_fail(e, GR_ERR_FORMAT, "%s: metadata key '%s' is not 1 to %d printable ASCII characters", gr_gguf_path(g), key,
                 GR_GGUF_NAME_MAX);
}

/* Says what the file is: an adapter of the kind we apply, for which architecture, scaled how. */
static gr_status read_metadata(gr_adapter *a, gr_error *e)
{
  const gr_gguf *g = a->file;
  const char *path = gr_gguf_path(g);
  gr_gguf_str type, kind;
  if (!gr_gguf_find(g, "general.type"))
    return gr_fail(e, GR_ERR_FORMAT, "%s is not an adapter: it has no general.type%s", path,
                   gr_gguf_find(g, "tokenizer.ggml.model") ? " (it looks like a model)" : "");
  GR_TRY(read_name(g, "general.type", &type, e));
  if (!gr_gguf_str_is(type, "adapter"))
    return gr_fail(e, GR_ERR_FORMAT, "%s is not an adapter: its general.type is '%.*s'", path, (int)type.len, type.data);
  GR_TRY(read_name(g, "adapter.type", &kind, e));
  if (!gr_gguf_str_is(kind, "lora"))
    return gr_fail(e, GR_ERR_UNSUPPORTED, "%s is an adapter of type '%.*s'; only 'lora' is supported", path, (int)kind.len, kind.data);
  GR_TRY(read_name(g, "general.architecture", &a->architecture, e));
  GR_TRY(gr_gguf_f64(g, "adapter.lora.alpha", GR_GGUF_OPTIONAL, 0, (double)FLT_MAX, &a->alpha, e));
  /* Such an adapter applies only after its invocation tokens; applying it everywhere would be wrong without a word. */
  const gr_gguf_kv *tokens = gr_gguf_find(g, "adapter.alora.invocation_tokens");
  if (tokens && tokens->count)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "%s is an activated LoRA (adapter.alora.invocation_tokens), which is not supported", path);
  return GR_OK;
}

static bool ends_with(const char *name, size_t n, const char *suffix)
{
  size_t k = strlen(suffix);
  return n >= k && memcmp(name + n - k, suffix, k) == 0;
}

static bool type_ok(const gr_gguf_tensor *t)
{
  return t->has_dtype && (t->dtype == GR_F32 || t->dtype == GR_F16 || t->dtype == GR_BF16 || t->dtype == GR_Q8_0);
}

/* The other half of lora_a or lora_b tensor t, or a refusal. */
static gr_status other_half(const gr_adapter *a, const gr_gguf_tensor *t, const gr_gguf_tensor **other, gr_error *e)
{
  char name[GR_GGUF_NAME_MAX + 1];
  size_t n = strlen(t->name);
  memcpy(name, t->name, n + 1);
  name[n - 1] = name[n - 1] == 'a' ? 'b' : 'a';
  *other = gr_gguf_tensor_find(a->file, name);
  if (*other) return GR_OK;
  return gr_fail(e, GR_ERR_FORMAT, "%s: '%s' stands without its other half '%s'", gr_gguf_path(a->file), t->name, name);
}

/* Fills a pair whose a, b and base are set: the halves must fit each other. */
static gr_status fit_halves(const gr_adapter *file, gr_adapter_pair *p, gr_error *e)
{
  const int64_t *a = p->a->ne, *b = p->b->ne;
  p->transposed = strcmp(p->base, "token_embd.weight") == 0;
  p->rank = b[0];
  p->in = p->transposed ? b[1] : a[0];
  p->out = p->transposed ? a[1] : b[1];
  p->experts = a[2];
  int64_t rank_of_a = p->transposed ? a[0] : a[1];
  if (rank_of_a != b[0] || a[2] != b[2] || a[3] != 1 || b[3] != 1 || (p->transposed && a[2] != 1))
    return gr_fail(e, GR_ERR_FORMAT,
                   "%s: the halves of the adapter of '%s' do not fit each other: lora_a is %lld x %lld x %lld x %lld, "
                   "lora_b %lld x %lld x %lld x %lld",
                   gr_gguf_path(file->file), p->base, (long long)a[0], (long long)a[1], (long long)a[2], (long long)a[3], (long long)b[0],
                   (long long)b[1], (long long)b[2], (long long)b[3]);
  return GR_OK;
}

static gr_status read_tensor(gr_adapter *a, const gr_gguf_tensor *t, gr_error *e)
{
  const char *path = gr_gguf_path(a->file);
  size_t n = strlen(t->name);
  bool is_a = ends_with(t->name, n, ".lora_a"), is_b = ends_with(t->name, n, ".lora_b");
  if (!is_a && !is_b && ends_with(t->name, n, "_norm.weight")) {
    a->ignored++;
    return GR_OK;
  }
  size_t base = n - (sizeof ".lora_a" - 1);
  if ((!is_a && !is_b) || base == 0)
    return gr_fail(e, GR_ERR_FORMAT, "%s: tensor '%s' is not named as an adapter's tensors are, NAME.lora_a or NAME.lora_b", path, t->name);
  if (!type_ok(t))
    return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: tensor '%s' is of type %s; an adapter's are F32, F16, BF16 or Q8_0", path, t->name,
                   gr_ggml_type_name(t->ggml_type));
  const gr_gguf_tensor *other;
  GR_TRY(other_half(a, t, &other, e));
  if (is_b) return GR_OK; /* its pair is made at lora_a */
  gr_adapter_pair *p = &a->pairs[a->count++];
  p->a = t;
  p->b = other;
  p->base = gr_arena_strndup(&a->names, t->name, base);
  if (!p->base) return gr_fail_memory(e, base);
  return fit_halves(a, p, e);
}

static int compare_bases(const void *a, const void *b)
{
  const gr_adapter_pair *const *x = a, *const *y = b;
  return strcmp((*x)->base, (*y)->base);
}

static int compare_base_with(const void *base, const void *entry)
{
  const gr_adapter_pair *const *p = entry;
  return strcmp(base, (*p)->base);
}

static gr_status read_pairs(gr_adapter *a, gr_error *e)
{
  size_t n = gr_gguf_tensor_count(a->file);
  a->pairs = gr_calloc(n, sizeof *a->pairs);
  a->index = gr_calloc(n, sizeof *a->index);
  if (!a->pairs || !a->index) return gr_fail_memory(e, n * sizeof *a->pairs);
  for (size_t i = 0; i < n; i++) GR_TRY(read_tensor(a, gr_gguf_tensor_at(a->file, i), e));
  if (!a->count) return gr_fail(e, GR_ERR_FORMAT, "%s: the adapter holds no lora_a and lora_b tensors", gr_gguf_path(a->file));
  for (size_t i = 0; i < a->count; i++) a->index[i] = &a->pairs[i];
  qsort(a->index, a->count, sizeof *a->index, compare_bases);
  return GR_OK;
}

gr_status gr_adapter_from_gguf(gr_adapter **out, gr_gguf *g, gr_error *e)
{
  *out = NULL;
  gr_adapter *a = gr_calloc(1, sizeof *a);
  if (!a) {
    gr_gguf_close(g);
    return gr_fail_memory(e, sizeof *a);
  }
  a->file = g;
  gr_status s = read_metadata(a, e);
  if (s == GR_OK) s = read_pairs(a, e);
  if (s == GR_OK) s = gr_gguf_check_finite(g, NULL, e);
  if (s == GR_OK) *out = a;
  else gr_adapter_close(a);
  return s;
}

gr_status gr_adapter_open(gr_adapter **out, const char *path, gr_error *e)
{
  *out = NULL;
  gr_gguf *g;
  GR_TRY(gr_gguf_open(&g, path, e));
  return gr_adapter_from_gguf(out, g, e);
}

void gr_adapter_close(gr_adapter *a)
{
  if (!a) return;
  gr_gguf_close(a->file);
  gr_free(a->pairs);
  gr_free(a->index);
  gr_arena_free(&a->names);
  gr_free(a);
}

static gr_status check_pair(const gr_adapter *a, const gr_adapter_pair *p, const gr_gguf *base, gr_error *e)
{
  const char *path = gr_gguf_path(a->file), *base_path = gr_gguf_path(base);
  const gr_gguf_tensor *w = gr_gguf_tensor_find(base, p->base);
  if (!w)
    return gr_fail(e, GR_ERR_MISMATCH, "%s adapts '%s', which %s does not have: give the model that it was made for", path, p->base,
                   base_path);
  if (w->ne[0] != p->in || w->ne[1] != p->out || w->ne[2] != p->experts || w->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH,
                   "%s adapts '%s' as %lld x %lld x %lld, but in %s it is %lld x %lld x %lld; is it another model's adapter?", path,
                   p->base, (long long)p->in, (long long)p->out, (long long)p->experts, base_path, (long long)w->ne[0], (long long)w->ne[1],
                   (long long)w->ne[2]);
  return GR_OK;
}

gr_status gr_adapter_check(const gr_adapter *a, const gr_gguf *base, gr_error *e)
{
  gr_gguf_str architecture;
  GR_TRY(gr_gguf_string(base, "general.architecture", GR_GGUF_REQUIRED, &architecture, e));
  const gr_gguf_str *ours = &a->architecture;
  if (architecture.len != ours->len || memcmp(architecture.data, ours->data, ours->len) != 0)
    return gr_fail(e, GR_ERR_MISMATCH, "%s is for models of architecture '%.*s', but %s is '%.*s': give the model that it was made for",
                   gr_gguf_path(a->file), (int)ours->len, ours->data, gr_gguf_path(base),
                   (int)(architecture.len < 60 ? architecture.len : 60), architecture.data);
  for (size_t i = 0; i < a->count; i++) GR_TRY(check_pair(a, &a->pairs[i], base, e));
  return GR_OK;
}

const gr_gguf *gr_adapter_gguf(const gr_adapter *a) { return a->file; }
gr_gguf_str gr_adapter_architecture(const gr_adapter *a) { return a->architecture; }
double gr_adapter_alpha(const gr_adapter *a) { return a->alpha; }
size_t gr_adapter_ignored(const gr_adapter *a) { return a->ignored; }
size_t gr_adapter_count(const gr_adapter *a) { return a->count; }
const gr_adapter_pair *gr_adapter_at(const gr_adapter *a, size_t i) { return i < a->count ? &a->pairs[i] : NULL; }

const gr_adapter_pair *gr_adapter_find(const gr_adapter *a, const char *base)
{
  const gr_adapter_pair **hit = bsearch(base, a->index, a->count, sizeof *a->index, compare_base_with);
  return hit ? *hit : NULL;
}

double gr_adapter_scale(const gr_adapter *a, const gr_adapter_pair *pair) { return a->alpha != 0 ? a->alpha / (double)pair->rank : 1.0; }
