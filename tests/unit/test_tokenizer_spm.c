/* SentencePiece BPE: scores, bytes, the space it adds. */
#include "vocabulary.h"

#include <math.h>

#include "base/rng.h"

#define SP "\xe2\x96\x81" /* U+2581, the file's space */

/* <unk> <s> </s>, 256 byte tokens, then words: ids from 259 on. */
static void start_spm(struct vocabulary *v)
{
  start(v, "llama", NULL);
  add(v, "<unk>", GR_TOKEN_UNKNOWN, 0);
  add(v, "<s>", GR_TOKEN_CONTROL, 0);
  add(v, "</s>", GR_TOKEN_CONTROL, 0);
  for (int b = 0; b < 256; b++) {
    snprintf(v->store[b], sizeof v->store[b], "<0x%02X>", b);
    add(v, v->store[b], GR_TOKEN_BYTE, 0);
  }
}

static void test_scores(void **state)
{
  (void)state;
  struct vocabulary v;
  start_spm(&v);
  assert_int_equal(add(&v, SP, GR_TOKEN_NORMAL, -9), 259);
  add(&v, "a", GR_TOKEN_NORMAL, -10);      /* 260 */
  add(&v, "b", GR_TOKEN_NORMAL, -11);      /* 261 */
  add(&v, "ab", GR_TOKEN_NORMAL, -3);      /* 262 */
  add(&v, "ba", GR_TOKEN_NORMAL, -2);      /* 263 */
  add(&v, SP "a", GR_TOKEN_NORMAL, -2.5f); /* 264 */
  add(&v, "bab", GR_TOKEN_NORMAL, -1);     /* 265 */
  add(&v, "aa", GR_TOKEN_NORMAL, -4);      /* 266 */
  add(&v, SP SP, GR_TOKEN_NORMAL, 1);      /* 267 */
  add(&v,
      "\xc3\xa9"
      "a",
      GR_TOKEN_NORMAL, -1); /* 268: a token whose first character is none */
  v.spec.add_space_prefix = 0;
  gr_tokenizer *t = build(&v);
  assert_string_equal(ids_of(t, "bab", 3, 0), "265");      /* ba, then bab */
  assert_string_equal(ids_of(t, "abab", 4, 0), "260 265"); /* the best pair is ba in the middle; bab beats ab */
  assert_string_equal(ids_of(t, "aaa", 3, 0), "266 260");  /* leftmost among equals */
  assert_string_equal(ids_of(t, " a", 2, 0), "264");
  assert_string_equal(ids_of(t, "   a", 4, 0), "267 264");
  assert_string_equal(ids_of(t,
                             "\xc3\xa9"
                             "ab",
                             4, 0),
                      "268 261");
  assert_string_equal(ids_of(t,
                             "\xc3\xa9"
                             "b",
                             3, 0),
                      "198 172 261");                  /* bytes: 3 + 0xc3, 3 + 0xa9 */
  assert_string_equal(ids_of(t, SP "a", 4, 0), "264"); /* U+2581 in a text is a space */
  assert_string_equal(pieces_of(t, "b" SP "ab " SP "q", 0), "b|" SP "a|b| " SP "|q");
  assert_string_equal(ids_of(t, "\n", 1, 0), "13");
  assert_string_equal(ids_of(t, "<0x0A>", 6, 0), "63 51 123 51 68 65"); /* letters, not the byte token */
  assert_string_equal(ids_of(t, "", 0, GR_ENCODE_SPECIAL), "1");
  assert_string_equal(ids_of(t, "a", 1, GR_ENCODE_SPECIAL), "1 260");
  gr_tokenizer_free(t);
  v.scores[266] = NAN; /* a score that is no number merges last */
  v.scores[264] = -INFINITY;
  t = build(&v);
  assert_string_equal(ids_of(t, "aab", 3, 0), "260 262");
  assert_non_null(strstr(gr_tokenizer_notes(t), "1 scores"));
  gr_tokenizer_free(t);
}

