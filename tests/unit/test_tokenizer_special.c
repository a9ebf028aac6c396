/* Special tokens: where they are recognised, what they are for. */
#include "vocabulary.h"

#include "base/rng.h"

/* gpt2 with the alphabet at 0 to 255, then the special tokens. */
static void start_chat(struct vocabulary *v)
{
  start(v, "gpt2", "qwen2");
  add_alphabet(v);
  add(v, "<|im_start|>", GR_TOKEN_CONTROL, 0); /* 256 */
  add(v, "<|im_end|>", GR_TOKEN_CONTROL, 0);   /* 257 */
  add(v, "<think>", GR_TOKEN_USER_DEFINED, 0); /* 258 */
  add(v, "<unk>", GR_TOKEN_UNKNOWN, 0);        /* 259 */
}

static void test_parse_control(void **state)
{
  (void)state;
  struct vocabulary v;
  start_chat(&v);
  gr_tokenizer *t = build(&v);
  assert_string_equal(pieces_of(t, "<|im_start|>a<think>b<unk><|im_end|>", GR_ENCODE_PARSE_CONTROL),
                      "<|im_start|>|a|<think>|b|<unk>|<|im_end|>");
  assert_string_equal(ids_of(t, "<|im_end|><think>", 17, GR_ENCODE_PARSE_CONTROL), "257 258");
  assert_string_equal(pieces_of(t, "<unk>a<think>", 0), "<|u|n|k|>|a|<think>"); /* user-defined tokens are recognised anyway */
  assert_true(gr_tokenizer_is_control(t, 256) && gr_tokenizer_is_control(t, 259) && !gr_tokenizer_is_control(t, 258));
  gr_tokenizer_free(t);
}

/* However the merges are, text does not become a control token by merging. */
static void test_no_forgery(void **state)
{
  (void)state;
  struct vocabulary v;
  start(&v, "gpt2", "llama-bpe"); /* which also takes whole words that are tokens */
  add_alphabet(&v);
  word(&v, "st");                       /* 256 */
  add(&v, "stop", GR_TOKEN_CONTROL, 0); /* 257 */
  word(&v, "op");                       /* 258 */
  word(&v, "stops");                    /* 259 */
  merge(&v, "s t");
  merge(&v, "o p");
  merge(&v, "st op");
  merge(&v, "stop s");
  v.spec.add_bos = 0;
  gr_tokenizer *t = build(&v);
  assert_string_equal(ids_of(t, "stop", 4, 0), "115 116 111 112");
  assert_string_equal(ids_of(t, "stops", 5, 0), "259");
  assert_string_equal(ids_of(t, "stop", 4, GR_ENCODE_PARSE_CONTROL), "257");
  gr_tokenizer_free(t);
  start(&v, "llama", NULL);
  add(&v, "<unk>", GR_TOKEN_UNKNOWN, 0);
  add(&v, "<s>", GR_TOKEN_CONTROL, 0);
  add(&v, "</s>", GR_TOKEN_CONTROL, 0);
  static const char *const letters[] = { "<", "/", "s", ">", "</", "</s", "s>" };
  for (size_t i = 0; i < 7; i++) add(&v, letters[i], GR_TOKEN_NORMAL, -(float)i);
  v.spec.add_space_prefix = 0;
  t = build(&v);
  assert_string_equal(ids_of(t, "</s>", 4, 0), "8 6");
  assert_string_equal(ids_of(t, "</s>", 4, GR_ENCODE_PARSE_CONTROL), "2");
  gr_tokenizer_free(t);
}

/* The order of the search: longer tokens first wherever they are, each from left to right in what is left. */
static void test_longest_first(void **state)
{
  (void)state;
  struct vocabulary v;
  start(&v, "gpt2", "gpt-2");
  add_alphabet(&v);
  static const char *const texts[] = { "<a", "<ab", "b<ab<", "ab<abc", "  ", "   ", "    ", "xx" };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) add(&v, texts[i], i % 2 ? GR_TOKEN_CONTROL : GR_TOKEN_USER_DEFINED, 0);
  gr_tokenizer *t = build(&v);
  assert_string_equal(pieces_of(t, "<ab", GR_ENCODE_PARSE_CONTROL), "<ab");
  assert_string_equal(pieces_of(t, "<ab<abcd", GR_ENCODE_PARSE_CONTROL), "<|ab<abc|d"); /* not <ab, which stands further left */
  assert_string_equal(pieces_of(t, "<ab<ab<d", GR_ENCODE_PARSE_CONTROL), "<a|b<ab<|d"); /* what a longer one leaves of <ab */
  assert_string_equal(pieces_of(t, "<ab", 0), "<a|b");                                  /* the longer one is control */
  assert_string_equal(pieces_of(t, "         ", GR_ENCODE_PARSE_CONTROL), "    |    | ");
  assert_string_equal(pieces_of(t, "       ", 0), "    |  | ");
  assert_string_equal(pieces_of(t, "xxx", GR_ENCODE_PARSE_CONTROL), "xx|x");
  gr_tokenizer_free(t);
}

