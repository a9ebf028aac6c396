/* Our inference held to what a real llama.cpp answered (tests/golden/llamacpp-*.json; tests/golden/README.md says how they were made). */
#ifndef GR_TESTS_LLAMACPP_H
#define GR_TESTS_LLAMACPP_H
#include <jansson.h>
#include <math.h>

#include "base/alloc.h"
#include "check.h"
#include "infer/sample.h"
#include "infer/session.h"

/* What a token's nll may differ by; and a choice whose margin is smaller may be another. The answers are llama.cpp's on the model decoded
 * to F32, so nothing but float rounding is between us: 4e-5 is the worst seen, and a wrong block layout is off by more than 0.1. */
#define LLAMACPP_TOLERANCE 0.002
/* Its GELU goes through a table of half precision: what we do, rounded so, is within 4e-4 of it; unrounded, within this. */
#define LLAMACPP_GELU_TOLERANCE 0.004

typedef struct judged {
  gr_backend *backend;
  gr_model *model;
  gr_lora *lora;
  gr_adapter_use use;
  int32_t vocab;
  double tolerance;
} judged;

static json_t *llamacpp_json(const char *path)
{
  json_error_t at;
  json_t *root = json_load_file(path, 0, &at);
  if (!root) fail_msg("%s:%d: %s", path, at.line, at.text);
  return root;
}

static void judged_open(judged *j, const char *model, const char *lora, double scale)
{
  gr_error e = { 0 };
  *j = (judged){ 0 };
  assert_ok(gr_backend_open(&j->backend, "cpu", NULL, &e), &e);
  assert_ok(gr_model_open(&j->model, model, &e), &e);
  if (lora) assert_ok(gr_lora_load(&j->lora, j->model, lora, &e), &e);
  j->use = (gr_adapter_use){ j->lora, (float)scale, false };
  j->vocab = gr_model_hparams(j->model)->vocab;
  j->tolerance = strcmp(gr_model_arch(j->model), "gemma3") == 0 ? LLAMACPP_GELU_TOLERANCE : LLAMACPP_TOLERANCE;
}

static void judged_close(judged *j)
{
  gr_lora_free(j->lora);
  gr_model_close(j->model);
  gr_backend_close(j->backend);
}

static gr_session *judged_session(const judged *j, int32_t context, int32_t outputs)
{
  gr_error e = { 0 };
  gr_session *s = NULL;
  const gr_session_options options = {
    .context = context, .outputs = outputs, .adapters = &j->use, .n_adapters = j->lora ? 1 : 0, .backends = &j->backend, .n_backends = 1
  };
  assert_ok(gr_session_open(&s, j->model, &options, &e), &e);
  return s;
}

static int32_t *ids_of(const json_t *array, int32_t *n)
{
  *n = (int32_t)json_array_size(array);
  int32_t *ids = gr_alloc((size_t)*n * sizeof *ids + 1);
  assert_non_null(ids);
  for (int32_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(array, (size_t)i));
  return ids;
}

static double number_at(const json_t *object, const char *key, int32_t i)
{
  return json_number_value(json_array_get(json_object_get(object, key), (size_t)i));
}

static double nll_of(const float *logits, int32_t vocab, int32_t id)
{
  double top = (double)logits[gr_argmax(logits, vocab)], sum = 0;
  for (int32_t v = 0; v < vocab; v++) sum += exp((double)logits[v] - top);
  return top + log(sum) - (double)logits[id];
}

/* Logits of every position of the ids, [vocab] each. */
static float *judged_logits(const judged *j, const int32_t *ids, int32_t n)
{
  gr_error e = { 0 };
  gr_session *s = judged_session(j, n, n);
  float *logits = gr_alloc((size_t)n * (size_t)j->vocab * sizeof *logits);
  assert_non_null(logits);
  assert_ok(gr_session_run(s, ids, n, logits, n, &e), &e);
  gr_session_close(s);
  return logits;
}

/* One {ids, nll, greedy, margin}: every token's nll, and the most likely token wherever llama.cpp is sure of it. Their mean holds to the
 * plain tolerance even where a token's does not, and so does each token against PyTorch where the record has its answers. Returns the worst
 * nll error. */
static double check_score(const judged *j, const char *name, const json_t *score)
{
  int32_t n, sure = 0;
  int32_t *ids = ids_of(json_object_get(score, "ids"), &n);
  assert_int_equal(json_array_size(json_object_get(score, "nll")), n - 1);
  assert_int_equal(json_array_size(json_object_get(score, "greedy")), n);
  float *logits = judged_logits(j, ids, n);
  double worst = 0, exact = 0, sum = 0;
  for (int32_t i = 0; i < n; i++) {
    const float *row = logits + (size_t)i * (size_t)j->vocab;
    if (number_at(score, "margin", i) >= j->tolerance) {
      int32_t want = (int32_t)number_at(score, "greedy", i), got = gr_argmax(row, j->vocab);
      if (got != want) fail_msg("%s: after token %d we say %d, llama.cpp %d", name, i, got, want);
      sure++;
    }
    if (i + 1 == n) break;
    double error = nll_of(row, j->vocab, ids[i + 1]) - number_at(score, "nll", i);
    if (!(fabs(error) <= j->tolerance)) fail_msg("%s: nll of token %d is off by %.4f", name, i + 1, error);
    worst = fmax(worst, fabs(error));
    sum += error;
    if (!json_object_get(score, "pytorch")) continue;
    error = nll_of(row, j->vocab, ids[i + 1]) - number_at(score, "pytorch", i);
    if (!(fabs(error) <= LLAMACPP_TOLERANCE)) fail_msg("%s: nll of token %d is off by %.4f from PyTorch's", name, i + 1, error);
    exact = fmax(exact, fabs(error));
  }
  assert_true(sure > 0);
  if (exact > 0) print_message("# %s: nll within %.1e of PyTorch\n", name, exact);
  if (n > 1 && !(fabs(sum / (n - 1)) <= LLAMACPP_TOLERANCE)) fail_msg("%s: the mean nll is off by %.4f", name, sum / (n - 1));
  gr_free(logits);
  gr_free(ids);
  return worst;
}

