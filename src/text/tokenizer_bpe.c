/* Byte-level BPE: words from the pre-tokenizer, whose bytes merge by rank. */
#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_impl.h"

/* The file writes bytes as printable characters: 33-126, 161-172 and 174-255 as themselves, the other 68 in ascending order as
 * U+0100 and on. The byte of a character, or -1. */
static int byte_of_character(uint32_t c)
{
  if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255)) return (int)c;
  if (c < 0x100 || c > 0x143) return -1;
  int k = (int)c - 0x100;
  return k < 33 ? k : k < 67 ? k - 33 + 127 : 173;
}

/* Appends the bytes that a text of the file means; false when it is not written in those characters. */
static bool append_bytes(gr_buf *b, gr_text_view text)
{
  for (size_t i = 0; i < text.len;) {
    size_t length = gr_utf8_length(text.data + i, text.len - i);
    int byte = length ? byte_of_character(gr_utf8_decode(text.data + i, length)) : -1;
    if (byte < 0) return false;
    gr_buf_putc(b, (char)byte);
    i += length;
  }
  return true;
}

/* Bytes of every token, and the symbols of those that merging can make. Control tokens are none of them: no text may turn into
 * one by merging. */
static gr_status init_symbols(gr_tokenizer *t, gr_error *e)
{
  gr_buf bytes = { 0 };
  size_t strange = 0;
  int32_t first = -1;
  bool ok = gr_strmap_reserve(&t->by_symbol, t->symbol, t->count);
  for (size_t id = 0; ok && id < t->count; id++) {
    uint8_t type = t->type[id];
    if (type == GR_TOKEN_CONTROL || type == GR_TOKEN_UNKNOWN || type == GR_TOKEN_BYTE || !t->text[id].len) continue;
    gr_buf_clear(&bytes);
    if (!append_bytes(&bytes, t->text[id])) {
      if (type == GR_TOKEN_NORMAL && !strange++) first = (int32_t)id;
      continue;
    }
    /* A user-defined token is its text as it stands. Were merging to make it of other bytes, they would not come back. */
    if (type == GR_TOKEN_USER_DEFINED && bytes.len != t->text[id].len) continue;
    char *copy = bytes.failed ? NULL : gr_arena_strndup(&t->arena, bytes.data, bytes.len);
    ok = copy != NULL;
    if (!ok) break;
    t->symbol[id] = (gr_text_view){ copy, bytes.len };
    t->output[id] = t->symbol[id];
    ok = gr_strmap_add(&t->by_symbol, t->symbol, (int32_t)id) >= 0;
  }
  gr_buf_free(&bytes);
  if (!ok) return gr_fail_memory(e, t->count);
  if (strange)
    gr_tokenizer_note(t, "%zu tokens (the first is %d) are not written in the byte alphabet: no text becomes one of them", strange, first);
  return GR_OK;
}

/* The slot of a pair of symbols, or the free one where it would stand. */
static struct gr_pair_slot *pair_slot(const gr_tokenizer *t, int32_t left, int32_t right)
{
  uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, h = key * 0x9e3779b97f4a7c15u;
  size_t i = (size_t)(h ^ h >> 32) & t->pair_mask;
  while (t->pairs[i].symbol != GR_NO_SYMBOL && t->pairs[i].key != key) i = (i + 1) & t->pair_mask;
  return &t->pairs[i];
}

/* Adds the merge "left right" of that rank. A merge that is not two texts in the byte alphabet can never apply: *ok is false.
 * The file's first of equal merges wins. */
static gr_status add_merge(gr_tokenizer *t, gr_text_view merge, uint32_t rank, gr_buf *both, bool *ok, gr_error *e)
{
  const char *space = merge.len > 1 ? memchr(merge.data + 1, ' ', merge.len - 1) : NULL;
  size_t left_length = space ? (size_t)(space - merge.data) : 0;
  gr_buf_clear(both);
  *ok = space && append_bytes(both, (gr_text_view){ merge.data, left_length });
  size_t left_bytes = both->len;
  *ok = *ok && append_bytes(both, (gr_text_view){ space + 1, merge.len - left_length - 1 }) && both->len > left_bytes;
  if (both->failed) return gr_fail_memory(e, merge.len);
  if (!*ok) return GR_OK;
  int32_t left = gr_symbol_add(t, both->data, left_bytes), right = gr_symbol_add(t, both->data + left_bytes, both->len - left_bytes);
  int32_t result = gr_symbol_add(t, both->data, both->len);
  if (left < 0 || right < 0 || result < 0) return gr_fail_memory(e, both->len);
  struct gr_pair_slot *slot = pair_slot(t, left, right);
  if (slot->symbol == GR_NO_SYMBOL) *slot = (struct gr_pair_slot){ (uint64_t)(uint32_t)left << 32 | (uint32_t)right, rank, result };
  return GR_OK;
}

