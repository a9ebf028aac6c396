/* What the tests of the train room share: a golden model as a training step sees it, and small data. */
#ifndef GR_TESTS_TRAIN_SAMPLE_H
#define GR_TESTS_TRAIN_SAMPLE_H
#include "golden.h"
#include "train/step.h"

/* The golden model's packed row taken apart again: one sample a segment, as the trainer takes them. */
static inline gr_dataset *golden_samples(const golden *t)
{
  gr_error e = { 0 };
  gr_dataset *d = NULL;
  const int32_t *ids = golden_tensor(t, "ids")->data, *segments = golden_tensor(t, "segments")->data;
  const float *weights = golden_tensor(t, "weights")->data;
  for (size_t from = 0, to; from < t->n; from = to) {
    for (to = from; to < t->n && segments[to] == segments[from];) to++;
    float *shifted = gr_calloc(to - from, sizeof *shifted); /* golden row t weighs the prediction of t + 1 */
    assert_non_null(shifted);
    for (size_t i = from; i + 1 < to; i++) shifted[i + 1 - from] = weights[i];
    assert_ok(gr_dataset_add_ids(&d, ids + from, shifted, (int32_t)(to - from), &e), &e);
    gr_free(shifted);
  }
  return d;
}

/* A deterministic sequence of n ids below vocab; two of three tokens are trained, some of them with half weight. */
static inline void add_sequence(gr_dataset **d, int32_t n, int32_t vocab, uint32_t seed)
{
  gr_error e = { 0 };
  int32_t ids[512];
  float weights[512];
  assert_true(n <= 512);
  for (int32_t i = 0; i < n; i++) {
    seed = seed * 1664525u + 1013904223u;
    ids[i] = (int32_t)((seed >> 8) % (uint32_t)vocab);
    weights[i] = i % 3 == 0 ? 0.f : i % 7 == 1 ? 0.5f : 1.f;
  }
  assert_ok(gr_dataset_add_ids(d, ids, weights, n, &e), &e);
}

static inline void fill_values(gr_lora *l, uint32_t seed)
{
  float *values = gr_lora_values(l);
  for (size_t i = 0; i < gr_lora_parameters(l); i++) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = ((float)(seed >> 8) / 16777216.f - 0.5f) * 0.2f;
  }
}

#endif