/* One {prompt_tokens, ids, margin}: the same greedy choices, a token at a time through the cache, until llama.cpp is unsure. */
static void check_continuation(const judged *j, const char *name, const json_t *run)
{
  gr_error e = { 0 };
  int32_t n, start = (int32_t)json_integer_value(json_object_get(run, "prompt_tokens")), at = start;
  int32_t *ids = ids_of(json_object_get(run, "ids"), &n);
  float *logits = gr_alloc((size_t)j->vocab * sizeof *logits);
  assert_true(logits && start > 0 && start < n);
  gr_session *s = judged_session(j, n, 1);
  assert_ok(gr_session_run(s, ids, start, logits, 1, &e), &e);
  for (; at < n && number_at(run, "margin", at - start) >= j->tolerance; at++) {
    int32_t got = gr_argmax(logits, j->vocab);
    if (got != ids[at]) fail_msg("%s: token %d of the continuation is %d, llama.cpp says %d", name, at - start, got, ids[at]);
    assert_ok(gr_session_run(s, ids + at, 1, logits, 1, &e), &e);
  }
  assert_true(at > start);
  gr_session_close(s);
  gr_free(logits);
  gr_free(ids);
}

static double check_scores(const judged *j, const char *name, const json_t *scores)
{
  double worst = 0;
  assert_true(json_array_size(scores) > 0);
  for (size_t i = 0; i < json_array_size(scores); i++) worst = fmax(worst, check_score(j, name, json_array_get(scores, i)));
  return worst;
}

/* A whole llamacpp-NAME.json. */
static void check_record(const char *name, const char *model, const char *lora)
{
  char path[512];
  judged j;
  snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/llamacpp-%s.json", name);
  json_t *record = llamacpp_json(path), *runs = json_object_get(record, "generate");
  judged_open(&j, model, lora, 1);
  double worst = check_scores(&j, name, json_object_get(record, "score"));
  print_message("# %s: nll within %.1e of llama.cpp\n", name, worst);
  assert_true(json_array_size(runs) > 0);
  for (size_t i = 0; i < json_array_size(runs); i++) check_continuation(&j, name, json_array_get(runs, i));
  judged_close(&j);
  json_decref(record);
}

/* The adapter's move of each token's nll, ours and llama.cpp's: the same within the tolerance, and 20 tolerances a token on average, or
 * nothing was tested. */
static inline void check_move(const char *name, const char *model, const char *lora)
{
  char path[2][512];
  json_t *files[2], *records[2];
  judged j[2];
  snprintf(path[0], sizeof path[0], GR_SOURCE_DIR "/tests/golden/llamacpp-%s.json", name);
  snprintf(path[1], sizeof path[1], GR_SOURCE_DIR "/tests/golden/llamacpp-%s-lora.json", name);
  for (int k = 0; k < 2; k++) {
    files[k] = llamacpp_json(path[k]);
    records[k] = json_object_get(files[k], "score");
    judged_open(&j[k], model, k ? lora : NULL, 1);
  }
  assert_int_equal(json_array_size(records[0]), json_array_size(records[1]));
  for (size_t i = 0; i < json_array_size(records[1]); i++) {
    const json_t *with = json_array_get(records[1], i), *bare = json_array_get(records[0], i);
    int32_t n;
    int32_t *ids = ids_of(json_object_get(with, "ids"), &n);
    assert_true(json_equal(json_object_get(with, "ids"), json_object_get(bare, "ids")));
    float *ours[2] = { judged_logits(&j[0], ids, n), judged_logits(&j[1], ids, n) };
    double worst = 0, size = 0;
    for (int32_t t = 0; t + 1 < n; t++) {
      size_t row = (size_t)t * (size_t)j[0].vocab;
      double move = nll_of(ours[1] + row, j[0].vocab, ids[t + 1]) - nll_of(ours[0] + row, j[0].vocab, ids[t + 1]);
      double theirs = number_at(with, "nll", t) - number_at(bare, "nll", t);
      worst = fmax(worst, fabs(move - theirs));
      size += fabs(theirs) / (n - 1);
    }
    print_message("# %s: the adapter moves the nll by %.3f a token, as in llama.cpp within %.1e\n", name, size, worst);
    assert_true(worst <= LLAMACPP_TOLERANCE && size >= 20 * LLAMACPP_TOLERANCE);
    gr_free(ours[0]);
    gr_free(ours[1]);
    gr_free(ids);
  }
  for (int k = 0; k < 2; k++) judged_close(&j[k]), json_decref(files[k]);
}

/* Path of a model that `tools/fetch-model NAME` has fetched; NULL without it. */
static inline const char *fetched_model(const char *name, char *path, size_t n)
{
  const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
  if (cache && *cache) snprintf(path, n, "%s/graft/models/%s.gguf", cache, name);
  else snprintf(path, n, "%s/.cache/graft/models/%s.gguf", home ? home : "", name);
  return access(path, R_OK) == 0 ? path : NULL;
}

#endif