/* The space that is put before a text and behind every special token spells no byte of the text, and is taken away again. */
static void test_space_prefix(void **state)
{
  (void)state;
  struct vocabulary v;
  start_spm(&v);
  add(&v, SP, GR_TOKEN_NORMAL, -9);           /* 259 */
  add(&v, "a", GR_TOKEN_NORMAL, -10);         /* 260 */
  add(&v, SP "a", GR_TOKEN_NORMAL, -1);       /* 261 */
  add(&v, "<tag>", GR_TOKEN_USER_DEFINED, 0); /* 262 */
  add(&v, SP "b", GR_TOKEN_USER_DEFINED, -1); /* 263 */
  gr_tokenizer *t = build(&v);
  assert_string_equal(ids_of(t, "a", 1, 0), "261");
  assert_string_equal(ids_of(t, " a", 2, 0), "259 261");
  assert_string_equal(ids_of(t, "a<s>a", 5, GR_ENCODE_SPECIAL | GR_ENCODE_PARSE_CONTROL), "1 261 1 261");
  assert_string_equal(ids_of(t, "a<tag>a", 7, 0), "261 262 261");
  assert_string_equal(ids_of(t, "<tag><tag>", 10, 0), "262 262"); /* no text, no space */
  assert_string_equal(ids_of(t, "a<tag> a", 8, 0), "261 262 259 261");
  assert_string_equal(ids_of(t, "a b", 3, 0), "261 263"); /* user-defined, but met by merging */
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  assert_ok(gr_tokenizer_encode(t, " q<tag>a", 8, GR_ENCODE_SPECIAL, &tokens, &e), &e);
  static const uint32_t at[] = { 0, 0, 0, 1, 2, 7 }, length[] = { 0, 0, 1, 1, 5, 1 };
  assert_int_equal(tokens.count, 6); /* <s>, the added space, the space, q, <tag>, the added space with a */
  assert_memory_equal(tokens.at, at, sizeof at);
  assert_memory_equal(tokens.length, length, sizeof length);
  gr_tokens_free(&tokens);
  static const char *const texts[] = { "",      "a",  " a", "  a", "<tag>",  "<tag>a", "<tag> a", " <tag>  a<s> a</s>",
                                       "a b a", "\n", " ",  "<s>", "a<unk>a" };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    expect_back(t, texts[i], strlen(texts[i]), GR_ENCODE_PARSE_CONTROL, GR_DECODE_CONTROL);
  static const int32_t ids[] = { 1, 261, 259, 261, 1, 261, 262, 261 };
  gr_buf out = { 0 };
  assert_ok(gr_tokenizer_decode(t, ids, 8, 0, &out, &e), &e); /* control tokens write nothing */
  assert_string_equal(out.data, "a  aa<tag>a");
  gr_buf_clear(&out);
  assert_ok(gr_tokenizer_decode(t, ids + 1, 2, GR_DECODE_CONTINUES, &out, &e), &e);
  assert_string_equal(out.data, " a ");
  gr_buf_free(&out);
  gr_tokenizer_free(t);
}

static void test_missing_bytes(void **state)
{
  (void)state;
  struct vocabulary v;
  start(&v, "llama", NULL);
  add(&v, "<unk>", GR_TOKEN_UNKNOWN, 0);
  add(&v, "<s>", GR_TOKEN_CONTROL, 0);
  add(&v, "</s>", GR_TOKEN_CONTROL, 0);
  add(&v, SP, GR_TOKEN_NORMAL, 0);
  add(&v, "a", GR_TOKEN_NORMAL, 0);
  add(&v, "<0xC3>", GR_TOKEN_BYTE, 0);
  gr_tokenizer *t = build(&v);
  assert_non_null(strstr(gr_tokenizer_notes(t), "255 of the 256 byte tokens"));
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  assert_ok(gr_tokenizer_encode(t, "a\xc3\xa9q\xc3", 5, 0, &tokens, &e), &e);
  static const int32_t ids[] = { 3, 4, 0, 0, 5 }; /* an unknown character is one unknown token, and is counted */
  static const uint32_t at[] = { 0, 0, 1, 3, 4 }, length[] = { 0, 1, 2, 1, 1 };
  assert_int_equal(tokens.count, 5);
  assert_int_equal(tokens.lost, 3);
  assert_memory_equal(tokens.ids, ids, sizeof ids);
  assert_memory_equal(tokens.at, at, sizeof at);
  assert_memory_equal(tokens.length, length, sizeof length);
  gr_tokens_free(&tokens);
  gr_tokenizer_free(t);
}

/* ---- against the definition, on random vocabularies ---- */

static int32_t token_of(const struct vocabulary *v, const char *p, size_t n)
{
  for (size_t id = 259; id < v->spec.token_count; id++)
    if (v->tokens[id].len == n && !memcmp(v->tokens[id].data, p, n)) return (int32_t)id;
  return -1;
}

/* Merges the best pair until none is left; no heap, no cutting of the text. Texts of letters a to d only. */
static size_t encode_slowly(const struct vocabulary *v, const char *text, size_t n, int32_t *ids)
{
  size_t starts[65], count = n;
  for (size_t i = 0; i <= n; i++) starts[i] = i;
  for (;;) {
    size_t best = count;
    float best_score = 0;
    for (size_t i = 0; i + 1 < count; i++) {
      int32_t id = token_of(v, text + starts[i], starts[i + 2] - starts[i]);
      if (id >= 0 && (best == count || v->scores[id] > best_score)) best = i, best_score = v->scores[id];
    }
    if (best == count) break;
    memmove(starts + best + 1, starts + best + 2, (count - best - 1) * sizeof *starts);
    count--;
  }
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    int32_t id = token_of(v, text + starts[i], starts[i + 1] - starts[i]);
    ids[used++] = id >= 0 ? id : 3 + (unsigned char)text[starts[i]];
  }
  return used;
}

