/* Adapters in memory: targets, ranks, initialisation, files. */
#include <math.h>

#include "base/alloc.h"
#include "check.h"
#include "model/model.h"

static gr_model *open_model(const char *name)
{
  gr_error e = { 0 };
  gr_model *m = NULL;
  char path[512];
  snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/%s.gguf", name);
  assert_ok(gr_model_open(&m, path, &e), &e);
  return m;
}

static size_t pairs_of(const gr_model *m, const char *const *targets, size_t n)
{
  gr_error e = { 0 };
  gr_lora *l = NULL;
  const gr_lora_options o = { .rank = 4, .alpha = 8, .targets = targets, .n_targets = n, .seed = 1 };
  assert_ok(gr_lora_create(&l, m, &o, &e), &e);
  size_t pairs = gr_lora_pair_count(l);
  gr_lora_free(l);
  return pairs;
}

static void targets_mean_what_they_say(void **state)
{
  (void)state;
  static const struct {
    const char *target, *name;
    bool match;
  } cases[] = {
    { "attn_q", "blk.3.attn_q.weight", true },
    { "q_proj", "blk.3.attn_q.weight", true },
    { "q_proj", "blk.3.attn_k.weight", false },
    { "attn_q", "blk.3.attn_q_norm.weight", false }, /* no substrings: norms are not linears */
    { "blk.3.attn_q", "blk.3.attn_q.weight", true },
    { "blk.3.attn_q", "blk.13.attn_q.weight", false },
    { "blk.3.attn_q.weight", "blk.3.attn_q.weight", true },
    { "attention", "blk.0.attn_output.weight", true },
    { "attention", "blk.0.ffn_up.weight", false },
    { "mlp", "blk.0.ffn_down.weight", true },
    { "all-linear", "blk.0.ffn_down.weight", true },
    { "all-linear", "output.weight", false },
    { "lm_head", "output.weight", true },
    { "output", "blk.0.attn_output.weight", false },
    { "re:blk\\.[02]\\.ffn_(up|down)\\.weight", "blk.2.ffn_up.weight", true },
    { "re:ffn_up", "blk.2.ffn_up.weight", false }, /* the whole name */
    { "re:(", "blk.2.ffn_up.weight", false },
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (gr_lora_match(cases[i].target, cases[i].name) != cases[i].match) fail_msg("%s and %s", cases[i].target, cases[i].name);
}

static void groups_count_the_linears(void **state)
{
  (void)state;
  gr_model *m = open_model("llama"); /* two layers, a head of its own */
  assert_int_equal(pairs_of(m, NULL, 0), 14);
  assert_int_equal(pairs_of(m, (const char *const[]){ "attention" }, 1), 8);
  assert_int_equal(pairs_of(m, (const char *const[]){ "mlp", "output" }, 2), 7);
  assert_int_equal(pairs_of(m, (const char *const[]){ "q_proj", "attn_q" }, 2), 2);
  gr_model_close(m);
}

static void expect_refusal(const char *model, gr_lora_options o, const char *pattern)
{
  gr_model *m = open_model(model);
  gr_lora *l = NULL;
  gr_error e = { 0 };
  assert_int_equal(gr_lora_create(&l, m, &o, &e), GR_ERR_USAGE);
  assert_null(l);
  if (!strstr(e.text, pattern)) fail_msg("'%s' does not say '%s'", e.text, pattern);
  gr_model_close(m);
}

static void wrong_options_are_refused_in_words(void **state)
{
  (void)state;
  const char *const wrong[] = { "attn_z" }, *const head[] = { "output" };
  static const char *const embeddings[] = { "embed_tokens", "token_embd", "token_embd.weight", "lm_head" };
  expect_refusal("llama", (gr_lora_options){ .rank = 4, .alpha = 8, .targets = wrong, .n_targets = 1 }, "attn_q, attn_k, attn_v");
  expect_refusal("qwen2", (gr_lora_options){ .rank = 4, .alpha = 8, .targets = head, .n_targets = 1 }, "tied");
  for (size_t i = 0; i < 4; i++)
    expect_refusal("qwen2", (gr_lora_options){ .rank = 4, .alpha = 8, .targets = embeddings + i, .n_targets = 1 },
                   "its token embedding (tied)");
  for (size_t i = 0; i < 3; i++)
    expect_refusal("llama", (gr_lora_options){ .rank = 4, .alpha = 8, .targets = embeddings + i, .n_targets = 1 },
                   "embeddings are looked up, not multiplied");
  expect_refusal("llama", (gr_lora_options){ .rank = 0, .alpha = 8 }, "at least 1");
  expect_refusal("llama", (gr_lora_options){ .rank = 4096, .alpha = 8 }, "larger than");
  expect_refusal("llama", (gr_lora_options){ .rank = 4, .alpha = -1 }, "alpha");
  expect_refusal("llama", (gr_lora_options){ .rank = 4, .alpha = (double)NAN }, "alpha");
}

static void initial_values_depend_on_seed_and_name_alone(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_model *m = open_model("llama");
  gr_lora *all = NULL, *one = NULL, *other = NULL;
  const char *const k[] = { "blk.1.attn_k" };
  assert_ok(gr_lora_create(&all, m, &(gr_lora_options){ .rank = 4, .alpha = 8, .seed = 9 }, &e), &e);
  assert_ok(gr_lora_create(&one, m, &(gr_lora_options){ .rank = 4, .alpha = 8, .targets = k, .n_targets = 1, .seed = 9 }, &e), &e);
  assert_ok(gr_lora_create(&other, m, &(gr_lora_options){ .rank = 4, .alpha = 8, .targets = k, .n_targets = 1, .seed = 10 }, &e), &e);
  const gr_lora_pair *a = gr_lora_pair_at(all, (size_t)gr_lora_find(all, "blk.1.attn_k.weight")), *b = gr_lora_pair_at(one, 0);
  size_t n = (size_t)(a->rank * a->in);
  assert_memory_equal(a->a, b->a, n * sizeof(float));
  assert_true(memcmp(a->a, gr_lora_pair_at(other, 0)->a, n * sizeof(float)) != 0);
  double bound = 1 / sqrt((double)a->in), largest = 0;
  for (size_t i = 0; i < n; i++) largest = fmax(largest, fabs((double)a->a[i]));
  assert_true(largest <= bound && largest > 0.9 * bound);
  for (int64_t i = 0; i < a->rank * a->out; i++) assert_true(a->b[i] == 0);
  gr_lora_free(all);
  gr_lora_free(one);
  gr_lora_free(other);
  gr_model_close(m);
}

static void a_saved_adapter_comes_back(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_model *m = open_model("llama");
  gr_lora *l = NULL, *back = NULL;
  char path[] = "/tmp/graft-test-lora-XXXXXX";
  close(mkstemp(path));
  assert_ok(gr_lora_create(&l, m, &(gr_lora_options){ .rank = 4, .alpha = 10, .rslora = true, .seed = 9 }, &e), &e);
  float *values = gr_lora_values(l);
  for (size_t i = 0; i < gr_lora_parameters(l); i++) values[i] += (float)(i % 7) * 0.125f;
  assert_ok(gr_lora_save(l, m, path, "0123", &e), &e);
  assert_ok(gr_lora_load(&back, m, path, &e), &e);
  assert_int_equal(gr_lora_parameters(back), gr_lora_parameters(l));
  assert_memory_equal(gr_lora_values(back), values, gr_lora_parameters(l) * sizeof(float));
  /* rsLoRA: alpha / sqrt(r), which any reader gets as the file's alpha / r. */
  assert_true(fabs((double)gr_lora_scale(back, gr_lora_pair_at(back, 0), 1) - 10 / sqrt(4)) < 1e-6);
  values[3] = NAN;
  assert_int_equal(gr_lora_save(l, m, path, NULL, &e), GR_ERR_NUMERIC);
  assert_int_equal(gr_lora_check_finite(l, &e), GR_ERR_NUMERIC);
  gr_lora_free(back);
  back = NULL;
  assert_ok(gr_lora_load(&back, m, path, &e), &e); /* the good one is still there */
  gr_lora_free(back);
  gr_lora_free(l);
  gr_model_close(m);
  unlink(path);
}

/* The factors of a narrow tensor have the rank that it allows, and no more. */
static void a_rank_that_some_targets_cannot_have_is_less_there(void **state)
{
  (void)state;
  gr_error e;
  gr_model *m = open_model("qwen3moe");
  gr_lora *l = NULL;
  const char *const targets[] = { "attention", "router" };
  const gr_lora_options o = { .rank = 16, .alpha = 8, .targets = targets, .n_targets = 2 };
  assert_ok(gr_lora_create(&l, m, &o, &e), &e);
  size_t narrow = 0;
  for (size_t i = 0; i < gr_lora_pair_count(l); i++) {
    const gr_lora_pair *p = gr_lora_pair_at(l, i);
    int64_t most = p->in < p->out ? p->in : p->out;
    assert_int_equal(p->rank, most < 16 ? most : 16);
    assert_true(gr_lora_scale(l, p, 1) == (float)(8.0 / (double)p->rank));
    narrow += most < 16;
  }
  assert_true(narrow > 0 && narrow < gr_lora_pair_count(l));
  gr_lora_free(l);
  gr_model_close(m);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(targets_mean_what_they_say),         cmocka_unit_test(groups_count_the_linears),
    cmocka_unit_test(wrong_options_are_refused_in_words), cmocka_unit_test(initial_values_depend_on_seed_and_name_alone),
    cmocka_unit_test(a_saved_adapter_comes_back),         cmocka_unit_test(a_rank_that_some_targets_cannot_have_is_less_there),
  };
  return cmocka_run_group_tests_name("lora", tests, NULL, NULL);
}
