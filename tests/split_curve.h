/* The same training twice (C9): by the CPU alone, and by the CPU and the emulated GPU together. Golden model, adapter and samples, dropout
 * of 0.1 with seed 7, AdamW with decay and clipping as the golden curves have them, fifty steps.
 */
#ifndef GR_TESTS_SPLIT_CURVE_H
#define GR_TESTS_SPLIT_CURVE_H
#include "train_sample.h"

enum { CURVE_STEPS = 50 };

typedef struct curve {
  double loss[CURVE_STEPS + 1]; /* before each step, and after the last */
  float *first;                 /* gradient of the first step, in the layout of the adapter's values */
} curve;

/* Where a training runs: see gr_plan_options. */
typedef struct curve_on {
  gr_backend *const *backends;
  size_t n;
  size_t (*prefer)(void *ctx, const gr_node *node);
} curve_on;

static inline double curve_number(const golden *g, const char *key)
{
  gr_error e = { 0 };
  double v = 0;
  assert_ok(gr_gguf_f64(g->expected, key, GR_GGUF_REQUIRED, -1e30, 1e30, &v, &e), &e);
  return v;
}

static inline gr_dataset *curve_samples(const golden *g, int32_t longest)
{
  gr_error e = { 0 };
  gr_dataset *whole = golden_samples(g), *d = NULL;
  for (size_t i = 0; i < gr_dataset_count(whole); i++) {
    const gr_sample *x = gr_dataset_at(whole, i);
    assert_ok(gr_dataset_add_ids(&d, x->ids, x->weights, x->n < longest ? x->n : longest, &e), &e);
  }
  gr_dataset_free(whole);
  return d;
}

/* The adapter of g is trained on its two samples, cut to `longest` tokens; c->first is the caller's. */
static inline void curve_run(curve *c, golden *g, const curve_on *on, int32_t longest)
{
  gr_error e = { 0 };
  static const size_t both[2] = { 0, 1 };
  const gr_step_options o = { .tokens = (int32_t)g->n,
                              .train = true,
                              .dropout = 0.1f,
                              .seed = 7,
                              .backends = on->backends,
                              .n_backends = on->n,
                              .prefer = on->prefer,
                              .poison = true };
  const gr_adamw adamw = { curve_number(g, "golden.adamw.beta1"), curve_number(g, "golden.adamw.beta2"),
                           curve_number(g, "golden.adamw.eps"), curve_number(g, "golden.adamw.weight_decay") };
  double lr = curve_number(g, "golden.adamw.lr"), clip = curve_number(g, "golden.clip");
  size_t n = gr_lora_parameters(g->lora);
  float *m = gr_calloc(3 * n, sizeof *m), *v = m + n;
  gr_dataset *d = curve_samples(g, longest);
  gr_step *s = NULL;
  assert_non_null(m);
  assert_int_equal(gr_dataset_count(d), 2);
  assert_ok(gr_step_plan(&s, g->model, g->lora, &o, &e), &e);
  c->first = gr_alloc(n * sizeof *c->first);
  assert_non_null(c->first);
  for (uint64_t t = 0; t <= CURVE_STEPS; t++) {
    gr_step_clear(s);
    assert_ok(gr_step_run(s, d, both, 2, t, NULL, NULL, NULL, &e), &e);
    double weight = gr_step_sums_of(s)->weight, scale = 1 / weight, norm = gr_norm(gr_step_gradient(s), n, scale, NULL);
    c->loss[t] = gr_step_sums_of(s)->loss / weight;
    if (t == 0) memcpy(c->first, gr_step_gradient(s), n * sizeof *c->first);
    if (norm > clip) scale *= clip / (norm + 1e-6);
    gr_adamw_update(&adamw, gr_lora_values(g->lora), gr_step_gradient(s), m, v, n, scale, lr, t + 1, NULL);
  }
  gr_step_free(s);
  gr_dataset_free(d);
  gr_free(m);
}

/* How far two curves are apart. */
typedef struct curve_diff {
  double loss, last;    /* of the first step; the most of any step */
  golden_diff gradient; /* of the first step: the most of any tensor and of any expert's slice of it */
  char tensor[160];     /* where its norm is largest */
} curve_diff;

