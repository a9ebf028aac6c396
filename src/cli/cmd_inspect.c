/* graft inspect: checks a model or adapter file whole, and prints what it is. The same checks as before training or serving. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "io/adapter.h"
#include "io/identity.h"
#include "text/chat.h"

struct options {
  const char *path, *base;
  bool tensors, metadata, json;
};

static void print_kv(const gr_gguf_kv *kv)
{
  printf("  %-44s %s%s", kv->key, gr_gguf_type_name(kv->type), kv->is_array ? "[]" : "");
  double v;
  gr_gguf_strings it = gr_gguf_strings_of(kv);
  gr_gguf_str s;
  if (kv->is_array) printf(" (%llu)", (unsigned long long)kv->count);
  else if (gr_gguf_strings_next(&it, &s)) {
    json_t *text = gr_cli_json_text(s.data, s.len < 60 ? s.len : 60);
    char *shown = text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
    printf(" %s%s", shown ? shown : "", s.len > 60 ? "..." : "");
    free(shown);
    json_decref(text);
  } else if (gr_gguf_kv_f64(kv, 0, &v)) printf(" %.10g", v);
  putchar('\n');
}

static void print_file(const gr_gguf *g, const struct options *o)
{
  for (size_t i = 0; o->metadata && i < gr_gguf_kv_count(g); i++) print_kv(gr_gguf_kv_at(g, i));
  for (size_t i = 0; o->tensors && i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    printf("  %-40s %-7s [%lld", t->name, gr_ggml_type_name(t->ggml_type), (long long)t->ne[0]);
    for (int d = 1; d < t->n_dims; d++) printf(", %lld", (long long)t->ne[d]);
    printf("] %zu bytes\n", t->bytes);
  }
}

/* Bytes of each type, most first: "Q4_1 80.1 MB, F32 0.1 MB". */
static void describe_types(const gr_gguf *g, json_t *types)
{
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    const char *name = gr_ggml_type_name(t->ggml_type);
    json_int_t before = json_integer_value(json_object_get(types, name));
    json_object_set_new(types, name, json_integer(before + (json_int_t)t->bytes));
  }
}

static void print_types(json_t *types)
{
  const char *name, *comma = "";
  json_t *bytes;
  printf("weights:      ");
  json_object_foreach(types, name, bytes)
  {
    printf("%s%s %.2f MB", comma, name, (double)json_integer_value(bytes) / 1e6);
    comma = ", ";
  }
  putchar('\n');
}

static const char *template_kind(const gr_gguf *g, char *text, size_t size, gr_error *note)
{
  gr_template *t = NULL;
  bool builtin = false;
  if (gr_template_from_gguf(&t, g, NULL, &builtin, note) != GR_OK) return "broken";
  snprintf(text, size, "none (conversations are written by %s)", gr_template_name(t));
  gr_template_free(t);
  return builtin ? text : "understood";
}

/* What its user should know: of the chat template, the vocabulary, and weights that are no numbers. The last are a fault of the file,
 * which is described all the same. */
static gr_status collect_notes(const gr_model *m, const gr_error *chat, json_t *notes, gr_error *weights, gr_error *e)
{
  gr_pool *pool = NULL;
  const char *of_tokenizer = gr_tokenizer_notes(gr_model_tokenizer(m));
  GR_TRY(gr_pool_create(&pool, 0, e));
  gr_gguf_check_finite(gr_model_file(m), pool, weights);
  gr_pool_free(pool);
  const char *const all[] = { chat->text, of_tokenizer, weights->text };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (*all[i]) json_array_append_new(notes, gr_cli_json_text(all[i], strlen(all[i])));
  return GR_OK;
}

/* What only some models have: experts, sliding windows. */
static void add_special(const gr_model *m, json_t *out)
{
  const gr_hparams *hp = gr_model_hparams(m);
  if (hp->experts)
    json_object_set_new(out, "experts",
                        json_pack("{s:i,s:i,s:i,s:i,s:I}", "count", hp->experts, "used", hp->experts_used, "ff", hp->expert_ff, "shared_ff",
                                  hp->shared_ff, "active_parameters", (json_int_t)gr_model_active_parameters(m)));
  if (hp->window) json_object_set_new(out, "sliding_window", json_integer(hp->window));
}

