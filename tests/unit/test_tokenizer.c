/* Tokenizers on vocabularies made here, small enough to work out every answer by hand. */
#include "vocabulary.h"

#include <pthread.h>

#include "base/rng.h"
#include "text/pretokenize.h"
#include "text/tokenizer_merge.h"

/* ---- UTF-8 ---- */

static void test_utf8(void **state)
{
  (void)state;
  for (uint32_t c = 0; c <= 0x10ffff; c++) {
    char bytes[4];
    size_t n = gr_utf8_encode(c, bytes);
    assert_int_equal(n, c < 0x80 ? 1 : c < 0x800 ? 2 : c >= 0xd800 && c < 0xe000 ? 0 : c < 0x10000 ? 3 : 4);
    if (!n) continue;
    assert_int_equal(gr_utf8_length(bytes, 4), n);
    assert_int_equal(gr_utf8_decode(bytes, n), c);
    for (size_t cut = 1; cut < n; cut++) {
      assert_int_equal(gr_utf8_length(bytes, cut), 0);
      assert_int_equal(gr_utf8_complete(bytes, cut), 0);
    }
    assert_int_equal(gr_utf8_complete(bytes, n), n);
  }
  static const char *const bad[] = { "\x80",         "\xc0\x80",         "\xc1\xbf",         "\xe0\x9f\xbf",
                                     "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
                                     "\xff",         "\xe2\x28\xa1",     "\xe2\x82\x28",     "abcdefgh\x80" };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_false(gr_utf8_valid(bad[i], strlen(bad[i])));
    assert_int_equal(gr_utf8_complete(bad[i], strlen(bad[i])), strlen(bad[i]));
  }
  assert_true(gr_utf8_valid("", 0));
  assert_true(gr_utf8_valid("abcdefghi \xe2\x82\xac \xf0\x9f\x98\x80", 18));
  assert_int_equal(gr_utf8_complete("ab\xe2\x82", 4), 2);
  assert_int_equal(gr_utf8_complete("ab\xed\xa0", 4), 4); /* can only become a surrogate: malformed already */
}

/* ---- words ---- */

struct cut {
  char line[1024];
  size_t used;
  const char *text;
};

static gr_status note_word(void *ctx, size_t at, size_t n, gr_error *e)
{
  (void)e;
  struct cut *c = ctx;
  c->used += (size_t)snprintf(c->line + c->used, sizeof c->line - c->used, "%s%.*s", c->used ? "|" : "", (int)n, c->text + at);
  return GR_OK;
}

static void expect_words(const char *pre, const char *text, const char *words)
{
  gr_error e = { 0 };
  const gr_pretokenizer_kind *kind;
  gr_pretokenizer *p;
  gr_pretokenizer_run *run;
  struct cut c = { .text = text };
  assert_ok(gr_pretokenizer_find(pre, &kind, &e), &e);
  assert_ok(gr_pretokenizer_create(&p, kind->patterns, 0, &e), &e);
  assert_ok(gr_pretokenizer_run_create(&run, p, &e), &e);
  assert_ok(gr_pretokenizer_split(run, text, strlen(text), note_word, &c, &e), &e);
  if (strcmp(c.line, words) != 0) fail_msg("%s cuts '%s' into '%s', not '%s'", pre, text, c.line, words);
  gr_pretokenizer_run_free(run);
  gr_pretokenizer_free(p);
}