/* ---- trust ---- */

static const char *pieces_of_spans(const gr_tokenizer *t, const char *text, const gr_trusted_span *trusted, size_t n)
{
  static char line[1024];
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  assert_ok(gr_tokenizer_encode_spans(t, text, strlen(text), trusted, n, 0, &tokens, &e), &e);
  size_t used = 0;
  line[0] = 0;
  for (size_t i = 0; i < tokens.count; i++)
    used += (size_t)snprintf(line + used, sizeof line - used, "%s%.*s", i ? "|" : "", (int)tokens.length[i], text + tokens.at[i]);
  gr_tokens_free(&tokens);
  return line;
}

static void test_trust(void **state)
{
  (void)state;
  struct vocabulary v;
  start_chat(&v);
  word(&v, "\xc4\xa0"
           "no"); /* 260 */
  word(&v, "no");
  merge(&v, "n o");
  merge(&v, "\xc4\xa0 no");
  gr_tokenizer *t = build(&v);
  const char *text = "<|im_end|> no<think><|im_end|>";
  gr_trusted_span all = { 0, 30 }, first = { 0, 10 }, short_by_one = { 0, 9 }, within = { 1, 30 };
  assert_string_equal(pieces_of_spans(t, text, &all, 1), "<|im_end|>| no|<think>|<|im_end|>");
  assert_string_equal(pieces_of_spans(t, text, &first, 1), "<|im_end|>| no|<think>|<|||i|m|_|e|n|d|||>");
  assert_string_equal(pieces_of_spans(t, text, &short_by_one, 1), "<|||i|m|_|e|n|d|||>| no|<think>|<|||i|m|_|e|n|d|||>");
  assert_string_equal(pieces_of_spans(t, text, &within, 1), "<|||i|m|_|e|n|d|||>| no|<think>|<|im_end|>");
  assert_string_equal(pieces_of_spans(t, text, NULL, 0), "<|||i|m|_|e|n|d|||>| no|<think>|<|||i|m|_|e|n|d|||>");
  static const gr_trusted_span touching[] = { { 0, 4 }, { 4, 4 }, { 4, 7 }, { 7, 12 } }; /* the border at 12 does not cut " no" */
  assert_string_equal(pieces_of_spans(t, text, touching, 4), "<|im_end|>| no|<think>|<|||i|m|_|e|n|d|||>");
  static const gr_trusted_span gap[] = { { 0, 4 }, { 5, 12 } };
  assert_string_equal(pieces_of_spans(t, text, gap, 2), "<|||i|m|_|e|n|d|||>| no|<think>|<|||i|m|_|e|n|d|||>");
  static const gr_trusted_span bad[][2] = {
    { { 0, 31 }, { 31, 31 } }, { { 5, 4 }, { 6, 7 } }, { { 4, 8 }, { 7, 9 } }, { { 8, 9 }, { 1, 2 } }
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    gr_error e = { 0 };
    gr_tokens tokens = { 0 };
    assert_int_equal(gr_tokenizer_encode_spans(t, text, 30, bad[i], 2, 0, &tokens, &e), GR_ERR_USAGE);
    assert_int_equal(tokens.count, 0);
    gr_tokens_free(&tokens);
  }
  gr_tokenizer_free(t);
}

/* ---- against the definition, on random tables ---- */

struct special {
  char text[8];
  size_t length;
  bool control;
};

/* Owner of each byte: the special token's number + 1, or 0. Searches once for every token, as the definition says. */
static void match_slowly(const struct special *table, size_t count, const char *text, size_t n, size_t trusted_from, size_t trusted_to,
                         int *owner, bool *first)
{
  memset(owner, 0, n * sizeof *owner);
  memset(first, 0, n * sizeof *first);
  for (size_t length = 7; length; length--)
    for (size_t start = 0; start + length <= n; start++)
      for (size_t k = 0; k < count; k++) {
        if (table[k].length != length || memcmp(table[k].text, text + start, length) != 0) continue;
        if (table[k].control && (start < trusted_from || start + length > trusted_to)) continue;
        bool open = true;
        for (size_t i = 0; i < length; i++) open = open && !owner[start + i];
        if (!open) continue;
        for (size_t i = 0; i < length; i++) owner[start + i] = (int)k + 1;
        first[start] = true;
      }
}

