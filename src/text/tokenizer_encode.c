/* From text to tokens: special tokens are cut out, what lies between them is given to the vocabulary's own algorithm. */
#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_impl.h"

bool gr_tokens_push(gr_tokens *out, int32_t id, size_t at, size_t length)
{
  if (out->count == out->cap) {
    size_t ids = out->cap, ats = out->cap, lengths = out->cap, need = out->count + 1;
    if (!gr_grow((void **)&out->ids, &ids, need, sizeof *out->ids)) return false;
    if (!gr_grow((void **)&out->at, &ats, need, sizeof *out->at)) return false;
    if (!gr_grow((void **)&out->length, &lengths, need, sizeof *out->length)) return false;
    out->cap = ids;
  }
  out->ids[out->count] = id;
  out->at[out->count] = (uint32_t)at;
  out->length[out->count++] = (uint32_t)length;
  return true;
}

void gr_tokens_free(gr_tokens *tokens)
{
  gr_free(tokens->ids);
  gr_free(tokens->at);
  gr_free(tokens->length);
  *tokens = (gr_tokens){ 0 };
}

/* What lies between special tokens. SentencePiece's own space stands at the start of the text and behind every special token:
 * before each such piece. */
static gr_status encode_piece(gr_encoder *enc, size_t start, size_t end, gr_error *e)
{
  if (start == end) return GR_OK;
  if (!enc->t->spm) return gr_bpe_encode(enc, start, end - start, e);
  return gr_spm_encode(enc, start, end - start, enc->t->add_space, e);
}

static gr_status encode_matched(gr_encoder *enc, const gr_special_matches *matches, unsigned flags, gr_error *e)
{
  const gr_tokenizer *t = enc->t;
  bool bos = flags & GR_ENCODE_SPECIAL && t->add_bos, eos = flags & GR_ENCODE_SPECIAL && t->add_eos;
  if (flags & GR_ENCODE_ONE_BOS && matches->count && !matches->items[0].start && matches->items[0].id == t->role[GR_ROLE_BOS]) bos = false;
  if (bos && !gr_tokens_push(enc->out, t->role[GR_ROLE_BOS], 0, 0)) return gr_fail_memory(e, 0);
  size_t at = 0;
  for (size_t i = 0; i < matches->count; i++) {
    const gr_special_match *m = &matches->items[i];
    GR_TRY(encode_piece(enc, at, m->start, e));
    if (!gr_tokens_push(enc->out, m->id, m->start, (size_t)m->length + m->skip)) return gr_fail_memory(e, enc->n);
    at = (size_t)m->start + m->length + m->skip;
  }
  GR_TRY(encode_piece(enc, at, enc->n, e));
  if (eos && !gr_tokens_push(enc->out, t->role[GR_ROLE_EOS], enc->n, 0)) return gr_fail_memory(e, enc->n);
  return GR_OK;
}

gr_status gr_tokenizer_encode_spans(const gr_tokenizer *t, const char *text, size_t n, const gr_trusted_span *trusted, size_t trusted_count,
                                    unsigned flags, gr_tokens *out, gr_error *e)
{
  out->count = out->lost = 0;
  if (n > INT32_MAX)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "a text of %zu bytes: at most %d can be tokenized at once; split it", n, INT32_MAX);
  gr_encoder enc = { .t = t, .text = text, .n = n, .out = out };
  gr_special_matches matches = { 0 };
  gr_status s = gr_tokenizer_match_specials(t, text, n, trusted, trusted_count, &matches, e);
  if (s == GR_OK) s = encode_matched(&enc, &matches, flags, e);
  if (s != GR_OK) out->count = out->lost = 0;
  gr_merger_free(&enc.merger);
  gr_pretokenizer_run_free(enc.run);
  gr_buf_free(&enc.work);
  gr_free(matches.items);
  return s;
}

gr_status gr_tokenizer_encode(const gr_tokenizer *t, const char *text, size_t n, unsigned flags, gr_tokens *out, gr_error *e)
{
  gr_trusted_span all = { 0, n };
  return gr_tokenizer_encode_spans(t, text, n, &all, flags & GR_ENCODE_PARSE_CONTROL ? 1 : 0, flags, out, e);
}
