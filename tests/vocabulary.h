/* Vocabularies made by tests, small enough to work out every answer by hand, and questions to tokenizers. */
#ifndef GR_TESTS_VOCABULARY_H
#define GR_TESTS_VOCABULARY_H
#include "check.h"

#include "base/alloc.h"
#include "text/tokenizer.h"

/* ---- a vocabulary under construction ---- */

enum { TOKENS_MAX = 1024 };

struct vocabulary {
  gr_tokenizer_spec spec;
  gr_text_view tokens[TOKENS_MAX], merges[TOKENS_MAX];
  float scores[TOKENS_MAX];
  int32_t types[TOKENS_MAX];
  char store[TOKENS_MAX][8]; /* texts of the single bytes */
};

static inline int32_t add(struct vocabulary *v, const char *text, gr_token_type type, float score)
{
  size_t id = v->spec.token_count++;
  assert_true(id < TOKENS_MAX);
  v->tokens[id] = (gr_text_view){ text, strlen(text) };
  v->types[id] = type;
  v->scores[id] = score;
  return (int32_t)id;
}

static inline int32_t word(struct vocabulary *v, const char *text) { return add(v, text, GR_TOKEN_NORMAL, 0); }

static inline void merge(struct vocabulary *v, const char *text)
{
  v->merges[v->spec.merge_count++] = (gr_text_view){ text, strlen(text) };
}

static inline void start(struct vocabulary *v, const char *model, const char *pre)
{
  memset(v, 0, sizeof *v);
  gr_tokenizer_spec_init(&v->spec);
  v->spec.model = model;
  v->spec.pre = pre;
  v->spec.tokens = v->tokens;
  v->spec.scores = v->scores;
  v->spec.types = v->types;
  v->spec.merges = v->merges;
}

/* The 256 single bytes of gpt2 vocabularies, at ids 0 to 255. Byte b is written as in the file. */
static inline void add_alphabet(struct vocabulary *v)
{
  uint32_t other = 0x100;
  for (uint32_t b = 0; b < 256; b++) {
    bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    size_t n = gr_utf8_encode(itself ? b : other++, v->store[b]);
    v->store[b][n] = 0;
    assert_int_equal(word(v, v->store[b]), (int32_t)b);
  }
}

static inline gr_tokenizer *build(const struct vocabulary *v)
{
  gr_error e = { 0 };
  gr_tokenizer *t;
  assert_ok(gr_tokenizer_build(&t, &v->spec, &e), &e);
  return t;
}

static inline void refuse(const struct vocabulary *v, const char *word_of_error)
{
  gr_error e = { 0 };
  gr_tokenizer *t;
  assert_int_not_equal(gr_tokenizer_build(&t, &v->spec, &e), GR_OK);
  assert_null(t);
  if (!strstr(e.text, word_of_error)) fail_msg("'%s' does not say '%s'", e.text, word_of_error);
}

/* ---- asking ---- */

/* Encodes and writes "id id ..." to a buffer that the next call reuses. */
static inline const char *ids_of(const gr_tokenizer *t, const char *text, size_t n, unsigned flags)
{
  static char line[4096];
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  assert_ok(gr_tokenizer_encode(t, text, n, flags, &tokens, &e), &e);
  size_t used = 0;
  line[0] = 0;
  for (size_t i = 0; i < tokens.count; i++) used += (size_t)snprintf(line + used, sizeof line - used, i ? " %d" : "%d", tokens.ids[i]);
  gr_tokens_free(&tokens);
  return line;
}

/* The pieces that the tokens spell, with a bar between them. */
static inline const char *pieces_of(const gr_tokenizer *t, const char *text, unsigned flags)
{
  static char line[4096];
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  assert_ok(gr_tokenizer_encode(t, text, strlen(text), flags, &tokens, &e), &e);
  size_t used = 0;
  line[0] = 0;
  for (size_t i = 0; i < tokens.count; i++)
    used += (size_t)snprintf(line + used, sizeof line - used, "%s%.*s", i ? "|" : "", (int)tokens.length[i], text + tokens.at[i]);
  gr_tokens_free(&tokens);
  return line;
}

static inline void expect_back(const gr_tokenizer *t, const char *text, size_t n, unsigned encode, unsigned decode)
{
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  gr_buf whole = { 0 }, streamed = { 0 };
  assert_ok(gr_tokenizer_encode(t, text, n, encode, &tokens, &e), &e);
  assert_ok(gr_tokenizer_decode(t, tokens.ids, tokens.count, decode, &whole, &e), &e);
  assert_int_equal(whole.len, n);
  if (n) assert_memory_equal(whole.data, text, n);
  gr_decoder d = gr_decoder_start(t, decode);
  for (size_t i = 0; i < tokens.count; i++) assert_ok(gr_decoder_push(&d, tokens.ids[i], &streamed, &e), &e);
  assert_int_equal(streamed.len, n);
  if (n) assert_memory_equal(streamed.data, text, n);
  size_t at = 0;
  for (size_t i = 0; i < tokens.count; i++) {
    assert_int_equal(tokens.at[i], at); /* nothing lost: the tokens tile the text */
    at += tokens.length[i];
  }
  assert_int_equal(at, n);
  assert_int_equal(tokens.lost, 0);
  gr_buf_free(&whole);
  gr_buf_free(&streamed);
  gr_tokens_free(&tokens);
}

#endif