static inline void curve_slice(curve_diff *diff, const gr_lora_pair *p, char side, int64_t expert, const float *got, const float *want,
                               size_t n)
{
  bool none = true;
  for (size_t i = 0; i < n && none; i++) none = fabsf(want[i]) <= 0;
  if (none && p->experts > 1) { /* an expert that nobody chose */
    for (size_t i = 0; i < n; i++)
      if (!(fabsf(got[i]) <= 0)) fail_msg("%s, expert %d, which nobody chose, gets a gradient", p->name, (int)expert);
    return;
  }
  golden_diff d = golden_compare(got, want, n, 1);
  if (!(d.norm <= diff->gradient.norm)) {
    diff->gradient.norm = d.norm;
    snprintf(diff->tensor, sizeof diff->tensor, "%s %c, expert %d", p->name, side, (int)expert);
  }
  if (!(d.max <= diff->gradient.max)) diff->gradient.max = d.max;
}

static inline curve_diff curve_compare(const golden *g, const curve *got, const curve *want)
{
  curve_diff diff = { .loss = fabs(got->loss[0] - want->loss[0]) };
  for (int t = 0; t <= CURVE_STEPS; t++) {
    double d = fabs(got->loss[t] - want->loss[t]);
    if (!(d <= diff.last)) diff.last = d;
  }
  const float *a = got->first, *b = want->first;
  for (size_t i = 0; i < gr_lora_pair_count(g->lora); i++) {
    const gr_lora_pair *p = gr_lora_pair_at(g->lora, i);
    const size_t sizes[2] = { gr_lora_pair_a(p), gr_lora_pair_b(p) };
    for (int side = 0; side < 2; side++)
      for (int64_t k = 0; k < p->experts; k++) {
        size_t n = sizes[side] / (size_t)p->experts;
        curve_slice(&diff, p, "ab"[side], k, a, b, n);
        a += n, b += n;
      }
  }
  return diff;
}

/* Trains the golden model on both sets of backends, prints the curves side by side, and compares them. */
static inline curve_diff curve_both(const char *model, const curve_on *one, const curve_on *other, int32_t longest)
{
  golden a, b;
  curve want, got;
  golden_open(&a, model);
  golden_open(&b, model);
  curve_run(&want, &a, one, longest);
  curve_run(&got, &b, other, longest);
  curve_diff diff = curve_compare(&a, &got, &want);
  for (int t = 0; t <= CURVE_STEPS; t += 10) print_message("# %s, step %2d: %.9f %.9f\n", model, t, want.loss[t], got.loss[t]);
  print_message("# %s: first loss off by %.1e, first gradients by %.1e (%s) and an element by %.1e of the rms, fifty losses by %.1e\n",
                model, diff.loss, diff.gradient.norm, diff.tensor, diff.gradient.max, diff.last);
  if (!(want.loss[CURVE_STEPS] < 0.9 * want.loss[0])) fail_msg("%s has hardly trained: the curves say little", model);
  gr_free(want.first);
  gr_free(got.first);
  golden_close(&a);
  golden_close(&b);
  return diff;
}

/* What two curves may be apart by. */
typedef struct curve_tolerance {
  double loss, last;
  golden_diff gradient;
} curve_tolerance;

/* From both sides. The worst honest differences, over all golden models, beside the least that a gradient staged through half makes
 * (emu_out_prod_half): first loss 2.8e-8 and 3.8e-5; first gradients 4.3e-6 and 1.9e-3, an element 1.5e-5 and 1.2e-2 of the rms; fifty
 * losses 2.9e-4 and 3.6e-3. */
static const curve_tolerance curve_f32 = { .loss = 1e-6, .last = 1e-3, .gradient = { 1e-5, 2e-4 } };
/* Two roundings of operands to eight bits, through whole models and trainings: seen 5.6e-3, 2.5e-2 and 0.19, and 7.5e-2 nats after fifty
 * steps; operands with four bits less would move the gradients by 0.4. */
static const curve_tolerance curve_bf16 = { .loss = 2e-2, .last = 0.2, .gradient = { 5e-2, 0.4 } };

static inline void curve_hold(const char *model, curve_diff d, const curve_tolerance *t)
{
  if (!(d.loss <= t->loss)) fail_msg("%s: the first loss is off by %.2e, more than %.0e", model, d.loss, t->loss);
  if (!(d.gradient.norm <= t->gradient.norm))
    fail_msg("%s: %s: the first gradient is off by %.2e, more than %.0e", model, d.tensor, d.gradient.norm, t->gradient.norm);
  if (!(d.gradient.max <= t->gradient.max))
    fail_msg("%s: an element of the first gradients is off by %.2e of the rms, more than %.0e", model, d.gradient.max, t->gradient.max);
  if (!(d.last <= t->last)) fail_msg("%s: a loss of the curve is off by %.2e, more than %.0e", model, d.last, t->last);
}

#endif
