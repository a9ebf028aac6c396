/* SentencePiece BPE: characters merge while their concatenation is a token, the token of the highest score first.
 *
 * There are no words, so that a text of any length would be one heap. It need not be: two characters that no token has side by
 * side never come together, and the text may be cut between them without changing a token. A Bloom filter of the pairs that
 * tokens have finds such places; where it errs the pieces are only longer. */
#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_impl.h"

static const char META[] = "\xe2\x96\x81"; /* U+2581, which stands for a space in the file's texts */
enum { META_BYTES = 3 };

static size_t character(const char *p, size_t n)
{
  size_t length = gr_utf8_length(p, n);
  return length ? length : 1;
}

/* Appends text with every U+2581 as a space. */
static void append_spaced(gr_buf *b, const char *p, size_t n)
{
  for (size_t i = 0; i < n;) {
    const char *meta = memchr(p + i, META[0], n - i);
    size_t plain = meta ? (size_t)(meta - p) : n;
    gr_buf_append(b, p + i, plain - i);
    i = plain;
    if (i == n) break;
    bool is_meta = n - i >= META_BYTES && !memcmp(p + i, META, META_BYTES);
    gr_buf_append(b, is_meta ? " " : p + i, 1);
    i += is_meta ? META_BYTES : 1;
  }
}

/* Higher scores first: an unsigned number that falls as the score rises. */
static uint32_t rank_of_score(float score)
{
  score += 0.0f; /* -0 is 0 */
  uint32_t bits;
  memcpy(&bits, &score, sizeof bits);
  return bits & 0x80000000u ? bits : ~(bits | 0x80000000u);
}

static uint64_t bridge_bit(const gr_tokenizer *t, const char *a, size_t a_length, const char *b, size_t b_length)
{
  uint32_t x = 0, y = 0;
  memcpy(&x, a, a_length);
  memcpy(&y, b, b_length);
  uint64_t h = ((uint64_t)x << 32 | y) * 0x9e3779b97f4a7c15u;
  return (h ^ h >> 32) & t->bridge_mask;
}

static gr_status init_bridges(gr_tokenizer *t, gr_error *e)
{
  size_t bytes = 0, bits = 1024;
  for (size_t i = 0; i < t->symbol_count; i++) bytes += t->symbol[i].len;
  while (bits < (size_t)1 << 22 && bits / 8 < bytes) bits *= 2;
  t->bridges = gr_calloc(bits / 64, sizeof *t->bridges);
  if (!t->bridges) return gr_fail_memory(e, bits / 8);
  t->bridge_mask = bits - 1;
  for (size_t i = 0; i < t->symbol_count; i++) {
    gr_text_view s = t->symbol[i];
    for (size_t k = 0, next; k < s.len; k = next) {
      next = k + character(s.data + k, s.len - k);
      if (next == s.len) break;
      uint64_t bit = bridge_bit(t, s.data + k, next - k, s.data + next, character(s.data + next, s.len - next));
      t->bridges[bit / 64] |= (uint64_t)1 << bit % 64;
    }
  }
  return GR_OK;
}

/* Output and symbol of a token. A text with a real space is never met by merging, which sees U+2581 in its place. */
static gr_status init_token(gr_tokenizer *t, size_t id, gr_buf *bytes, gr_error *e)
{
  gr_text_view text = t->text[id];
  uint8_t type = t->type[id];
  if (type == GR_TOKEN_CONTROL || type == GR_TOKEN_UNKNOWN || type == GR_TOKEN_BYTE || !text.len) return GR_OK;
  gr_buf_clear(bytes);
  append_spaced(bytes, text.data, text.len);
  char *copy = bytes->failed ? NULL : gr_arena_strndup(&t->arena, bytes->data, bytes->len);
  if (!copy) return gr_fail_memory(e, text.len);
  gr_text_view spaced = { copy, bytes->len };
  t->output[id] = spaced;
  /* A user-defined token with U+2581 in it is met by merging, since texts have spaces there: it breaks nothing. */
  if (spaced.len != text.len) t->flags[id] &= (uint8_t)~GR_TOKEN_BREAKS;
  if (memchr(text.data, ' ', text.len)) return GR_OK;
  t->symbol[id] = spaced;
  if (spaced.len > t->symbol_max) t->symbol_max = spaced.len;
  return gr_strmap_add(&t->by_symbol, t->symbol, (int32_t)id) >= 0 ? GR_OK : gr_fail_memory(e, text.len);
}

