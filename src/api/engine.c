/* The public API over the rooms: an engine is a pool, backends, a model and its adapters. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "graft/graft.h"
#include "infer/generate.h"
#include "infer/score.h"
#include "text/chat_encode.h"

struct gr_engine {
  gr_pool *pool;
  gr_backend *backends[2];
  size_t n_backends;
  gr_model *model;
  gr_adapter_use *adapters;
  size_t n_adapters, cap;
  gr_buf notes; /* of the adapters, a line each */
};

const char *gr_version(void) { return GR_VERSION; }

gr_status gr_engine_open(gr_engine **out, const char *path, const gr_engine_options *options, gr_error *e)
{
  const char *name = options && options->backend ? options->backend : "cpu";
  *out = NULL;
  gr_engine *g = gr_calloc(1, sizeof *g);
  if (!g) return gr_fail_memory(e, sizeof *g);
  gr_precision precision;
  gr_status s = gr_precision_parse(options ? options->precision : NULL, &precision, e);
  if (s == GR_OK) s = gr_pool_create(&g->pool, options ? options->threads : 0, e);
  if (s == GR_OK) s = gr_backend_open(&g->backends[g->n_backends], name, g->pool, e);
  if (s == GR_OK) g->n_backends++;
  if (s == GR_OK) s = gr_backend_use_precision(g->backends[0], precision, e);
  if (s == GR_OK && strcmp(name, "cpu") != 0) {
    s = gr_backend_open(&g->backends[g->n_backends], "cpu", g->pool, e);
    if (s == GR_OK) g->n_backends++;
  }
  if (s == GR_OK) s = gr_model_open(&g->model, path, e);
  if (s != GR_OK) {
    gr_engine_close(g);
    return s;
  }
  *out = g;
  return GR_OK;
}

void gr_engine_drop_adapters(gr_engine *g)
{
  for (size_t i = 0; i < g->n_adapters; i++) gr_lora_free(g->adapters[i].lora);
  g->n_adapters = 0;
  gr_buf_clear(&g->notes);
}

const char *gr_engine_notes(const gr_engine *g) { return g->notes.data && g->notes.len ? g->notes.data : ""; }

void gr_engine_close(gr_engine *g)
{
  if (!g) return;
  gr_engine_drop_adapters(g);
  gr_free(g->adapters);
  gr_buf_free(&g->notes);
  gr_model_close(g->model);
  for (size_t i = 0; i < g->n_backends; i++) gr_backend_close(g->backends[i]);
  gr_pool_free(g->pool);
  gr_free(g);
}

gr_status gr_engine_add_adapter(gr_engine *g, const char *path, float scale, gr_error *e)
{
  if (!isfinite(scale)) return gr_fail(e, GR_ERR_USAGE, "the scale of an adapter must be a finite number");
  if (!gr_grow((void **)&g->adapters, &g->cap, g->n_adapters + 1, sizeof *g->adapters))
    return gr_fail_memory(e, g->cap * sizeof *g->adapters);
  gr_adapter_use use = { .scale = scale };
  gr_error other = { 0 };
  GR_TRY(gr_lora_load(&use.lora, g->model, path, e));
  if (gr_lora_check_base(use.lora, g->model, NULL, &other) != GR_OK) gr_buf_printf(&g->notes, "%s%s", g->notes.len ? "\n" : "", other.text);
  if (g->notes.failed) {
    g->notes.failed = false;
    gr_lora_free(use.lora);
    return gr_fail_memory(e, sizeof other.text);
  }
  g->adapters[g->n_adapters++] = use;
  return GR_OK;
}

int32_t gr_engine_vocabulary(const gr_engine *g) { return gr_model_hparams(g->model)->vocab; }
int32_t gr_engine_context(const gr_engine *g) { return gr_model_hparams(g->model)->context; }
void gr_engine_free(void *p) { gr_free(p); }

gr_status gr_engine_tokenize(const gr_engine *g, const char *text, size_t bytes, int32_t **ids, size_t *count, gr_error *e)
{
  gr_tokens tokens = { 0 };
  *ids = NULL;
  *count = 0;
  GR_TRY(gr_tokenizer_encode(gr_model_tokenizer(g->model), text, bytes, GR_ENCODE_SPECIAL | GR_ENCODE_PARSE_CONTROL | GR_ENCODE_ONE_BOS,
                             &tokens, e));
  int32_t *copy = gr_alloc(tokens.count * sizeof *copy);
  gr_status s = copy ? GR_OK : gr_fail_memory(e, tokens.count * sizeof *copy);
  if (s == GR_OK && tokens.count) memcpy(copy, tokens.ids, tokens.count * sizeof *copy);
  if (s == GR_OK) {
    *ids = copy;
    *count = tokens.count;
  }
  gr_tokens_free(&tokens);
  return s;
}

static gr_session_options session_options(const gr_engine *g, int32_t context, int32_t outputs)
{
  return (gr_session_options){ .context = context,
                               .outputs = outputs,
                               .adapters = g->adapters,
                               .n_adapters = g->n_adapters,
                               .backends = g->backends,
                               .n_backends = g->n_backends };
}

