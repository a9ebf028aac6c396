/* Generation takes the same graph through a cache: every golden model and adapter, fed a few tokens, then one at a time, gives PyTorch's
 * logits; contexts are longer than the windows of the models that slide. */
#include "altered.h"
#include "failing_alloc.h"
#include "golden.h"
#include "infer/score.h"
#include "train_sample.h"

static const char *const models[] = { GOLDEN_DENSE, GOLDEN_EXPERTS };
enum { MODELS = sizeof models / sizeof *models };

/* Logits of the tokens of the first sample, [vocab] each. cut[i]: how many tokens the i-th run takes; beyond, one at a time. */
static float *decode(golden *t, gr_backend *b, int32_t n, const int32_t *cut, int cuts)
{
  gr_error e = { 0 };
  gr_session *s = NULL;
  const gr_adapter_use use = { t->lora, 1, false };
  const int32_t *ids = golden_tensor(t, "ids")->data;
  size_t vocab = (size_t)gr_model_hparams(t->model)->vocab;
  const gr_session_options o = {
    .context = n, .batch = n, .outputs = n, .adapters = &use, .n_adapters = 1, .backends = &b, .n_backends = 1
  };
  float *logits = gr_calloc((size_t)n * vocab, sizeof *logits);
  assert_non_null(logits);
  assert_ok(gr_session_open(&s, t->model, &o, &e), &e);
  for (int32_t at = 0, i = 0; at < n; i++) {
    int32_t take = i < cuts ? cut[i] : 1;
    if (take > n - at) take = n - at;
    assert_ok(gr_session_run(s, ids + at, take, logits + (size_t)at * vocab, take, &e), &e);
    at += take;
  }
  gr_session_close(s);
  return logits;
}

static void check_model(const char *name, gr_backend *b)
{
  golden t;
  golden_open(&t, name);
  const int32_t *segments = golden_tensor(&t, "segments")->data;
  int32_t n = 0;
  while ((size_t)n < t.n && segments[n] == 0) n++;
  const gr_hparams *hp = gr_model_hparams(t.model);
  assert_true(n > 4 && n > hp->window);
  size_t count = (size_t)n * (size_t)hp->vocab;
  const int32_t prompt[] = { 5, 3 };
  float *whole = decode(&t, b, n, &n, 1), *single = decode(&t, b, n, prompt, 2);
  double a = golden_error(whole, golden_tensor(&t, "logits")->data, count, 1), c = golden_error(single, whole, count, 1);
  if (!(a <= 1e-4)) fail_msg("%s: logits are off PyTorch's by %.2e", name, a);
  if (!(c <= 1e-6)) fail_msg("%s: a token at a time, logits are off by %.2e", name, c);
  print_message("# %s: %d tokens within %.1e of PyTorch, one at a time within %.1e of all at once\n", name, n, a, c);
  gr_free(whole);
  gr_free(single);
  golden_close(&t);
}

static void cached_logits_are_pytorchs(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_backend *cpu = NULL;
  assert_ok(gr_backend_open(&cpu, "cpu", NULL, &e), &e);
  for (int i = 0; i < MODELS; i++) check_model(models[i], cpu);
  gr_backend_close(cpu);
}

/* nll of one sequence by the loss, whose head never stores logits, and by the logits of generation. */
static void both_heads(const gr_model *m, gr_backend *b, float *loss, float *generation, int32_t n)
{
  gr_error e = { 0 };
  gr_session *s = NULL;
  gr_step *step = NULL;
  gr_dataset *d = NULL;
  const size_t first = 0;
  int32_t vocab = gr_model_hparams(m)->vocab;
  add_sequence(&d, n, vocab, 21);
  const gr_session_options so = { .context = n, .outputs = GR_SCORE_ROWS, .backends = &b, .n_backends = 1 };
  const gr_step_options o = { .tokens = n, .backends = &b, .n_backends = 1 };
  assert_ok(gr_session_open(&s, m, &so, &e), &e);
  assert_ok(gr_score(s, vocab, gr_dataset_at(d, 0)->ids, n, generation, NULL, &e), &e);
  assert_ok(gr_step_plan(&step, m, NULL, &o, &e), &e);
  assert_ok(gr_step_run(step, d, &first, 1, 0, loss, NULL, NULL, &e), &e);
  gr_step_free(step);
  gr_session_close(s);
  gr_dataset_free(d);
}