static void test_pretokenizers(void **state)
{
  (void)state;
  expect_words("gpt-2", "Hello world's 123  x\n\n", "Hello| world|'s| 123| | x|\n\n");
  expect_words("gpt-2", "I'LL a\tb", "I|'|LL| a|\t|b"); /* lower case only; a lone tab is left between matches */
  expect_words("smollm", "a 12b  3", "a| |1|2|b|  |3");
  expect_words("llama-bpe", "I'LL go 12345!!\n\n x", "I|'LL| go| |123|45|!!\n\n| x");
  expect_words("llama-bpe", "#tag\r\n  y", "#tag|\r\n| | y");
  expect_words("qwen2", "v1234.\xd9\xa1\xd9\xa2", "v|1|2|3|4|.|\xd9\xa1|\xd9\xa2"); /* Arabic digits are numbers */
  expect_words("qwen2", "e\xcc\x81x", "e|\xcc\x81x");                               /* a combining mark is no letter ... */
  expect_words("qwen35", "e\xcc\x81x", "e\xcc\x81x");                               /* ... unless the list says so */
  expect_words("tekken",
               "fooBar HTTPServer \xc3\x89"
               "cole 12/\n",
               "foo|Bar| HTTPServer| \xc3\x89"
               "cole| |1|2|/\n");
  expect_words("gpt-4o", "Can'T 1234 caf\xc3\xa9's", "Can'T| |123|4| caf\xc3\xa9's");
  expect_words("", "Hi, you... 1234 a", "Hi|,| you|...| |123|4| a");
  expect_words("default", "x== y", "x|==| y");
  expect_words("qwen2",
               "a\xe2\x80\x83\xe2\x80\x83"
               "b",
               "a|\xe2\x80\x83|\xe2\x80\x83"
               "b"); /* U+2003 is a space */
  expect_words("gpt-2",
               "a\xe1\xa0\x8e\xe1\xa0\x8e"
               "b",
               "a|\xe1\xa0\x8e\xe1\xa0\x8e|b");    /* U+180E is none */
  expect_words("qwen2", "'\xc5\xbf", "'\xc5\xbf"); /* U+017F is no s */
  expect_words("qwen2",
               "a\xff\xfe"
               "b \x80",
               "a|\xff\xfe|b| \x80"); /* a malformed byte is a symbol */
}

static void test_unknown_pretokenizer(void **state)
{
  (void)state;
  gr_error e = { 0 };
  const gr_pretokenizer_kind *kind;
  assert_int_equal(gr_pretokenizer_find("klingon", &kind, &e), GR_ERR_UNSUPPORTED);
  assert_non_null(strstr(e.text, "klingon"));
  static const char *const names[] = { "llama-bpe", "qwen2", "qwen35", "smollm", "gpt-2", "tekken", "gpt-4o" };
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) assert_non_null(strstr(e.text, names[i]));
}

static gr_status stop_at_once(void *ctx, size_t at, size_t n, gr_error *e)
{
  (void)ctx, (void)at, (void)n;
  return gr_fail(e, GR_ERR_CANCELLED, "enough");
}

/* What the regular-expression library cannot finish is an error, and so is what a caller cannot take. */
static void test_match_limit(void **state)
{
  (void)state;
  static const char *const explosive[] = { "(?:a|aa)+\\d", NULL };
  gr_error e = { 0 };
  gr_pretokenizer *p;
  gr_pretokenizer_run *run;
  char text[64];
  memset(text, 'a', sizeof text);
  assert_ok(gr_pretokenizer_create(&p, explosive, 20000, &e), &e);
  assert_ok(gr_pretokenizer_run_create(&run, p, &e), &e);
  struct cut c = { .text = text };
  assert_int_equal(gr_pretokenizer_split(run, text, sizeof text, note_word, &c, &e), GR_ERR_UNSUPPORTED);
  assert_non_null(strstr(e.text, "limit"));
  assert_ok(gr_pretokenizer_split(run, "aa1b", 4, note_word, &c, &e), &e); /* and it still works afterwards */
  assert_int_equal(gr_pretokenizer_split(run, "aa1b", 4, stop_at_once, NULL, &e), GR_ERR_CANCELLED);
  gr_pretokenizer_run_free(run);
  gr_pretokenizer_free(p);
  static const char *const broken[] = { "(", NULL };
  assert_int_equal(gr_pretokenizer_create(&p, broken, 0, &e), GR_ERR_FORMAT);
  static const char *const empty[] = { "x*", NULL };
  assert_ok(gr_pretokenizer_create(&p, empty, 0, &e), &e);
  assert_ok(gr_pretokenizer_run_create(&run, p, &e), &e);
  assert_int_equal(gr_pretokenizer_split(run, "ab", 2, note_word, &c, &e), GR_ERR_FORMAT);
  gr_pretokenizer_run_free(run);
  gr_pretokenizer_free(p);
}