static void test_against_definition(void **state)
{
  (void)state;
  gr_tokens tokens = { 0 };
  gr_error e = { 0 };
  for (uint64_t round = 0; round < 300; round++) {
    static char texts[24][8];
    struct vocabulary v;
    start_spm(&v);
    v.spec.add_space_prefix = 0;
    for (uint64_t i = 0; i < 24; i++) {
      size_t n = 1 + gr_random_below(1, round, i, 4);
      for (uint64_t k = 0; k < n; k++) texts[i][k] = (char)('a' + gr_random_below(2, round, i * 8 + k, 4));
      texts[i][n] = 0;
      if (token_of(&v, texts[i], n) < 0) add(&v, texts[i], GR_TOKEN_NORMAL, (float)gr_random_below(3, round, i, 9) - 4);
    }
    gr_tokenizer *t = build(&v);
    for (uint64_t k = 0; k < 20; k++) {
      char text[64];
      int32_t ids[64];
      size_t n = 1 + gr_random_below(4, round, k, sizeof text - 1);
      for (uint64_t i = 0; i < n; i++) text[i] = (char)('a' + gr_random_below(5, round * 64 + k, i, 4));
      size_t count = encode_slowly(&v, text, n, ids);
      assert_ok(gr_tokenizer_encode(t, text, n, 0, &tokens, &e), &e);
      assert_int_equal(tokens.count, count);
      assert_memory_equal(tokens.ids, ids, count * sizeof *ids);
    }
    gr_tokenizer_free(t);
  }
  gr_tokens_free(&tokens);
}

/* Any bytes but those of U+2581 come back. */
static void test_any_bytes(void **state)
{
  (void)state;
  for (int prefix = 0; prefix < 2; prefix++) {
    struct vocabulary v;
    start_spm(&v);
    add(&v, SP, GR_TOKEN_NORMAL, -1);
    add(&v, SP SP, GR_TOKEN_NORMAL, -2);
    add(&v, "e", GR_TOKEN_NORMAL, -3);
    add(&v, SP "e", GR_TOKEN_NORMAL, -1);
    add(&v,
        "\xc3\xa9"
        "e",
        GR_TOKEN_NORMAL, -1);
    add(&v, "<t>", GR_TOKEN_USER_DEFINED, 0);
    v.spec.add_space_prefix = prefix;
    gr_tokenizer *t = build(&v);
    static const char *const parts[] = { " ",    "e",        "\xc3\xa9", "<t>", "<s>", "</s>",
                                         "\xff", "\xe2\x96", "\xc3",     "\n",  "  ",  "\xf0\x9f\x98\x80" };
    for (uint64_t round = 0; round < 2000; round++) {
      char text[64] = "";
      for (uint64_t k = gr_random_below(8, round, 0, 12); k; k--)
        strcat(text, parts[gr_random_below(9, round, k, sizeof parts / sizeof *parts)]);
      if (strstr(text, SP)) continue;
      expect_back(t, text, strlen(text), GR_ENCODE_PARSE_CONTROL, GR_DECODE_CONTROL);
    }
    gr_tokenizer_free(t);
  }
}

/* A megabyte without a place to cut it, and one of spaces. */
static void test_long_text(void **state)
{
  (void)state;
  struct vocabulary v;
  start_spm(&v);
  add(&v, SP, GR_TOKEN_NORMAL, -4);
  add(&v, "a", GR_TOKEN_NORMAL, -4);
  add(&v, "aa", GR_TOKEN_NORMAL, -2);
  add(&v, "aaaa", GR_TOKEN_NORMAL, -1);
  v.spec.add_space_prefix = 0;
  gr_tokenizer *t = build(&v);
  size_t n = 1 << 20;
  char *text = gr_alloc(n);
  assert_non_null(text);
  for (const char *fill = "a q\xff"; *fill; fill++) {
    memset(text, *fill, n);
    gr_error e = { 0 };
    gr_tokens tokens = { 0 };
    assert_ok(gr_tokenizer_encode(t, text, n, GR_ENCODE_PARSE_CONTROL, &tokens, &e), &e);
    assert_int_equal(tokens.count, *fill == 'a' ? n / 4 : n);
    gr_tokens_free(&tokens);
  }
  gr_free(text);
  gr_tokenizer_free(t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_scores),        cmocka_unit_test(test_space_prefix),
    cmocka_unit_test(test_missing_bytes), cmocka_unit_test(test_against_definition),
    cmocka_unit_test(test_any_bytes),     cmocka_unit_test(test_long_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
