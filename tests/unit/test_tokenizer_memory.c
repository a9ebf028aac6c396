/* Every allocation of building, encoding and decoding fails once: the answer is GR_ERR_MEMORY, and nothing stays behind. */
#include "failing_alloc.h"

#include "vocabulary.h"

static void fill(struct vocabulary *v, bool spm)
{
  start(v, spm ? "llama" : "gpt2", "qwen2");
  if (!spm) add_alphabet(v);
  word(v, spm ? "\xe2\x96\x81" : "abc");
  word(v, "<0x41>");
  v->types[v->spec.token_count - 1] = GR_TOKEN_BYTE;
  add(v, "<|im_end|>", GR_TOKEN_CONTROL, 0);
  add(v, "<tag>", GR_TOKEN_USER_DEFINED, 0);
  add(v, spm ? "b" : "zz", (gr_token_type)77, 0); /* makes a note */
  merge(v, "a b");
  merge(v, "ab c");
  v->spec.role[GR_ROLE_BOS] = v->spec.role[GR_ROLE_EOS] = 1;
  v->spec.add_bos = v->spec.add_eos = 1;
}

/* One whole use; the first status that is not GR_OK. */
static gr_status use(const struct vocabulary *v)
{
  static const char text[] = "abc def<|im_end|> \xff<tag>123 b";
  gr_tokenizer *t;
  gr_error e = { 0 };
  gr_tokens tokens = { 0 };
  gr_buf out = { 0 };
  gr_status s = gr_tokenizer_build(&t, &v->spec, &e);
  if (s == GR_OK) s = gr_tokenizer_encode(t, text, sizeof text - 1, GR_ENCODE_SPECIAL | GR_ENCODE_PARSE_CONTROL, &tokens, &e);
  if (s == GR_OK) s = gr_tokenizer_decode(t, tokens.ids, tokens.count, GR_DECODE_CONTROL, &out, &e);
  assert_true(s == GR_OK || (e.text[0] && e.status == s));
  gr_buf_free(&out);
  gr_tokens_free(&tokens);
  gr_tokenizer_free(t);
  return s;
}

static void test_every_allocation(void **state)
{
  (void)state;
  for (int spm = 0; spm < 2; spm++)
    for (int rest = 0; rest < 2; rest++) {
      struct vocabulary v;
      fill(&v, spm);
      allocations_fail(0, false);
      assert_int_equal(use(&v), GR_OK);
      assert_int_equal(allocations.live, 0);
      size_t n = allocations.seen, survived = 0;
      assert_true(n > 20);
      for (size_t i = 1; i <= n; i++) {
        allocations_fail(i, rest);
        gr_status s = use(&v);
        assert_true(allocations.failed > 0);
        assert_true(s == GR_ERR_MEMORY || s == GR_OK);
        survived += s == GR_OK;
        assert_int_equal(allocations.live, 0);
      }
      /* What may do without: a note, and PCRE2's JIT, in whose place its interpreter runs. */
      if (survived > (spm ? 2 : 12)) fail_msg("%zu of %zu failed allocations went unnoticed", survived, n);
      allocations_fail(0, false);
    }
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(test_every_allocation) };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