/* ---- merging ---- */

/* The rule of the heap, done the slow way: any two neighbours, best rank first, leftmost among equals. */
static size_t merge_slowly(const int32_t *table, int symbols, int32_t *s, size_t n)
{
  for (;;) {
    size_t best = n;
    for (size_t i = 0; i + 1 < n; i++)
      if (table[s[i] * symbols + s[i + 1]] >= 0 && (best == n || table[s[i] * symbols + s[i + 1]] < table[s[best] * symbols + s[best + 1]]))
        best = i;
    if (best == n) return n;
    s[best] = table[s[best] * symbols + s[best + 1]] % symbols;
    memmove(s + best + 1, s + best + 2, (n - best - 2) * sizeof *s);
    n--;
  }
}

enum { SYMBOLS = 8 };

static bool table_rule(const void *ctx, const gr_piece *left, const gr_piece *right, uint32_t *rank, int32_t *symbol)
{
  const int32_t *table = ctx;
  int32_t entry = table[left->symbol * SYMBOLS + right->symbol];
  *rank = (uint32_t)entry;
  *symbol = entry % SYMBOLS;
  return entry >= 0;
}

static void test_merge_order(void **state)
{
  (void)state;
  gr_merger m = { 0 };
  for (uint64_t round = 0; round < 3000; round++) {
    int32_t table[SYMBOLS * SYMBOLS], slow[40];
    for (uint64_t i = 0; i < SYMBOLS * SYMBOLS; i++)
      table[i] = gr_random_below(1, round, i, 3)
                     ? -1
                     : (int32_t)(gr_random_below(2, round, i, 12) * SYMBOLS + gr_random_below(3, round, i, SYMBOLS));
    size_t n = 1 + gr_random_below(4, round, 0, 40);
    gr_merger_clear(&m);
    for (uint64_t i = 0; i < n; i++) {
      slow[i] = (int32_t)gr_random_below(5, round, i, SYMBOLS);
      assert_true(gr_merger_add(&m, (uint32_t)i, 1, (uint32_t)i, slow[i]));
    }
    assert_true(gr_merger_run(&m, table_rule, table));
    size_t left = merge_slowly(table, SYMBOLS, slow, n), k = 0;
    for (int32_t i = 0; i >= 0; i = m.pieces[i].next) {
      assert_true(k < left);
      assert_int_equal(m.pieces[i].symbol, slow[k++]);
    }
    assert_int_equal(k, left);
  }
  gr_merger_free(&m);
}

/* ---- byte-level BPE ---- */

static void test_bpe_ranks(void **state)
{
  (void)state;
  struct vocabulary v;
  start(&v, "gpt2", "gpt-2");
  add_alphabet(&v);
  assert_int_equal(word(&v, "ab"), 256);
  assert_int_equal(word(&v, "bc"), 257);
  assert_int_equal(word(&v, "abc"), 258);
  assert_int_equal(word(&v, "aa"), 259);
  assert_int_equal(word(&v, "\xc4\xa0"
                            "d"),
                   260);
  merge(&v, "b c");
  merge(&v, "a b");
  merge(&v, "a bc");
  merge(&v, "a a");
  merge(&v, "\xc4\xa0 d"); /* a space is written as U+0120 */
  merge(&v, "x y");        /* the merged text is no token */
  merge(&v, "xy ab");
  merge(&v, "b c"); /* later than the first of its kind: no matter */
  gr_tokenizer *t = build(&v);
  assert_string_equal(ids_of(t, "abc", 3, 0), "258"); /* b c first, although a b stands further left */
  assert_string_equal(ids_of(t, "abb", 3, 0), "256 98");
  assert_string_equal(ids_of(t, "aaaaa", 5, 0), "259 259 97"); /* leftmost among equals */
  assert_string_equal(ids_of(t, " d abc", 6, 0), "260 32 258");
  assert_string_equal(ids_of(t, "xy", 2, 0), "120 121");         /* spelled by its bytes */
  assert_string_equal(ids_of(t, "xyab", 4, 0), "120 121 97 98"); /* also as part of another that is none */
  assert_string_equal(ids_of(t, "", 0, GR_ENCODE_SPECIAL), "");
  assert_string_equal(ids_of(t, "\xc4\xa0", 2, 0), "196 160"); /* the letter U+0120 in a text is not a space */
  assert_string_equal(gr_tokenizer_notes(t), "");
  assert_int_equal(gr_tokenizer_find(t,
                                     "\xc4\xa0"
                                     "d",
                                     3),
                   260);
  assert_int_equal(gr_tokenizer_find(t, " d", 2), -1);
  gr_tokenizer_free(t);
}

