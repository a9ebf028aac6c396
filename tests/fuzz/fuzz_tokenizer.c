/* libFuzzer target for tokenizers: the input is a vocabulary and a text with trusted spans. What must hold of any of them is
 * checked: tokens stand where they say, decoding gives the text back, no untrusted byte is part of a control token. Then all of
 * it once more with one allocation (or all from one on) failing, chosen by the input.
 *
 *   cmake -B b -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DGR_FUZZ=ON -DGR_SANITIZE=address,undefined
 *   b/tests/fuzz/fuzz_tokenizer -max_len=1024 -timeout=5 -rss_limit_mb=512 CORPUS */
#include "failing_alloc.h"

#include <stdio.h>

#include "base/cursor.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TOKENS_MAX = 512, SPANS_MAX = 4 };

struct input {
  gr_tokenizer_spec spec;
  gr_text_view tokens[TOKENS_MAX], merges[TOKENS_MAX];
  int32_t types[TOKENS_MAX];
  float scores[TOKENS_MAX];
  char alphabet[256][8];
  gr_trusted_span spans[SPANS_MAX];
  size_t span_count;
  unsigned flags;
  const char *text;
  size_t n;
};

static gr_text_view take_text(gr_cursor *c, size_t longest)
{
  size_t n = gr_cursor_u8(c) % (longest + 1), left = gr_cursor_left(c);
  if (n > left) n = left;
  const uint8_t *p = gr_cursor_take(c, n);
  return (gr_text_view){ (const char *)p, p ? n : 0 };
}

static void add_token(struct input *in, gr_text_view text, int32_t type, float score)
{
  size_t id = in->spec.token_count++;
  in->tokens[id] = text;
  in->types[id] = type;
  in->scores[id] = score;
}

