/* A golden model of tests/golden, opened, with its adapter, inputs and a planned training step. */
#ifndef GR_TESTS_GOLDEN_H
#define GR_TESTS_GOLDEN_H
#include <math.h>

#include "base/alloc.h"
#include "check.h"
#include "graph/graph.h"
#include "model/model.h"

/* Dense models, and those with experts. */
#define GOLDEN_DENSE "llama", "llama-scaled", "qwen2", "qwen3", "llama-wide", "granite", "gemma3", "phi3", "mistral3"
#define GOLDEN_EXPERTS                                                                                                                     \
  "qwen3moe", "qwen3moe-fused", "qwen3moe-wide", "qwen2moe", "mixtral", "olmoe", "granitemoe", "granitemoe-shared", "gpt-oss",             \
      "gpt-oss-wide"

typedef struct golden {
  gr_model *model;
  gr_lora *lora;
  gr_gguf *expected;
  gr_model_graph mg;
  gr_plan *plan;
  gr_tensor *seed; /* [n] weights of the tokens: the gradient that arrives at nll */
  gr_tensor **grad_a, **grad_b;
  size_t n; /* tokens */
} golden;

static inline const gr_gguf_tensor *golden_tensor(const golden *t, const char *name)
{
  const gr_gguf_tensor *x = gr_gguf_tensor_find(t->expected, name);
  if (!x) fail_msg("the expected file lacks %s", name);
  return x;
}

static inline void golden_open(golden *t, const char *name)
{
  gr_error e = { 0 };
  char path[512];
  *t = (golden){ 0 };
  snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/%s.gguf", name);
  assert_ok(gr_model_open(&t->model, path, &e), &e);
  snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/%s-lora.gguf", name);
  assert_ok(gr_lora_load(&t->lora, t->model, path, &e), &e);
  snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/%s-expected.gguf", name);
  assert_ok(gr_gguf_open(&t->expected, path, &e), &e);
  t->n = (size_t)golden_tensor(t, "ids")->ne[0];
}

/* Plans logits of every token, nll, and the gradient of sum(weights * nll). options: backends and the like. */
static inline void golden_plan(golden *t, const gr_plan_options *options)
{
  gr_error e = { 0 };
  const gr_adapter_use use = { t->lora, 1, true };
  const gr_build build = { .tokens = (int64_t)t->n, .outputs = (int64_t)t->n, .loss = true, .adapters = &use, .n_adapters = 1 };
  assert_ok(gr_model_build(t->model, &build, &t->mg, &e), &e);
  size_t pairs = t->mg.n_pairs;
  gr_tensor **wrt = gr_calloc(4 * pairs + 2, sizeof(gr_tensor *)), **grads = wrt + 2 * pairs;
  assert_non_null(wrt);
  memcpy(wrt, t->mg.a, pairs * sizeof *wrt);
  memcpy(wrt + pairs, t->mg.b, pairs * sizeof *wrt);
  t->seed = gr_graph_leaf(t->mg.graph, GR_LEAF_INPUT, GR_F32, t->mg.nll->ne, t->mg.nll->dim, NULL, "weights");
  assert_ok(gr_graph_backward(t->mg.graph, t->mg.nll, t->seed, wrt, 2 * pairs, grads, &e), &e);
  for (size_t i = 0; i < 2 * pairs; i++) assert_non_null(grads[i]);
  grads[2 * pairs] = t->mg.nll;
  grads[2 * pairs + 1] = t->mg.logits;
  assert_ok(gr_plan_create(&t->plan, t->mg.graph, grads, 2 * pairs + 2, options, &e), &e);
  t->grad_a = gr_calloc(2 * pairs, sizeof(gr_tensor *));
  assert_non_null(t->grad_a);
  t->grad_b = t->grad_a + pairs;
  memcpy(t->grad_a, grads, 2 * pairs * sizeof *grads);
  gr_free(wrt);
  assert_ok(gr_plan_allocate(t->plan, &e), &e);
}

static inline void golden_write(golden *t, const gr_tensor *to, const void *data, size_t bytes)
{
  gr_error e = { 0 };
  assert_ok(gr_plan_write(t->plan, to, data, bytes, &e), &e);
}

static inline void golden_run(golden *t)
{
  gr_error e = { 0 };
  size_t words = t->n * sizeof(int32_t);
  const int32_t *positions = golden_tensor(t, "positions")->data;
  float *room = gr_alloc(gr_model_position_floats(t->model) * t->n * sizeof(float));
  int32_t *rows = gr_alloc(words);
  assert_true(room && rows);
  for (size_t i = 0; i < t->n; i++) rows[i] = (int32_t)i;
  golden_write(t, t->mg.ids, golden_tensor(t, "ids")->data, words);
  assert_ok(gr_model_write_positions(t->model, &t->mg, t->plan, positions, t->n, room, &e), &e);
  golden_write(t, t->mg.segments, golden_tensor(t, "segments")->data, words);
  golden_write(t, t->mg.labels, golden_tensor(t, "labels")->data, words);
  golden_write(t, t->mg.output_rows, rows, words);
  golden_write(t, t->seed, golden_tensor(t, "weights")->data, words);
  gr_free(room);
  gr_free(rows);
  assert_ok(gr_plan_run_all(t->plan, &e), &e);
}

static inline double golden_weight_sum(const golden *t)
{
  const float *w = golden_tensor(t, "weights")->data;
  double sum = 0;
  for (size_t i = 0; i < t->n; i++) sum += (double)w[i];
  return sum;
}

/* Reads a planned tensor into fresh memory. */
static inline float *golden_read(golden *t, const gr_tensor *x, size_t *count)
{
  gr_error e = { 0 };
  *count = (size_t)(x->ne[0] * x->ne[1] * x->ne[2] * x->ne[3]);
  float *data = gr_alloc(*count * sizeof(float));
  assert_non_null(data);
  assert_ok(gr_plan_read(t->plan, x, data, *count * sizeof(float), &e), &e);
  return data;
}

/* The two errors of C4: norm(a-b)/norm(b) and max|a-b| / rms(b). Infinite when anything is not finite or b is all zero. */
typedef struct golden_diff {
  double norm, max;
} golden_diff;

/* a is scale * got, b is want. */
static inline golden_diff golden_compare(const float *got, const float *want, size_t n, double scale)
{
  double wrong = 0, size = 0, most = 0;
  for (size_t i = 0; i < n; i++) {
    double d = scale * (double)got[i] - (double)want[i];
    wrong += d * d;
    size += (double)want[i] * (double)want[i];
    most = fmax(most, fabs(d));
  }
  if (!(size > 0 && isfinite(wrong))) return (golden_diff){ HUGE_VAL, HUGE_VAL };
  return (golden_diff){ sqrt(wrong / size), most / sqrt(size / (double)n) };
}

static inline double golden_error(const float *got, const float *want, size_t n, double scale)
{
  return golden_compare(got, want, n, scale).norm;
}

static inline void golden_close(golden *t)
{
  gr_plan_free(t->plan);
  gr_model_graph_free(&t->mg);
  gr_free(t->grad_a);
  gr_lora_free(t->lora);
  gr_gguf_close(t->expected);
  gr_model_close(t->model);
}

#endif