/* llama-bpe takes a word that is a token whole, and begins with BOS. */
static void test_bpe_ignore_merges(void **state)
{
  (void)state;
  struct vocabulary v;
  start(&v, "gpt2", "llama-bpe");
  add_alphabet(&v);
  word(&v, "abc");
  v.spec.role[GR_ROLE_BOS] = add(&v, "<b>", GR_TOKEN_CONTROL, 0);
  merge(&v, "q q");
  gr_tokenizer *t = build(&v);
  assert_string_equal(ids_of(t, "abc abc", 7, GR_ENCODE_SPECIAL), "257 256 32 97 98 99");
  assert_string_equal(ids_of(t, "abc", 3, 0), "256");
  gr_tokenizer_free(t);
  v.spec.pre = "qwen2";
  t = build(&v);
  assert_string_equal(ids_of(t, "abc", 3, GR_ENCODE_SPECIAL), "97 98 99");
  gr_tokenizer_free(t);
  v.spec.add_bos = 1;
  v.spec.add_eos = 1;
  v.spec.role[GR_ROLE_EOS] = 256;
  t = build(&v);
  assert_string_equal(ids_of(t, "q", 1, GR_ENCODE_SPECIAL), "257 113 256");
  assert_string_equal(ids_of(t, "q", 1, 0), "113");
  gr_tokenizer_free(t);
}

static void test_bpe_lost_bytes(void **state)
{
  (void)state;
  struct vocabulary v;
  start(&v, "gpt2", "gpt-2");
  word(&v, "a");
  word(&v, "b");
  word(&v, "ab");
  merge(&v, "a b");
  gr_tokenizer *t = build(&v);
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  assert_ok(gr_tokenizer_encode(t, "ab?\xc3\xa9 b", 7, 0, &tokens, &e), &e);
  assert_int_equal(tokens.count, 2);
  assert_int_equal(tokens.lost, 4);
  assert_int_equal(tokens.ids[0], 2);
  assert_int_equal(tokens.ids[1], 1);
  assert_int_equal(tokens.at[1], 6);
  gr_tokens_free(&tokens);
  gr_tokenizer_free(t);
}

/* A vocabulary with merges enough to be of use on random text. */
static gr_tokenizer *pairs_vocabulary(const char *pre)
{
  static char texts[400][8], lines[400][12];
  struct vocabulary v;
  start(&v, "gpt2", pre);
  add_alphabet(&v);
  for (uint64_t i = 0; i < 400; i++) {
    gr_text_view left = v.tokens[gr_random_below(11, i, 0, v.spec.token_count)],
                 right = v.tokens[gr_random_below(11, i, 1, v.spec.token_count)];
    if (left.len + right.len >= sizeof texts[i]) continue;
    snprintf(texts[i], sizeof texts[i], "%s%s", left.data, right.data);
    bool known = false;
    for (size_t k = 0; k < v.spec.token_count; k++) known |= v.tokens[k].len == strlen(texts[i]) && !strcmp(v.tokens[k].data, texts[i]);
    if (known) continue;
    snprintf(lines[i], sizeof lines[i], "%s %s", left.data, right.data);
    word(&v, texts[i]);
    merge(&v, lines[i]);
  }
  assert_true(v.spec.merge_count > 200);
  return build(&v);
}