static void test_matches_against_definition(void **state)
{
  (void)state;
  gr_tokens tokens = { 0 };
  gr_error e = { 0 };
  for (uint64_t round = 0; round < 200; round++) {
    struct special table[12];
    struct vocabulary v;
    start(&v, "gpt2", "gpt-2");
    add_alphabet(&v);
    size_t count = 0;
    for (uint64_t i = 0; i < 12; i++) {
      struct special *s = &table[count];
      s->length = 2 + gr_random_below(1, round, i, 5);
      s->control = gr_random_below(2, round, i, 2);
      memset(s->text, 0, sizeof s->text);
      for (uint64_t k = 0; k < s->length; k++) s->text[k] = (char)('x' + gr_random_below(3, round, i * 8 + k, 2));
      bool known = false;
      for (size_t k = 0; k < count; k++) known |= !strcmp(table[k].text, s->text);
      if (known) continue;
      add(&v, s->text, s->control ? GR_TOKEN_CONTROL : GR_TOKEN_USER_DEFINED, 0);
      count++;
    }
    gr_tokenizer *t = build(&v);
    for (uint64_t k = 0; k < 30; k++) {
      char text[48];
      int owner[48];
      bool first[48];
      size_t n = sizeof text, from = gr_random_below(4, round, k, n), to = from + gr_random_below(5, round, k, n - from);
      for (uint64_t i = 0; i < n; i++) text[i] = (char)('x' + gr_random_below(6, round * 64 + k, i, 100) % 17 % 2);
      match_slowly(table, count, text, n, from, to, owner, first);
      gr_trusted_span trusted = { from, to };
      assert_ok(gr_tokenizer_encode_spans(t, text, n, &trusted, 1, 0, &tokens, &e), &e);
      for (size_t i = 0; i < tokens.count; i++) {
        int expected = owner[tokens.at[i]];
        assert_int_equal(tokens.ids[i], expected ? 255 + expected : text[tokens.at[i]]);
        assert_true(!expected || first[tokens.at[i]]);
      }
    }
    gr_tokenizer_free(t);
  }
  gr_tokens_free(&tokens);
}

/* Thousands of special tokens cost a text nothing: this one would be searched 20,000 times otherwise. */
static void test_thousands(void **state)
{
  (void)state;
  enum { COUNT = 20000 };
  gr_text_view *tokens = gr_calloc(COUNT, sizeof *tokens), merges[1];
  int32_t *types = gr_calloc(COUNT, sizeof *types);
  char(*store)[24] = gr_calloc(COUNT, sizeof *store);
  size_t n = 1 << 20, used = 0;
  char *text = gr_alloc(n);
  assert_true(tokens && types && store && text);
  for (int i = 0; i < COUNT; i++) {
    snprintf(store[i], sizeof store[i], i < 2 ? "%c" : "<|reserved_%d|>", i < 2 ? "a "[i] : i);
    if (i == 1) snprintf(store[i], sizeof store[i], "\xc4\xa0");
    tokens[i] = (gr_text_view){ store[i], strlen(store[i]) };
    types[i] = i < 2 ? GR_TOKEN_NORMAL : i % 2 ? GR_TOKEN_CONTROL : GR_TOKEN_USER_DEFINED;
  }
  gr_tokenizer_spec spec;
  gr_tokenizer_spec_init(&spec);
  spec.model = "gpt2";
  spec.pre = "gpt-2";
  spec.tokens = tokens;
  spec.types = types;
  spec.token_count = COUNT;
  spec.merges = merges;
  gr_error e = { 0 };
  gr_tokenizer *t;
  assert_ok(gr_tokenizer_build(&t, &spec, &e), &e);
  size_t specials = 0;
  while (used + 40 < n) {
    int i = 2 + (int)gr_random_below(1, used, 0, COUNT - 2);
    used += (size_t)snprintf(text + used, n - used, "aa %s", store[i]);
    specials++;
  }
  gr_tokens out = { 0 };
  assert_ok(gr_tokenizer_encode(t, text, used, GR_ENCODE_PARSE_CONTROL, &out, &e), &e);
  assert_int_equal(out.count, 4 * specials);
  assert_int_equal(out.lost, 0);
  gr_tokens_free(&out);
  gr_tokenizer_free(t);
  gr_free(tokens);
  gr_free(types);
  gr_free(store);
  gr_free(text);
}

/* ---- roles ---- */

static void test_one_bos(void **state)
{
  (void)state;
  struct vocabulary v;
  start_chat(&v);
  v.spec.role[GR_ROLE_BOS] = 256;
  v.spec.add_bos = 1;
  gr_tokenizer *t = build(&v);
  unsigned rendered = GR_ENCODE_SPECIAL | GR_ENCODE_PARSE_CONTROL | GR_ENCODE_ONE_BOS;
  assert_string_equal(ids_of(t, "<|im_start|>a", 13, rendered), "256 97");
  assert_string_equal(ids_of(t, "<|im_start|>a", 13, rendered & ~(unsigned)GR_ENCODE_ONE_BOS), "256 256 97");
  assert_string_equal(ids_of(t, "a<|im_start|>", 13, rendered), "256 97 256");
  assert_string_equal(ids_of(t, "<|im_end|>", 10, rendered), "256 257");
  assert_true(gr_tokenizer_adds_bos(t) && !gr_tokenizer_adds_eos(t));
  gr_tokenizer_free(t);
}

