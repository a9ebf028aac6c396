#include "check.h"

#include "io/gguf.h"

#define HOSTILE SHARED_DATA "hostile-gguf/"

/* Files that the index wants refused for what they say about a model, a tokenizer or an adapter: as containers they are whole. */
static bool refused_by_a_later_layer(const char *file)
{
  static const char *const prefixes[] = {
    "arch-", "hp-", "rope-base-", "expert", "tokens-fewer", "tokens-more", "merges-missing", "tensor-missing", "adapter-", "base-as-adapter"
  };
  for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
    if (strncmp(file, prefixes[i], strlen(prefixes[i])) == 0) return true;
  return false;
}

static void hostile_containers_get_the_answer_of_the_index(void **state)
{
  (void)state;
  require_shared();
  FILE *index = fopen(HOSTILE "index.json", "r");
  assert_non_null(index);
  char line[4096], file[128], expect[16];
  int seen = 0, wrong = 0, refused = 0;
  while (fgets(line, sizeof line, index)) {
    if (sscanf(line, "{\"file\": \"%127[^\"]\", \"expect\": \"%15[^\"]\"", file, expect) != 2) continue;
    seen++;
    char path[512];
    snprintf(path, sizeof path, "%s%s", HOSTILE, file);
    gr_error e = { 0 };
    gr_gguf *g = NULL;
    bool accepted = gr_gguf_open(&g, path, &e) == GR_OK;
    assert_true(accepted == (g != NULL));
    if (!accepted) {
      refused++;
      if (!strstr(e.text, file)) fail_msg("the sentence does not name %s: %s", file, e.text);
    }
    gr_gguf_close(g);
    bool want = strcmp(expect, "accept") == 0 || refused_by_a_later_layer(file);
    if (strcmp(expect, "either") == 0 || accepted == want) continue;
    print_error("%s: expected %s, got: %s\n", file, want ? "accept" : "reject", accepted ? "accept" : e.text);
    wrong++;
  }
  fclose(index);
  assert_int_equal(seen, 115);
  assert_int_equal(wrong, 0);
  assert_true(refused > 40);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(hostile_containers_get_the_answer_of_the_index),
  };
  return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