/* The same number for every other word. */
static void put_bias(altered *a, float value)
{
  static float bias[112];
  for (size_t i = 0; i < sizeof bias / sizeof *bias; i += 2) bias[i] = value;
  gr_gguf_add_data(a->writer, "output.bias", GR_F32, 1, (const int64_t[]){ sizeof bias / sizeof *bias }, bias);
}

/* Scales, softcaps and the bias of the head are the same in training and in generation; and each does something. */
static void the_loss_and_generation_have_one_head(void **state)
{
  (void)state;
  enum { N = 30 };
  static const struct {
    const char *model, *key;
    float value;
  } cases[] = {
    { "gemma3", NULL, 0 },        { "gemma3", "gemma3.final_logit_softcapping", 2 },      { "gemma3", "gemma3.attn_logit_softcapping", 1 },
    { "granite", NULL, 0 },       { "granite", "granite.final_logit_softcapping", 1.5f }, { "llama", NULL, 0 },
    { "llama", "output.bias", 1 }
  };
  gr_error e = { 0 };
  gr_backend *cpu = NULL;
  float before[N + 1] = { 0 };
  assert_ok(gr_backend_open(&cpu, "cpu", NULL, &e), &e);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    altered a;
    gr_model *m = NULL;
    float loss[N + 1], generation[N + 1];
    altered_open(&a, cases[i].model);
    if (cases[i].key && strcmp(cases[i].key, "output.bias") == 0) put_bias(&a, cases[i].value);
    else if (cases[i].key) gr_gguf_put_f32(a.writer, cases[i].key, cases[i].value);
    assert_ok(altered_model(&a, &m, &e), &e);
    both_heads(m, cpu, loss, generation, N);
    double error = golden_error(generation, loss + 1, N - 1, 1);
    if (!(error <= 1e-6)) fail_msg("%s, %s: the heads differ by %.2e", cases[i].model, cases[i].key ? cases[i].key : "as it is", error);
    if (cases[i].key) assert_true(golden_error(loss + 1, before + 1, N - 1, 1) > 1e-3);
    else memcpy(before, loss, sizeof before);
    gr_model_close(m);
    altered_close(&a);
  }
  gr_backend_close(cpu);
}

/* Whatever allocation of a session fails, what is said is which context did not fit. */
static void a_context_that_does_not_fit_is_told(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_backend *cpu = NULL;
  golden t;
  assert_ok(gr_backend_open(&cpu, "cpu", NULL, &e), &e);
  golden_open(&t, "llama");
  const gr_session_options o = { .context = 321, .backends = &cpu, .n_backends = 1 };
  gr_status status = GR_ERR_MEMORY;
  size_t n = 1;
  for (; status != GR_OK; n++) {
    gr_session *s = NULL;
    allocations.fail_at = allocations.seen + n;
    status = gr_session_open(&s, t.model, &o, &e);
    allocations.fail_at = 0;
    if (n > 1 && status != GR_OK && (status != GR_ERR_MEMORY || !strstr(e.text, "a context of 321 tokens")))
      fail_msg("allocation %zu: %s", n, e.text);
    gr_session_close(s);
  }
  assert_true(n > 10);
  golden_close(&t);
  gr_backend_close(cpu);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(cached_logits_are_pytorchs), cmocka_unit_test(a_context_that_does_not_fit_is_told),
                                      cmocka_unit_test(the_loss_and_generation_have_one_head) };
  return cmocka_run_group_tests_name("decode", tests, NULL, NULL);
}
