/* From tokens to bytes. */
#include "text/tokenizer_impl.h"

gr_decoder gr_decoder_start(const gr_tokenizer *t, unsigned flags)
{
  return (gr_decoder){ t, flags, t->add_space && !(flags & GR_DECODE_CONTINUES) };
}

gr_status gr_decoder_push(gr_decoder *d, int32_t id, gr_buf *out, gr_error *e)
{
  const gr_tokenizer *t = d->tokenizer;
  if (id < 0 || (size_t)id >= t->count)
    return gr_fail(e, GR_ERR_USAGE, "token %d is not one of the vocabulary's %zu (0 to %zu)", id, t->count, t->count - 1);
  gr_text_view bytes = t->output[id];
  bool breaks = t->flags[id] & GR_TOKEN_BREAKS, hidden = t->flags[id] & GR_TOKEN_HIDDEN && !(d->flags & GR_DECODE_CONTROL);
  size_t own = d->strip && !breaks && bytes.len && bytes.data[0] == ' ';
  if (!hidden) gr_buf_append(out, bytes.data + own, bytes.len - own);
  d->strip = breaks ? t->add_space : d->strip && !bytes.len;
  return out->failed ? gr_fail_memory(e, out->len) : GR_OK;
}

gr_status gr_tokenizer_decode(const gr_tokenizer *t, const int32_t *ids, size_t n, unsigned flags, gr_buf *out, gr_error *e)
{
  gr_decoder d = gr_decoder_start(t, flags);
  for (size_t i = 0; i < n; i++) GR_TRY(gr_decoder_push(&d, ids[i], out, e));
  return GR_OK;
}