static void print_special(const gr_model *m)
{
  const gr_hparams *hp = gr_model_hparams(m);
  char shared[64] = "";
  if (hp->shared_ff) snprintf(shared, sizeof shared, ", and a shared one of %d", hp->shared_ff);
  if (hp->experts)
    printf("experts:      %d of %d for each token, feed-forward %d%s; %.2f million parameters are active\n", hp->experts_used, hp->experts,
           hp->expert_ff, shared, (double)gr_model_active_parameters(m) / 1e6);
  if (hp->window) printf("window:       %d of %d layers see %d tokens back\n", gr_model_sliding_layers(m), hp->layers, hp->window);
}

static gr_status inspect_model(const struct options *o, gr_error *e)
{
  gr_model *m = NULL;
  GR_TRY(gr_model_open(&m, o->path, e));
  const gr_hparams *hp = gr_model_hparams(m);
  const gr_gguf *g = gr_model_file(m);
  const gr_tokenizer *t = gr_model_tokenizer(m);
  gr_error note = { 0 }, weights = { 0 };
  char text[128];
  const char *chat = template_kind(g, text, sizeof text, &note);
  json_t *types = json_object(), *notes = json_array();
  gr_status s = collect_notes(m, &note, notes, &weights, e);
  describe_types(g, types);
  if (s == GR_OK && o->json) {
    json_t *out =
        json_pack("{s:o,s:s,s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:I,s:b,s:s,s:s,s:s,s:O,s:O}", "file",
                  gr_cli_json_text(o->path, strlen(o->path)), "kind", "model", "architecture", gr_model_arch(m), "layers", hp->layers,
                  "width", hp->width, "heads", hp->heads, "heads_kv", hp->heads_kv, "ff", hp->ff, "context", hp->context, "vocab",
                  hp->vocab, "parameters", (json_int_t)gr_model_parameters(m), "tied", gr_model_tied(m), "tokenizer", gr_tokenizer_model(t),
                  "pre", gr_tokenizer_pre(t), "chat_template", chat, "types", types, "notes", notes);
    add_special(m, out);
    gr_cli_json(out);
  } else if (s == GR_OK) {
    printf("model:        %s, %.2f million parameters, GGUF v%u in %d part%s, %.2f MB\n", gr_model_arch(m),
           (double)gr_model_parameters(m) / 1e6, gr_gguf_version(g), gr_gguf_part_count(g), gr_gguf_part_count(g) == 1 ? "" : "s",
           (double)gr_gguf_file_bytes(g) / 1e6);
    printf("shape:        %d layers, width %d, %d heads over %d key heads of %d, feed-forward %d, context %d\n", hp->layers, hp->width,
           hp->heads, hp->heads_kv, hp->head_k, hp->ff, hp->context);
    print_special(m);
    printf("vocabulary:   %d tokens, %s%s%s, head %s\n", hp->vocab, gr_tokenizer_model(t), gr_tokenizer_pre(t)[0] ? ", pre-tokenizer " : "",
           gr_tokenizer_pre(t), gr_model_tied(m) ? "tied" : "of its own");
    print_types(types);
    printf("chat template: %s\n", chat);
    for (size_t i = 0; i < json_array_size(notes); i++) printf("note:         %s\n", json_string_value(json_array_get(notes, i)));
  }
  if (s == GR_OK && !o->json) print_file(g, o);
  if (s == GR_OK && weights.status != GR_OK)
    s = gr_fail(e, weights.status, "%s: download or convert the model again, for nothing computed with it is a number", weights.text);
  json_decref(types);
  json_decref(notes);
  gr_model_close(m);
  return s;
}

/* Whether an adapter fits a model, and says that it was trained on another. */
static gr_status check_base(const struct options *o, bool *other, gr_error *e)
{
  gr_model *m = NULL;
  gr_lora *l = NULL;
  char hash[GR_HASH_TEXT] = "";
  gr_error said = { 0 };
  gr_status s = gr_model_open(&m, o->base, e);
  if (s == GR_OK) s = gr_lora_load(&l, m, o->path, e);
  if (s == GR_OK && gr_lora_names_base(l)) s = gr_base_hash(gr_model_file(m), NULL, hash, e);
  if (s == GR_OK) *other = gr_lora_check_base(l, m, hash[0] ? hash : NULL, &said) == GR_ERR_MISMATCH;
  gr_lora_free(l);
  gr_model_close(m);
  return s;
}

