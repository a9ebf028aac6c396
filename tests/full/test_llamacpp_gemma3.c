/* Gemma 3 270M Q4_K_M, as users have it, against a real llama.cpp on the same weights decoded to F32. The model comes from
 * `tools/fetch-model gemma3-270m`; without it in the cache the test is skipped. */
#include "llamacpp.h"

static void gemma3_is_scored_and_continued_as_llamacpp_does(void **state)
{
  (void)state;
  char path[512];
  if (!fetched_model("gemma3-270m", path, sizeof path)) skip();
  check_record("gemma3-270m", path, NULL);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(gemma3_is_scored_and_continued_as_llamacpp_does) };
  return cmocka_run_group_tests_name("llamacpp_gemma3", tests, NULL, NULL);
}