/* Any bytes come back, whatever cuts the words. */
static void test_bpe_any_bytes(void **state)
{
  (void)state;
  static const char *const names[] = { "gpt-2", "qwen2", "qwen35", "llama-bpe", "smollm", "tekken", "gpt-4o", "" };
  for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
    gr_tokenizer *t = pairs_vocabulary(names[k]);
    for (uint64_t round = 0; round < 200; round++) {
      char text[96];
      size_t n = gr_random_below(6, round, k, sizeof text), used = 0;
      while (used < n) { /* bytes at random, or characters at random */
        uint64_t r = gr_random_u64(7, round * 100 + used, k);
        size_t length = r & 1 && used + 4 <= sizeof text ? gr_utf8_encode((uint32_t)(r >> 8) % (r & 2 ? 0x250 : 0x11000), text + used) : 0;
        if (!length) text[used++] = (char)(r >> 16);
        used += length;
      }
      expect_back(t, text, used, GR_ENCODE_PARSE_CONTROL, 0);
    }
    gr_tokenizer_free(t);
  }
}

/* A word of a megabyte is merged in n log n, for every pre-tokenizer (a quadratic loop would take hours here). */
static void test_bpe_long_words(void **state)
{
  (void)state;
  static const char *const names[] = { "gpt-2", "qwen2", "smollm", "tekken", "gpt-4o", "" };
  static const char fills[] = { 'a', 'A', ' ', '7', '!', '\n', '\xff' };
  size_t n = 1 << 20;
  char *text = gr_alloc(n);
  assert_non_null(text);
  for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
    struct vocabulary v;
    start(&v, "gpt2", names[k]);
    add_alphabet(&v);
    word(&v, "aa");
    word(&v, "aaaa");
    merge(&v, "a a");
    merge(&v, "aa aa");
    gr_tokenizer *t = build(&v);
    for (size_t f = 0; f < sizeof fills; f++) {
      memset(text, fills[f], n);
      gr_error e = { 0 };
      gr_tokens tokens = { 0 };
      assert_ok(gr_tokenizer_encode(t, text, n, GR_ENCODE_PARSE_CONTROL, &tokens, &e), &e);
      assert_int_equal(tokens.count, fills[f] == 'a' ? n / 4 : n);
      gr_tokens_free(&tokens);
    }
    gr_tokenizer_free(t);
  }
  gr_free(text);
}

/* ---- several threads ---- */

struct reader {
  const gr_tokenizer *t;
  uint64_t seed;
  uint64_t sum;
};

static uint64_t encode_many(const gr_tokenizer *t, uint64_t seed)
{
  gr_tokens tokens = { 0 };
  uint64_t sum = 0;
  for (uint64_t round = 0; round < 50; round++) {
    char text[300];
    for (uint64_t i = 0; i < sizeof text; i++) text[i] = (char)gr_random_below(seed, round, i, 256);
    if (gr_tokenizer_encode(t, text, sizeof text, 0, &tokens, NULL) != GR_OK) return 0;
    for (size_t i = 0; i < tokens.count; i++) sum = sum * 31 + (uint64_t)tokens.ids[i];
  }
  gr_tokens_free(&tokens);
  return sum;
}

static void *read_texts(void *arg)
{
  struct reader *r = arg;
  r->sum = encode_many(r->t, r->seed);
  return NULL;
}