/* Any base architecture will do here: with --base the fit is checked too. */
static gr_status inspect_adapter(const struct options *o, gr_error *e)
{
  gr_adapter *a = NULL;
  GR_TRY(gr_adapter_open(&a, o->path, e));
  bool other = false;
  gr_status s = o->base ? check_base(o, &other, e) : GR_OK;
  gr_gguf_str arch = gr_adapter_architecture(a);
  size_t parameters = 0, stacks = 0;
  int64_t least = 0, most = 0;
  for (size_t i = 0; i < gr_adapter_count(a); i++) {
    const gr_adapter_pair *p = gr_adapter_at(a, i);
    parameters += (size_t)(p->rank * (p->in + p->out) * p->experts);
    stacks += p->experts > 1;
    if (!i || p->rank < least) least = p->rank;
    if (p->rank > most) most = p->rank;
  }
  if (s == GR_OK && o->json) {
    gr_cli_json(json_pack("{s:o,s:s,s:o,s:I,s:I,s:I,s:I,s:I,s:f,s:o,s:b}", "file", gr_cli_json_text(o->path, strlen(o->path)), "kind",
                          "adapter", "architecture", gr_cli_json_text(arch.data, arch.len), "pairs", (json_int_t)gr_adapter_count(a),
                          "stacks", (json_int_t)stacks, "parameters", (json_int_t)parameters, "rank_min", (json_int_t)least, "rank_max",
                          (json_int_t)most, "alpha", gr_adapter_alpha(a), "fits_base", o->base ? json_true() : json_null(), "other_base",
                          other));
  } else if (s == GR_OK) {
    printf("adapter:      LoRA for %.*s, %zu matrices", (int)arch.len, arch.data, gr_adapter_count(a));
    if (stacks) printf(" (%zu of them stacks of experts)", stacks);
    printf(", rank %lld", (long long)least);
    if (most > least) printf(" to %lld", (long long)most);
    printf(", alpha %g, %zu parameters\n", gr_adapter_alpha(a), parameters);
    if (gr_adapter_ignored(a)) printf("note:         %zu norm tensors are ignored, as llama.cpp ignores them\n", gr_adapter_ignored(a));
    printf("base:         %s%s\n", o->base ? "fits the model given" : "not checked (give it with --base)",
           other ? ", but was trained on another" : "");
    print_file(gr_adapter_gguf(a), o);
  }
  gr_adapter_close(a);
  return s;
}

static gr_status run(const struct options *o, gr_error *e)
{
  if (!o->path) return gr_fail(e, GR_ERR_USAGE, "give the file to inspect: graft inspect FILE");
  gr_gguf *g = NULL;
  gr_gguf_str type = { "", 0 };
  GR_TRY(gr_gguf_open(&g, o->path, e));
  gr_status s = gr_gguf_string(g, "general.type", GR_GGUF_OPTIONAL, &type, e);
  bool adapter = gr_gguf_str_is(type, "adapter");
  gr_gguf_close(g);
  if (s != GR_OK) return s;
  return adapter || o->base ? inspect_adapter(o, e) : inspect_model(o, e);
}

int gr_cmd_inspect(int argc, char **argv)
{
  struct options o = { 0 };
  const gr_arg args[] = {
    { "--base -m", GR_ARG_TEXT, "FILE", "the model that an adapter must fit", &o.base, NULL },
    { "--tensors", GR_ARG_FLAG, NULL, "list the tensors", &o.tensors, NULL },
    { "--metadata", GR_ARG_FLAG, NULL, "list the metadata", &o.metadata, NULL },
    { "--json", GR_ARG_FLAG, NULL, "one JSON object on stdout", &o.json, NULL },
    { 0 },
  };
  int status = 0;
  gr_error e = { 0 };
  gr_arg_words words = { &o.path, 1, 0 };
  if (gr_cli_parse(args, argc, argv, &words, "usage: graft inspect FILE [--base MODEL] [options]", &status))
    status = run(&o, &e) == GR_OK ? 0 : gr_cli_fail(&e);
  return status;
}
