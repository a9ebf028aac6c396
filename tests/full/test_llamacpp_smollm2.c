/* SmolLM2-135M-Instruct Q4_1, as users have it, against a real llama.cpp on the same weights decoded to F32. The model comes from
 * `tools/fetch-model smollm2`; without it in the cache the tests are skipped. */
#include "llamacpp.h"

static const char *smollm2(char *path, size_t n)
{
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (cache && *cache) snprintf(path, n, "%s/graft/models/smollm2.gguf", cache);
  else snprintf(path, n, "%s/.cache/graft/models/smollm2.gguf", home ? home : "");
  return access(path, R_OK) == 0 ? path : NULL;
}

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

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(smollm2_is_scored_and_continued_as_llamacpp_does),
                                      cmocka_unit_test(an_adapter_moves_smollm2_as_in_llamacpp) };
  return cmocka_run_group_tests_name("llamacpp_smollm2", tests, NULL, NULL);
}