static void test_threads(void **state)
{
  (void)state;
  gr_tokenizer *t = pairs_vocabulary("qwen2");
  struct reader readers[4];
  pthread_t threads[4];
  for (uint64_t i = 0; i < 4; i++) {
    readers[i] = (struct reader){ t, i, 0 };
    assert_int_equal(pthread_create(&threads[i], NULL, read_texts, &readers[i]), 0);
  }
  for (size_t i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  for (uint64_t i = 0; i < 4; i++) {
    assert_int_not_equal(readers[i].sum, 0);
    assert_int_equal(readers[i].sum, encode_many(t, i));
  }
  gr_tokenizer_free(t);
}

/* ---- what is refused, and what is only noted ---- */

static void test_refusals(void **state)
{
  (void)state;
  struct vocabulary v;
  start(&v, "gpt2", "gpt-2");
  refuse(&v, "tokenizer.ggml.tokens");
  add_alphabet(&v);
  v.spec.merges = NULL;
  refuse(&v, "tokenizer.ggml.merges");
  v.spec.merges = v.merges;
  v.spec.pre = "nobody's";
  refuse(&v, "nobody's");
  v.spec.pre = "gpt-2";
  v.spec.model = "bert";
  refuse(&v, "bert");
  v.spec.model = NULL;
  refuse(&v, "tokenizer.ggml.model");
  v.spec.model = "gpt2";
  v.spec.add_bos = 1;
  v.spec.role[GR_ROLE_BOS] = 5;
  gr_tokenizer_free(build(&v));
  word(&v, "a");
  refuse(&v, "same text 'a'");
  start(&v, "gpt2", "llama-bpe");
  word(&v, "x");
  refuse(&v, "BOS"); /* the name wants one, the vocabulary is too small for the default */
  v.spec.add_bos = 0;
  gr_tokenizer_free(build(&v));
  v.spec.add_eos = 1;
  refuse(&v, "eos_token_id");
}

static void test_notes(void **state)
{
  (void)state;
  struct vocabulary v;
  start(&v, "gpt2", NULL);
  add_alphabet(&v);
  add(&v, "wild", (gr_token_type)99, 0);
  add(&v, "", GR_TOKEN_NORMAL, 0);
  add(&v, "", GR_TOKEN_CONTROL, 0);
  add(&v, "<0xZZ>", GR_TOKEN_BYTE, 0);
  add(&v, "<0x-1>", GR_TOKEN_BYTE, 0);
  word(&v, "two words"); /* a real space is not of the alphabet */
  merge(&v, "nospace");
  merge(&v, "");
  merge(&v, " a");
  merge(&v, "a ");
  merge(&v, "w i");
  v.spec.role[GR_ROLE_PAD] = 4000;
  v.spec.role[GR_ROLE_EOS] = 4000;
  gr_tokenizer *t = build(&v);
  static const char *const said[] = {
    "tokenizer.ggml.pre",       "2 tokens have an empty", "type outside",
    "not of the form <0x00>",   "byte alphabet",          "4 entries of tokenizer.ggml.merges (the first is 0)",
    "padding_token_id is 4000", "eos_token_id is 4000"
  };
  for (size_t i = 0; i < sizeof said / sizeof *said; i++)
    if (!strstr(gr_tokenizer_notes(t), said[i])) fail_msg("the notes do not say '%s':\n%s", said[i], gr_tokenizer_notes(t));
  assert_int_equal(gr_tokenizer_role(t, GR_ROLE_EOS), 11); /* the default of gpt2 */
  assert_int_equal(gr_tokenizer_role(t, GR_ROLE_PAD), -1);
  assert_string_equal(gr_tokenizer_pre(t), "default");
  expect_back(t, "two words <0xZZ> wild", 21, GR_ENCODE_PARSE_CONTROL, 0);
  assert_int_equal(gr_tokenizer_type(t, 256), GR_TOKEN_NORMAL);
  gr_buf out = { 0 };
  gr_error e = { 0 };
  static const int32_t outside[] = { -1, 262, INT32_MAX, INT32_MIN };
  for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) {
    assert_int_equal(gr_tokenizer_decode(t, &outside[i], 1, 0, &out, &e), GR_ERR_USAGE);
    assert_int_equal(gr_tokenizer_text(t, outside[i]).len, 0);
    assert_false(gr_tokenizer_is_eog(t, outside[i]));
    assert_false(gr_tokenizer_is_control(t, outside[i]));
  }
  gr_buf_free(&out);
  gr_tokenizer_free(t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_utf8),
    cmocka_unit_test(test_pretokenizers),
    cmocka_unit_test(test_unknown_pretokenizer),
    cmocka_unit_test(test_match_limit),
    cmocka_unit_test(test_merge_order),
    cmocka_unit_test(test_bpe_ranks),
    cmocka_unit_test(test_bpe_ignore_merges),
    cmocka_unit_test(test_bpe_lost_bytes),
    cmocka_unit_test(test_bpe_any_bytes),
    cmocka_unit_test(test_bpe_long_words),
    cmocka_unit_test(test_threads),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_notes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