static void add_alphabet(struct input *in)
{
  uint32_t other = 0x100;
  for (uint32_t b = 0; b < 256; b++) {
    size_t n;
    if (!strcmp(in->spec.model, "llama")) n = (size_t)snprintf(in->alphabet[b], 8, "<0x%02X>", b);
    else n = gr_utf8_encode((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : other++, in->alphabet[b]);
    add_token(in, (gr_text_view){ in->alphabet[b], n }, n == 6 ? GR_TOKEN_BYTE : GR_TOKEN_NORMAL, 0);
  }
}

static void read_input(struct input *in, const uint8_t *data, size_t size)
{
  static const char *const names[] = { "gpt-2", "qwen2", "qwen35", "llama-bpe", "smollm", "tekken", "gpt-4o", NULL };
  gr_cursor c = { .data = data, .size = size };
  memset(in, 0, sizeof *in);
  gr_tokenizer_spec_init(&in->spec);
  unsigned bits = gr_cursor_u16(&c);
  in->spec.model = bits & 1 ? "llama" : "gpt2";
  in->spec.pre = names[bits >> 1 & 7];
  in->spec.add_space_prefix = (int)(bits >> 4 & 3) % 3 - 1;
  in->spec.add_bos = (int)(bits >> 6 & 3) % 3 - 1;
  in->spec.add_eos = (int)(bits >> 8 & 3) % 3 - 1;
  in->flags = bits >> 10 & 7;
  if (bits >> 13 & 1) add_alphabet(in);
  if (bits >> 14 & 1) add_token(in, (gr_text_view){ "\xe2\x96\x81", 3 }, GR_TOKEN_NORMAL, -1);
  for (size_t n = gr_cursor_u8(&c) % 64; n; n--) {
    int32_t type = gr_cursor_u8(&c) % 8;
    float score = (float)(int8_t)gr_cursor_u8(&c);
    add_token(in, take_text(&c, 15), type, score);
  }
  for (size_t n = gr_cursor_u8(&c) % 64; n; n--) in->merges[in->spec.merge_count++] = take_text(&c, 24);
  for (int r = 0; r < GR_ROLE_COUNT; r++) in->spec.role[r] = (int64_t)gr_cursor_u16(&c) - 1;
  size_t at = 0;
  for (in->span_count = gr_cursor_u8(&c) % (SPANS_MAX + 1); at < in->span_count; at++) {
    size_t start = (at ? in->spans[at - 1].end : 0) + gr_cursor_u8(&c) % 16;
    in->spans[at] = (gr_trusted_span){ start, start + gr_cursor_u8(&c) % 32 };
  }
  in->spec.tokens = in->tokens;
  in->spec.types = in->types;
  in->spec.scores = in->scores;
  in->spec.merges = in->merges;
  in->n = gr_cursor_left(&c);
  in->text = (const char *)(data + size - in->n);
  while (in->span_count && in->spans[in->span_count - 1].end > in->n) in->span_count--;
}

static bool trusted(const struct input *in, size_t byte)
{
  for (size_t i = 0; i < in->span_count; i++)
    if (byte >= in->spans[i].start && byte < in->spans[i].end) return true;
  return false;
}

static void check_places(const gr_tokenizer *t, const struct input *in, const gr_tokens *tokens)
{
  size_t at = 0;
  for (size_t i = 0; i < tokens->count; i++) {
    if (tokens->ids[i] < 0 || (size_t)tokens->ids[i] >= gr_tokenizer_vocab_size(t)) abort();
    if (tokens->at[i] < at || (tokens->at[i] != at && !tokens->lost)) abort();
    at = (size_t)tokens->at[i] + tokens->length[i];
    bool unknown = tokens->lost && tokens->ids[i] == gr_tokenizer_role(t, GR_ROLE_UNK);
    for (size_t k = tokens->at[i]; k < at && gr_tokenizer_is_control(t, tokens->ids[i]) && !unknown; k++)
      if (!trusted(in, k)) abort();
  }
  if (at > in->n || (at != in->n && !tokens->lost)) abort();
}

/* SentencePiece takes U+2581 for a space: compared with it as a space on both sides. */
static size_t spaced(const char *p, size_t n, char *out)
{
  size_t used = 0;
  for (size_t i = 0; i < n; used++) {
    bool meta = n - i >= 3 && !memcmp(p + i, "\xe2\x96\x81", 3);
    out[used] = meta ? ' ' : p[i];
    i += meta ? 3 : 1;
  }
  return used;
}

static void check_back(const gr_tokenizer *t, const struct input *in, const gr_tokens *tokens, const gr_buf *back)
{
  static char a[1 << 17], b[1 << 17];
  if (tokens->lost || in->flags & GR_ENCODE_SPECIAL || back->len > sizeof a) return;
  if (!strcmp(gr_tokenizer_model(t), "gpt2")) {
    if (back->len != in->n || (in->n && memcmp(back->data, in->text, in->n) != 0)) abort();
    return;
  }
  int32_t space = gr_tokenizer_find(t, "\xe2\x96\x81", 3); /* without it the space is spelled by the bytes of U+2581 */
  if (space < 0 || gr_tokenizer_is_control(t, space) || gr_tokenizer_type(t, space) == GR_TOKEN_BYTE) return;
  size_t n = spaced(in->text, in->n, a), m = spaced(back->data, back->len, b);
  if (n != m || memcmp(a, b, n) != 0) abort();
}

static void use(const struct input *in, bool whole)
{
  gr_error e = { 0 };
  gr_tokenizer *t;
  if (gr_tokenizer_build(&t, &in->spec, &e) != GR_OK) {
    if (!e.text[0] || t) abort();
    return;
  }
  gr_tokens tokens = { 0 };
  gr_buf back = { 0 };
  gr_status s = gr_tokenizer_encode_spans(t, in->text, in->n, in->spans, in->span_count, in->flags, &tokens, &e);
  if (s != GR_OK && (whole || s != GR_ERR_MEMORY || tokens.count)) abort();
  if (s == GR_OK) check_places(t, in, &tokens);
  if (s == GR_OK) s = gr_tokenizer_decode(t, tokens.ids, tokens.count, GR_DECODE_CONTROL, &back, &e);
  if (s == GR_OK) check_back(t, in, &tokens, &back);
  gr_buf_free(&back);
  gr_tokens_free(&tokens);
  gr_tokenizer_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static struct input in;
  read_input(&in, data, size);
  allocations_fail(0, false);
  use(&in, true);
  if (allocations.live) abort();
  size_t n = allocations.seen, choice = size;
  for (size_t i = 0; i < size; i++) choice = choice * 31 + data[i];
  allocations_fail(1 + (choice >> 1) % n, choice & 1);
  use(&in, false);
  allocations_fail(0, false);
  if (allocations.live) abort();
  return 0;
}
