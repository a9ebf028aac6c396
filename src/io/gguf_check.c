/* Checks of a whole file that cost more than opening it, or that only some users want. */
#include "base/buf.h"
#include "io/gguf.h"

gr_status gr_gguf_check_types(const gr_gguf *g, gr_error *e)
{
  enum { NAMED_MAX = 8 };
  gr_buf names = { 0 };
  size_t bad = 0;
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    if (t->has_dtype) continue;
    if (bad++ < NAMED_MAX) gr_buf_printf(&names, "%s%s (%s)", bad > 1 ? ", " : "", t->name, gr_ggml_type_name(t->ggml_type));
  }
  if (!bad) return GR_OK;
  if (bad > NAMED_MAX) gr_buf_printf(&names, " and %zu more", bad - NAMED_MAX);
  gr_status s = names.failed ? gr_fail_memory(e, names.len)
                             : gr_fail(e, GR_ERR_UNSUPPORTED, "%s: %zu tensors have types that cannot be decoded: %s", gr_gguf_path(g), bad,
                                       names.data);
  gr_buf_free(&names);
  return s;
}
