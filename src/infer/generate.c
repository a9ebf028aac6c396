#include "infer/generate.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buf.h"

static double seconds_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void gr_generation_free(gr_generation *g)
{
  gr_free(g->ids);
  gr_free(g->text);
  *g = (gr_generation){ 0 };
}

struct run {
  gr_session *session;
  const gr_model *model;
  const gr_generate_options *o;
  gr_generation *out;
  gr_sampler *sampler;
  float *logits;
  gr_decoder decoder;
  gr_buf text;
};

/* Writes token id out and says whether to go on. */
static gr_status emit(struct run *r, int32_t id, bool *on, gr_error *e)
{
  size_t before = r->text.len;
  GR_TRY(gr_decoder_push(&r->decoder, id, &r->text, e));
  if (r->text.failed) return gr_fail_memory(e, before);
  r->out->ids[r->out->n_ids++] = id;
  *on = true;
  if (r->o->on_token && !r->o->on_token(r->o->ctx, id, r->text.data ? r->text.data + before : "", r->text.len - before)) {
    r->out->stop = "stopped";
    *on = false;
  }
  return GR_OK;
}

static gr_status loop(struct run *r, gr_error *e)
{
  const gr_tokenizer *t = gr_model_tokenizer(r->model);
  gr_generation *g = r->out;
  double start = seconds_now();
  GR_TRY(gr_session_run(r->session, g->ids, g->n_prompt, r->logits, 1, e));
  g->prompt_seconds = seconds_now() - start;
  g->stop = "length";
  bool on = true;
  for (int32_t i = 0; i < r->o->most && on; i++) {
    int32_t id = 0;
    GR_TRY(gr_sampler_next(r->sampler, r->logits, g->ids, (size_t)g->n_ids, (uint64_t)gr_session_length(r->session), &id, e));
    GR_TRY(emit(r, id, &on, e));
    if (gr_tokenizer_is_eog(t, id) && !r->o->ignore_eos) {
      g->stop = "end";
      on = false;
    } else if (on && i + 1 < r->o->most) {
      if (gr_session_length(r->session) == gr_session_context(r->session)) {
        g->stop = "context";
        on = false;
      } else {
        GR_TRY(gr_session_run(r->session, &id, 1, r->logits, 1, e));
      }
    }
  }
  g->seconds = seconds_now() - start - g->prompt_seconds;
  return GR_OK;
}

gr_status gr_generate_ids(gr_session *s, const gr_model *m, const int32_t *prompt, int32_t n, const gr_generate_options *o,
                          gr_generation *out, gr_error *e)
{
  *out = (gr_generation){ .n_prompt = n, .n_ids = n };
  if (n < 1) return gr_fail(e, GR_ERR_USAGE, "the prompt holds no token: there is nothing to continue");
  if (o->most < 0) return gr_fail(e, GR_ERR_USAGE, "cannot generate %d tokens", o->most);
  struct run r = { .session = s, .model = m, .o = o, .out = out, .decoder = gr_decoder_start(gr_model_tokenizer(m), GR_DECODE_CONTINUES) };
  out->ids = gr_alloc(((size_t)n + (size_t)o->most) * sizeof(int32_t));
  r.logits = gr_alloc((size_t)gr_model_hparams(m)->vocab * sizeof(float));
  gr_status status = out->ids && r.logits ? GR_OK : gr_fail_memory(e, (size_t)gr_model_hparams(m)->vocab * sizeof(float));
  if (status == GR_OK) memcpy(out->ids, prompt, (size_t)n * sizeof(int32_t));
  if (status == GR_OK) status = gr_sampler_create(&r.sampler, &o->sampling, gr_model_hparams(m)->vocab, e);
  if (status == GR_OK) status = loop(&r, e);
  out->text = r.text.data;
  out->text_len = r.text.len;
  gr_sampler_free(r.sampler);
  gr_free(r.logits);
  if (status != GR_OK) gr_generation_free(out);
  return status;
}

gr_status gr_generate(const gr_model *m, const char *prompt, size_t n, const gr_generate_options *o, gr_generation *out, gr_error *e)
{
  *out = (gr_generation){ 0 };
  gr_tokens tokens = { 0 };
  gr_session *s = NULL;
  unsigned flags = GR_ENCODE_SPECIAL | (o->parse_control ? GR_ENCODE_PARSE_CONTROL | GR_ENCODE_ONE_BOS : 0);
  gr_status status = gr_tokenizer_encode(gr_model_tokenizer(m), prompt, n, flags, &tokens, e);
  gr_session_options session = o->session;
  if (session.context == 0) {
    int64_t need = (int64_t)tokens.count + o->most, most = gr_model_hparams(m)->context;
    session.context = (int32_t)(need < most ? need : most);
  }
  if (status == GR_OK && tokens.count > (size_t)session.context)
    status = gr_fail(e, GR_ERR_USAGE, "the prompt has %zu tokens and the context holds %d: shorten it, or raise -c", tokens.count,
                     session.context);
  if (status == GR_OK) status = gr_session_open(&s, m, &session, e);
  if (status == GR_OK && o->on_session) o->on_session(o->ctx, s);
  if (status == GR_OK) status = gr_generate_ids(s, m, tokens.ids, (int32_t)tokens.count, o, out, e);
  gr_session_close(s);
  gr_tokens_free(&tokens);
  return status;
}
