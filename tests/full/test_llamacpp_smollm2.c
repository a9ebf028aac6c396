/* SmolLM2-135M-Instruct Q4_1, as users have it, against a real llama.cpp on the same weights decoded to F32. The model comes from
 * `tools/fetch-model smollm2`; without it in the cache the tests are skipped. And that a fresh adapter leaves it as it is. */
#include "llamacpp.h"

static const char *smollm2(char *path, size_t n) { return fetched_model("smollm2", path, n); }

static void smollm2_is_scored_and_continued_as_llamacpp_does(void **state)
{
  (void)state;
  char path[512];
  if (!smollm2(path, sizeof path)) skip();
  check_record("smollm2", path, NULL);
}

static void an_adapter_moves_smollm2_as_in_llamacpp(void **state)
{
  (void)state;
  char path[512];
  if (!smollm2(path, sizeof path)) skip();
  check_record("smollm2-lora", path, GR_SOURCE_DIR "/tests/golden/smollm2-lora.gguf");
}

/* As in any model (test_train), but this is the one that users have: rank 16 on every linear, B = 0. */
static void a_fresh_adapter_changes_no_bit_of_smollm2s_logits(void **state)
{
  (void)state;
  enum { N = 48 };
  static const gr_lora_options fresh = { .rank = 16, .alpha = 32, .seed = 42 };
  char path[512];
  int32_t ids[N];
  judged bare, with;
  gr_error e = { 0 };
  if (!smollm2(path, sizeof path)) skip();
  judged_open(&bare, path, NULL, 1);
  judged_open(&with, path, NULL, 1);
  assert_ok(gr_lora_create(&with.lora, with.model, &fresh, &e), &e);
  with.use.lora = with.lora;
  for (int32_t i = 0; i < N; i++) ids[i] = (i * 7919 + 11) % bare.vocab;
  size_t bytes = sizeof(float) * (size_t)N * (size_t)bare.vocab;
  float *logits = judged_logits(&bare, ids, N), *same = judged_logits(&with, ids, N);
  assert_int_equal(memcmp(logits, same, bytes), 0);
  gr_free(same);
  gr_lora_values(with.lora)[gr_lora_parameters(with.lora) - 1] = 0.1f; /* one element of a B: no longer */
  same = judged_logits(&with, ids, N);
  assert_int_not_equal(memcmp(logits, same, bytes), 0);
  gr_free(same);
  gr_free(logits);
  judged_close(&with);
  judged_close(&bare);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(smollm2_is_scored_and_continued_as_llamacpp_does),
                                      cmocka_unit_test(an_adapter_moves_smollm2_as_in_llamacpp),
                                      cmocka_unit_test(a_fresh_adapter_changes_no_bit_of_smollm2s_logits) };
  return cmocka_run_group_tests_name("llamacpp_smollm2", tests, NULL, NULL);
}