static void test_end_of_generation(void **state)
{
  (void)state;
  struct vocabulary v;
  start_chat(&v);
  int32_t s = word(&v, "</s>"), pad = add(&v, "<|fim_pad|>", GR_TOKEN_CONTROL, 0), own = word(&v, "bye"), sep = word(&v, "<|file_sep|>");
  int32_t eom = add(&v, "<|eom_id|>", GR_TOKEN_CONTROL, 0), middle = word(&v, "<|fim_middle|>");
  v.spec.role[GR_ROLE_EOS] = own;
  gr_tokenizer *t = build(&v);
  for (int32_t id = 0; (size_t)id < gr_tokenizer_vocab_size(t); id++)
    assert_int_equal(gr_tokenizer_is_eog(t, id), id == 257 || id == s || id == pad || id == own || id == sep || id == eom);
  assert_int_equal(gr_tokenizer_role(t, GR_ROLE_EOT), 257);
  assert_int_equal(gr_tokenizer_role(t, GR_ROLE_EOM), eom);
  assert_int_equal(gr_tokenizer_role(t, GR_ROLE_FIM_MID), middle);
  assert_int_equal(gr_tokenizer_type(t, s), GR_TOKEN_CONTROL); /* by its text, whatever the file says */
  assert_non_null(strstr(gr_tokenizer_notes(t), "'</s>'"));
  assert_int_equal(gr_tokenizer_type(t, own), GR_TOKEN_NORMAL); /* the file names it: no reason to change its type */
  gr_tokenizer_free(t);
}

/* In gpt-oss's format <|end|> ends a message, and the frame of an answer is shown; text cannot forge it all the same. */
static void test_harmony(void **state)
{
  (void)state;
  struct vocabulary v;
  start(&v, "gpt2", "gpt-4o");
  add_alphabet(&v);
  static const char *const texts[] = { "<|start|>", "<|end|>", "<|return|>", "<|call|>", "<|channel|>" };
  for (size_t i = 0; i < 5; i++) add(&v, texts[i], GR_TOKEN_CONTROL, 0);
  gr_tokenizer *t = build(&v);
  assert_false(gr_tokenizer_is_eog(t, 257));
  assert_true(gr_tokenizer_is_eog(t, 258) && gr_tokenizer_is_eog(t, 259));
  static const int32_t ids[] = { 260, 'a', 257 };
  gr_buf out = { 0 };
  gr_error e = { 0 };
  assert_ok(gr_tokenizer_decode(t, ids, 3, 0, &out, &e), &e);
  assert_string_equal(out.data, "<|channel|>a");
  assert_string_equal(ids_of(t, "<|end|>", 7, 0), "60 124 101 110 100 124 62");
  gr_buf_free(&out);
  gr_tokenizer_free(t);
}

static void test_phi3_strips(void **state)
{
  (void)state;
  struct vocabulary v;
  start_chat(&v);
  add(&v, "<s>", GR_TOKEN_CONTROL, 0); /* 260 */
  v.spec.name = "My Phi-3 Mini";
  gr_tokenizer *t = build(&v);
  assert_string_equal(ids_of(t, "<|im_end|> \n\ta", 14, GR_ENCODE_PARSE_CONTROL), "257 97");
  assert_string_equal(ids_of(t, "<s> a", 5, GR_ENCODE_PARSE_CONTROL), "260 32 97");
  assert_string_equal(ids_of(t, "<|im_end|>  <|im_end|> ", 23, GR_ENCODE_PARSE_CONTROL), "257 257");
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  assert_ok(gr_tokenizer_encode(t, "<|im_end|> \n\ta", 14, GR_ENCODE_PARSE_CONTROL, &tokens, &e), &e);
  assert_int_equal(tokens.length[0], 13); /* the white space is the token's */
  assert_int_equal(tokens.at[1], 13);
  gr_tokens_free(&tokens);
  gr_tokenizer_free(t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_parse_control),
    cmocka_unit_test(test_no_forgery),
    cmocka_unit_test(test_longest_first),
    cmocka_unit_test(test_trust),
    cmocka_unit_test(test_matches_against_definition),
    cmocka_unit_test(test_thousands),
    cmocka_unit_test(test_one_bos),
    cmocka_unit_test(test_end_of_generation),
    cmocka_unit_test(test_harmony),
    cmocka_unit_test(test_phi3_strips),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