gr_status gr_spm_init(gr_tokenizer *t, const gr_tokenizer_spec *spec, gr_error *e)
{
  t->pre = "";
  if (!spec->scores) gr_tokenizer_note(t, "tokenizer.ggml.scores is missing: every merge counts the same");
  gr_buf bytes = { 0 };
  gr_status s = gr_strmap_reserve(&t->by_symbol, t->symbol, t->count) ? GR_OK : gr_fail_memory(e, t->count);
  for (size_t id = 0; s == GR_OK && id < t->count; id++) s = init_token(t, id, &bytes, e);
  gr_buf_free(&bytes);
  GR_TRY(s);
  size_t missing = 0;
  for (int b = 0; b < 256; b++) {
    char text[8] = "<0x00>";
    text[3] = "0123456789ABCDEF"[b >> 4];
    text[4] = "0123456789ABCDEF"[b & 15];
    if (t->byte_token[b] < 0) t->byte_token[b] = gr_strmap_find(&t->by_text, t->text, text, 6);
    missing += t->byte_token[b] < 0;
    text[0] = (char)b;
    t->byte_symbol[b] = b < 0x80 ? gr_symbol_find(t, text, 1) : GR_NO_SYMBOL;
  }
  if (missing)
    gr_tokenizer_note(t, "%zu of the 256 byte tokens are missing: characters that are no token become the unknown token", missing);
  return init_bridges(t, e);
}

static bool text_rule(const void *ctx, const gr_piece *left, const gr_piece *right, uint32_t *rank, int32_t *symbol)
{
  const gr_encoder *enc = ctx;
  size_t n = (size_t)left->length + right->length;
  if (n > enc->t->symbol_max) return false;
  *symbol = gr_symbol_find(enc->t, enc->work.data + left->start, n);
  if (*symbol < 0) return false;
  *rank = rank_of_score(enc->t->score[*symbol]);
  return true;
}

/* A character that is no token: its bytes' tokens (of U+2581 for a space, as that is what merging saw), or the unknown token. */
static bool push_bytes(gr_encoder *enc, const char *p, size_t n, size_t at, size_t length)
{
  const gr_tokenizer *t = enc->t;
  if (n == 1 && *p == ' ') p = META, n = META_BYTES;
  bool spelled = true;
  for (size_t i = 0; i < n; i++) spelled = spelled && t->byte_token[(unsigned char)p[i]] >= 0;
  if (!spelled) {
    enc->out->lost += length;
    return t->role[GR_ROLE_UNK] < 0 || gr_tokens_push(enc->out, t->role[GR_ROLE_UNK], at, length);
  }
  for (size_t i = 0; i < n; i++) {
    size_t own = n == length ? 1 : i ? 0 : length; /* the bytes of text that this one spells */
    if (!gr_tokens_push(enc->out, t->byte_token[(unsigned char)p[i]], at + (i < length ? i : length), own)) return false;
  }
  return true;
}

/* Merges the pieces in hand, which end at byte `end` of the text, and gives their tokens. */
static bool flush(gr_encoder *enc, size_t end)
{
  gr_merger *m = &enc->merger;
  if (!m->count) return true;
  if (!gr_merger_run(m, text_rule, enc)) return false;
  for (int32_t i = 0; i >= 0; i = m->pieces[i].next) {
    const gr_piece *p = &m->pieces[i];
    size_t length = (p->next >= 0 ? m->pieces[p->next].at : end) - p->at;
    bool ok = p->symbol >= 0 ? gr_tokens_push(enc->out, p->symbol, p->at, length)
                             : push_bytes(enc, enc->work.data + p->start, p->length, p->at, length);
    if (!ok) return false;
  }
  gr_merger_clear(m);
  return true;
}

gr_status gr_spm_encode(gr_encoder *enc, size_t start, size_t n, bool space_first, gr_error *e)
{
  const gr_tokenizer *t = enc->t;
  gr_buf *work = &enc->work;
  gr_buf_clear(work);
  if (space_first) gr_buf_putc(work, ' ');
  append_spaced(work, enc->text + start, n);
  if (work->failed) return gr_fail_memory(e, n);
  gr_merger_clear(&enc->merger);
  size_t at = start, before = 0; /* place in the caller's text; length of the character before */
  bool ok = true;
  for (size_t i = 0; ok && i < work->len;) {
    const char *p = work->data + i;
    size_t length = character(p, work->len - i);
    if (before) {
      uint64_t bit = bridge_bit(t, p - before, before, p, length);
      if (!(t->bridges[bit / 64] >> bit % 64 & 1)) ok = flush(enc, at);
    }
    int32_t symbol = length == 1 ? t->byte_symbol[(unsigned char)*p] : gr_symbol_find(t, p, length);
    ok = ok && gr_merger_add(&enc->merger, (uint32_t)i, (uint32_t)length, (uint32_t)at, symbol);
    if (!(space_first && i == 0)) at += *p == ' ' && enc->text[at] != ' ' ? META_BYTES : length;
    i += length;
    before = length;
  }
  return ok && flush(enc, at) ? GR_OK : gr_fail_memory(e, n);
}