static gr_status init_merges(gr_tokenizer *t, const gr_tokenizer_spec *spec, gr_error *e)
{
  size_t size = 16, useless = 0, first = 0;
  while (size / 2 < spec->merge_count) size *= 2;
  t->pairs = gr_realloc_array(NULL, size, sizeof *t->pairs);
  if (!t->pairs) return gr_fail_memory(e, size);
  for (size_t i = 0; i < size; i++) t->pairs[i].symbol = GR_NO_SYMBOL;
  t->pair_mask = size - 1;
  gr_buf both = { 0 };
  gr_status s = GR_OK;
  for (size_t i = 0; s == GR_OK && i < spec->merge_count; i++) {
    bool ok;
    s = add_merge(t, spec->merges[i], (uint32_t)i, &both, &ok, e);
    if (s == GR_OK && !ok && !useless++) first = i;
  }
  gr_buf_free(&both);
  if (s == GR_OK && useless)
    gr_tokenizer_note(t, "%zu entries of tokenizer.ggml.merges (the first is %zu) are not two texts with a space between: left out",
                      useless, first);
  return s;
}

gr_status gr_bpe_init(gr_tokenizer *t, const gr_tokenizer_spec *spec, gr_error *e)
{
  const gr_pretokenizer_kind *kind;
  GR_TRY(gr_pretokenizer_find(spec->pre, &kind, e));
  if (!spec->pre || !*spec->pre)
    gr_tokenizer_note(t, "the file names no pre-tokenizer (tokenizer.ggml.pre): words are cut by llama.cpp's default list");
  t->pre = kind->name;
  t->ignore_merges = kind->ignore_merges;
  if (!spec->merges)
    return gr_fail(e, GR_ERR_FORMAT,
                   "tokenizer.ggml.merges is missing: without merges this vocabulary cannot spell text; convert the "
                   "model again with its tokenizer files present");
  if (spec->merge_count > INT32_MAX / 8) return gr_fail(e, GR_ERR_FORMAT, "tokenizer.ggml.merges has %zu entries", spec->merge_count);
  GR_TRY(init_symbols(t, e));
  GR_TRY(init_merges(t, spec, e));
  int missing = 0, first = 0;
  for (int b = 255; b >= 0; b--) {
    char byte = (char)b;
    t->byte_symbol[b] = gr_symbol_add(t, &byte, 1);
    if (t->byte_symbol[b] < 0) return gr_fail_memory(e, 1);
    if ((size_t)t->byte_symbol[b] < t->count) t->byte_token[b] = t->byte_symbol[b];
    if (t->byte_token[b] < 0) missing++, first = b;
  }
  if (missing) gr_tokenizer_note(t, "%d of the 256 bytes have no token (the first is 0x%02x): texts lose them", missing, (unsigned)first);
  return gr_pretokenizer_create(&t->words, kind->patterns, 0, e);
}

static bool pair_rule(const void *ctx, const gr_piece *left, const gr_piece *right, uint32_t *rank, int32_t *symbol)
{
  const struct gr_pair_slot *slot = pair_slot(ctx, left->symbol, right->symbol);
  *rank = slot->rank;
  *symbol = slot->symbol;
  return slot->symbol != GR_NO_SYMBOL;
}

/* A piece that is no token is spelled byte by byte. */
static bool push_piece(gr_encoder *enc, int32_t symbol, size_t at, size_t length)
{
  const gr_tokenizer *t = enc->t;
  if (symbol >= 0 && (size_t)symbol < t->count) return gr_tokens_push(enc->out, symbol, at, length);
  for (size_t i = 0; i < length; i++) {
    int32_t id = t->byte_token[(unsigned char)enc->text[at + i]];
    if (id < 0) enc->out->lost++;
    else if (!gr_tokens_push(enc->out, id, at + i, 1)) return false;
  }
  return true;
}

static gr_status encode_word(void *ctx, size_t start, size_t n, gr_error *e)
{
  gr_encoder *enc = ctx;
  const gr_tokenizer *t = enc->t;
  size_t at = enc->word_start + start;
  const char *word = enc->text + at;
  if (t->ignore_merges) {
    int32_t whole = gr_symbol_find(t, word, n);
    if (whole >= 0 && (size_t)whole < t->count) return gr_tokens_push(enc->out, whole, at, n) ? GR_OK : gr_fail_memory(e, n);
  }
  gr_merger *m = &enc->merger;
  gr_merger_clear(m);
  bool ok = true;
  for (size_t i = 0; ok && i < n; i++) ok = gr_merger_add(m, (uint32_t)i, 1, (uint32_t)(at + i), t->byte_symbol[(unsigned char)word[i]]);
  ok = ok && gr_merger_run(m, pair_rule, t);
  for (int32_t i = 0; ok && i >= 0; i = m->pieces[i].next) ok = push_piece(enc, m->pieces[i].symbol, m->pieces[i].at, m->pieces[i].length);
  return ok ? GR_OK : gr_fail_memory(e, n);
}

gr_status gr_bpe_encode(gr_encoder *enc, size_t start, size_t n, gr_error *e)
{
  if (!enc->run) GR_TRY(gr_pretokenizer_run_create(&enc->run, enc->t->words, e));
  enc->word_start = start;
  return gr_pretokenizer_split(enc->run, enc->text + start, n, encode_word, enc, e);
}
