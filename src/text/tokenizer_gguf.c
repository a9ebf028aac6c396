/* A tokenizer's parts as GGUF files name them. */
#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_impl.h"

#define KEY(name) "tokenizer.ggml." name

/* What read_* allocate for a spec. */
struct owned {
  char *model, *pre, *name;
  gr_text_view *tokens, *merges;
  float *scores;
  int32_t *types;
};

static gr_status read_text(const gr_gguf *g, const char *key, char **copy, gr_error *e)
{
  gr_gguf_str s = { NULL, 0 };
  GR_TRY(gr_gguf_string(g, key, GR_GGUF_OPTIONAL, &s, e));
  if (!s.data) return GR_OK;
  *copy = gr_strndup(s.data, s.len);
  return *copy ? GR_OK : gr_fail_memory(e, s.len);
}

static gr_status read_strings(const gr_gguf *g, const char *key, gr_text_view **views, size_t *count, gr_error *e)
{
  const gr_gguf_kv *kv = NULL;
  GR_TRY(gr_gguf_array(g, key, GR_GGUF_OPTIONAL, GR_GGUF_KIND_STRING, &kv, e));
  if (!kv) return GR_OK;
  if (kv->count > INT32_MAX)
    return gr_fail(e, GR_ERR_FORMAT, "%s: %s has %llu entries", gr_gguf_path(g), key, (unsigned long long)kv->count);
  *views = gr_calloc((size_t)kv->count, sizeof **views);
  if (!*views) return gr_fail_memory(e, (size_t)kv->count * sizeof **views);
  gr_gguf_strings it = gr_gguf_strings_of(kv);
  for (gr_gguf_str s; *count < kv->count && gr_gguf_strings_next(&it, &s);) (*views)[(*count)++] = (gr_text_view){ s.data, s.len };
  return GR_OK;
}

/* The array beside the tokens, which must be no shorter than they are; NULL when absent. */
static gr_status find_beside(const gr_gguf *g, const char *key, gr_gguf_kind kind, size_t count, const gr_gguf_kv **kv, gr_error *e)
{
  *kv = NULL;
  GR_TRY(gr_gguf_array(g, key, GR_GGUF_OPTIONAL, kind, kv, e));
  if (*kv && (*kv)->count < count)
    return gr_fail(e, GR_ERR_FORMAT, "%s: %s has %llu entries for %zu tokens", gr_gguf_path(g), key, (unsigned long long)(*kv)->count,
                   count);
  return GR_OK;
}

static gr_status read_arrays(const gr_gguf *g, gr_tokenizer_spec *spec, struct owned *own, gr_error *e)
{
  GR_TRY(read_strings(g, KEY("tokens"), &own->tokens, &spec->token_count, e));
  GR_TRY(read_strings(g, KEY("merges"), &own->merges, &spec->merge_count, e));
  const gr_gguf_kv *scores, *types;
  GR_TRY(find_beside(g, KEY("scores"), GR_GGUF_KIND_FLOAT, spec->token_count, &scores, e));
  GR_TRY(find_beside(g, KEY("token_type"), GR_GGUF_KIND_INT, spec->token_count, &types, e));
  if (scores && !(own->scores = gr_calloc(spec->token_count, sizeof *own->scores))) return gr_fail_memory(e, spec->token_count);
  if (types && !(own->types = gr_calloc(spec->token_count, sizeof *own->types))) return gr_fail_memory(e, spec->token_count);
  for (size_t i = 0; i < spec->token_count; i++) {
    double score = 0;
    int64_t type = 0;
    if (scores && gr_gguf_kv_f64(scores, i, &score)) own->scores[i] = (float)score;
    if (types && gr_gguf_kv_i64(types, i, &type)) own->types[i] = type >= INT32_MIN && type <= INT32_MAX ? (int32_t)type : 0;
  }
  return GR_OK;
}

