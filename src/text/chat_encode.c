/* A conversation to the tokens that a model is asked with. */
#include "text/chat_encode.h"
#include "base/alloc.h"

static gr_status trusted_spans(const gr_rendered *text, gr_trusted_span **out, size_t *n, gr_error *e)
{
  *n = 0;
  *out = gr_calloc(text->n_runs, sizeof **out);
  if (!*out) return gr_fail_memory(e, text->n_runs * sizeof **out);
  for (size_t i = 0, end; i < text->n_runs; i = end) {
    end = gr_rendered_stretch(text, i);
    if (text->runs[i].control) (*out)[(*n)++] = (gr_trusted_span){ text->runs[i].start, text->runs[end - 1].end };
  }
  return GR_OK;
}

gr_status gr_chat_encode(const gr_tokenizer *t, const gr_template *chat, const json_t *messages, gr_tokens *tokens, gr_error *e)
{
  gr_text_view b = gr_tokenizer_text(t, gr_tokenizer_role(t, GR_ROLE_BOS)), s = gr_tokenizer_text(t, gr_tokenizer_role(t, GR_ROLE_EOS));
  char *bos = gr_strndup(b.data ? b.data : "", b.len), *eos = gr_strndup(s.data ? s.data : "", s.len);
  const gr_render_options o = { .add_generation_prompt = true, .bos_token = bos, .eos_token = eos };
  gr_rendered text = { 0 };
  gr_trusted_span *trusted = NULL;
  size_t n = 0;
  gr_status status = bos && eos ? gr_template_render(chat, messages, &o, &text, e) : gr_fail_memory(e, b.len + s.len);
  if (status == GR_OK) status = trusted_spans(&text, &trusted, &n, e);
  if (status == GR_OK)
    status = gr_tokenizer_encode_spans(t, text.text, text.len, trusted, n, GR_ENCODE_SPECIAL | GR_ENCODE_ONE_BOS, tokens, e);
  gr_free(trusted);
  gr_rendered_free(&text);
  gr_free(bos);
  gr_free(eos);
  return status;
}
