/* Chat templates in model files. The keys are those that llama.cpp's converter writes. */
#include <string.h>

#include "base/buf.h"
#include "text/chat.h"

static gr_status no_variant(const gr_gguf *g, const char *variant, gr_error *e)
{
  gr_buf names = { 0 };
  const gr_gguf_kv *known = gr_gguf_find(g, "tokenizer.chat_templates");
  gr_gguf_strings it = known ? gr_gguf_strings_of(known) : (gr_gguf_strings){ 0 };
  for (gr_gguf_str s; names.len < 200 && gr_gguf_strings_next(&it, &s);) {
    if (names.len) gr_buf_puts(&names, ", ");
    gr_buf_append(&names, s.data, s.len < 60 ? s.len : 60);
  }
  gr_status status = gr_fail(e, GR_ERR_USAGE, "%s has no chat template named '%s'%s%s", gr_gguf_path(g), variant,
                             names.len ? "; it has: " : " and no other named one", names.len ? names.data : "");
  gr_buf_free(&names);
  return status;
}

/* A file without a vocabulary does not say: true. */
static bool has_im_end(const gr_gguf *g)
{
  const gr_gguf_kv *tokens = gr_gguf_find(g, "tokenizer.ggml.tokens");
  if (!tokens) return true;
  gr_gguf_strings it = gr_gguf_strings_of(tokens);
  for (gr_gguf_str s; gr_gguf_strings_next(&it, &s);)
    if (gr_gguf_str_is(s, "<|im_end|>")) return true;
  return false;
}

gr_status gr_template_from_gguf(gr_template **t, const gr_gguf *g, const char *variant, bool *builtin, gr_error *e)
{
  gr_buf key = { 0 }, name = { 0 };
  gr_gguf_str text = { 0 };
  *t = NULL;
  *builtin = false;
  gr_buf_printf(&key, "tokenizer.chat_template%s%s", variant ? "." : "", variant ? variant : "");
  gr_buf_printf(&name, "chat template%s%s", variant ? " " : "", variant ? variant : "");
  gr_status status = GR_OK;
  if (key.failed || name.failed) status = gr_fail_memory(e, 64);
  if (status == GR_OK) status = gr_gguf_string(g, key.data, GR_GGUF_OPTIONAL, &text, e);
  if (status == GR_OK && !text.len) {
    *builtin = !variant;
    status = variant ? no_variant(g, variant, e) : gr_template_builtin(t, has_im_end(g), e);
  } else if (status == GR_OK) {
    status = gr_template_parse(t, text.data, text.len, name.data, e);
  }
  gr_buf_free(&key);
  gr_buf_free(&name);
  return status;
}