static gr_status read_role(const gr_gguf *g, const char *key, int64_t *id, gr_error *e)
{
  uint64_t value = UINT64_MAX;
  const gr_gguf_kv *kv = gr_gguf_find(g, key);
  int64_t negative;
  if (kv && !kv->is_array && gr_gguf_kv_i64(kv, 0, &negative) && negative < 0) return GR_OK; /* "none", as some converters write it */
  GR_TRY(gr_gguf_u64(g, key, GR_GGUF_OPTIONAL, 0, UINT32_MAX, &value, e));
  if (value != UINT64_MAX) *id = (int64_t)value;
  return GR_OK;
}

static gr_status read_flag(const gr_gguf *g, const char *key, int *flag, gr_error *e)
{
  bool value = false;
  if (!gr_gguf_find(g, key)) return GR_OK;
  GR_TRY(gr_gguf_bool(g, key, GR_GGUF_REQUIRED, &value, e));
  *flag = value;
  return GR_OK;
}

static gr_status read_spec(const gr_gguf *g, gr_tokenizer_spec *spec, struct owned *own, gr_error *e)
{
  static const struct {
    gr_token_role role;
    const char *key;
  } roles[] = {
    /* older names first: a newer one beside it wins */
    { GR_ROLE_FIM_PRE, KEY("prefix_token_id") },  { GR_ROLE_FIM_SUF, KEY("suffix_token_id") },
    { GR_ROLE_FIM_MID, KEY("middle_token_id") },  { GR_ROLE_BOS, KEY("bos_token_id") },
    { GR_ROLE_EOS, KEY("eos_token_id") },         { GR_ROLE_EOT, KEY("eot_token_id") },
    { GR_ROLE_EOM, KEY("eom_token_id") },         { GR_ROLE_UNK, KEY("unknown_token_id") },
    { GR_ROLE_SEP, KEY("seperator_token_id") },   { GR_ROLE_PAD, KEY("padding_token_id") },
    { GR_ROLE_FIM_PRE, KEY("fim_pre_token_id") }, { GR_ROLE_FIM_SUF, KEY("fim_suf_token_id") },
    { GR_ROLE_FIM_MID, KEY("fim_mid_token_id") }, { GR_ROLE_FIM_PAD, KEY("fim_pad_token_id") },
    { GR_ROLE_FIM_REP, KEY("fim_rep_token_id") }, { GR_ROLE_FIM_SEP, KEY("fim_sep_token_id") },
  };
  GR_TRY(read_text(g, KEY("model"), &own->model, e));
  GR_TRY(read_text(g, KEY("pre"), &own->pre, e));
  GR_TRY(read_text(g, "general.name", &own->name, e));
  GR_TRY(read_arrays(g, spec, own, e));
  for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) GR_TRY(read_role(g, roles[i].key, &spec->role[roles[i].role], e));
  GR_TRY(read_flag(g, KEY("add_bos_token"), &spec->add_bos, e));
  GR_TRY(read_flag(g, KEY("add_eos_token"), &spec->add_eos, e));
  GR_TRY(read_flag(g, KEY("add_space_prefix"), &spec->add_space_prefix, e));
  spec->model = own->model;
  spec->pre = own->pre;
  spec->name = own->name;
  spec->tokens = own->tokens;
  spec->merges = own->merges;
  spec->scores = own->scores;
  spec->types = own->types;
  return GR_OK;
}

gr_status gr_tokenizer_create(gr_tokenizer **t, const gr_gguf *g, gr_error *e)
{
  *t = NULL;
  gr_tokenizer_spec spec;
  gr_tokenizer_spec_init(&spec);
  struct owned own = { 0 };
  gr_status s = read_spec(g, &spec, &own, e);
  if (s == GR_OK) {
    s = gr_tokenizer_build(t, &spec, e);
    if (s != GR_OK) gr_error_context(e, "%s", gr_gguf_path(g));
  }
  void *pieces[] = { own.model, own.pre, own.name, own.tokens, own.merges, own.scores, own.types };
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) gr_free(pieces[i]);
  return s;
}