gr_generate_settings gr_generate_settings_default(void)
{
  gr_sampling p = gr_sampling_defaults();
  return (gr_generate_settings){ .tokens_max = 128,
                                 .temperature = p.temperature,
                                 .top_k = p.top_k,
                                 .top_p = p.top_p,
                                 .min_p = p.min_p,
                                 .repeat_penalty = p.repeat_penalty,
                                 .seed = p.seed };
}

struct listener {
  gr_text_callback *on_text;
  void *ctx;
};

static bool forward_text(void *ctx, int32_t id, const char *text, size_t n)
{
  (void)id;
  const struct listener *l = ctx;
  return !l->on_text || l->on_text(l->ctx, text, n);
}

static gr_generate_options generate_options(const gr_engine *g, const gr_generate_settings *settings, struct listener *listener)
{
  gr_generate_settings preset = gr_generate_settings_default(), s = settings ? *settings : preset;
  return (gr_generate_options){
    .session = session_options(g, 0, 1),
    .sampling = { .temperature = s.temperature,
                  .top_k = s.top_k,
                  .top_p = s.top_p,
                  .min_p = s.min_p,
                  .repeat_penalty = s.repeat_penalty,
                  .repeat_last = gr_sampling_defaults().repeat_last,
                  .seed = s.seed },
    .most = s.tokens_max,
    .on_token = forward_text,
    .ctx = listener,
  };
}

gr_status gr_engine_generate(gr_engine *g, const char *prompt, size_t bytes, const gr_generate_settings *settings,
                             gr_text_callback *on_text, void *ctx, gr_error *e)
{
  struct listener listener = { on_text, ctx };
  gr_generate_options o = generate_options(g, settings, &listener);
  o.parse_control = true;
  gr_generation out;
  GR_TRY(gr_generate(g->model, prompt, bytes, &o, &out, e));
  gr_generation_free(&out);
  return GR_OK;
}

static gr_status messages_json(const gr_chat_message *messages, size_t count, json_t **out, gr_error *e)
{
  *out = json_array();
  if (!*out) return gr_fail_memory(e, 64);
  if (count == 0) return gr_fail(e, GR_ERR_USAGE, "the conversation has no message: there is nothing to answer");
  for (size_t i = 0; i < count; i++) {
    const gr_chat_message *m = &messages[i];
    if (!m->role || !m->content) return gr_fail(e, GR_ERR_USAGE, "message %zu needs a role and a content", i + 1);
    json_t *one = json_pack("{s:s,s:s}", "role", m->role, "content", m->content);
    if (!one) return gr_fail(e, GR_ERR_FORMAT, "message %zu is not UTF-8 text", i + 1);
    if (json_array_append_new(*out, one) < 0) return gr_fail_memory(e, 64);
  }
  return GR_OK;
}

static gr_status answer(gr_engine *g, const gr_tokens *prompt, gr_generate_options *o, gr_error *e)
{
  gr_session *session = NULL;
  gr_generation out;
  int64_t need = (int64_t)prompt->count + o->most, most = gr_engine_context(g);
  if ((int64_t)prompt->count >= most)
    return gr_fail(e, GR_ERR_USAGE, "the conversation has %zu tokens and the context holds %lld: shorten it", prompt->count,
                   (long long)most);
  o->session.context = (int32_t)(need < most ? need : most);
  gr_status s = gr_session_open(&session, g->model, &o->session, e);
  if (s == GR_OK) s = gr_generate_ids(session, g->model, prompt->ids, (int32_t)prompt->count, o, &out, e);
  if (s == GR_OK) gr_generation_free(&out);
  gr_session_close(session);
  return s;
}

gr_status gr_engine_chat(gr_engine *g, const gr_chat_message *messages, size_t count, const gr_generate_settings *settings,
                         gr_text_callback *on_text, void *ctx, gr_error *e)
{
  struct listener listener = { on_text, ctx };
  gr_generate_options o = generate_options(g, settings, &listener);
  gr_template *chat = NULL;
  json_t *list = NULL;
  gr_tokens prompt = { 0 };
  bool builtin = false;
  gr_status s = messages_json(messages, count, &list, e);
  if (s == GR_OK && o.most < 0) s = gr_fail(e, GR_ERR_USAGE, "cannot generate %d tokens", o.most);
  if (s == GR_OK) s = gr_template_from_gguf(&chat, gr_model_file(g->model), NULL, &builtin, e);
  if (s == GR_OK) s = gr_chat_encode(gr_model_tokenizer(g->model), chat, list, &prompt, e);
  if (s == GR_OK) s = answer(g, &prompt, &o, e);
  gr_tokens_free(&prompt);
  gr_template_free(chat);
  json_decref(list);
  return s;
}

gr_status gr_engine_score(gr_engine *g, const int32_t *ids, size_t count, float *nll, gr_error *e)
{
  int32_t vocab = gr_engine_vocabulary(g);
  if (count < 2 || count > INT32_MAX) return gr_fail(e, GR_ERR_USAGE, "scoring needs at least 2 tokens, not %zu", count);
  gr_session *s = NULL;
  gr_session_options so = session_options(g, (int32_t)count, GR_SCORE_ROWS);
  so.batch = GR_SCORE_ROWS;
  gr_status status = gr_session_open(&s, g->model, &so, e);
  if (status == GR_OK) status = gr_score(s, vocab, ids, (int32_t)count, nll, NULL, e);
  gr_session_close(s);
  return status;
}
