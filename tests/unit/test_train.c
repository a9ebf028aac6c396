/* The training step's promises, the optimizer against PyTorch's curves, evaluation. */
#include "train/heldout.h"
#include "train_sample.h"

static const char *const models[] = { GOLDEN_DENSE, GOLDEN_EXPERTS };
enum { MODELS = sizeof models / sizeof *models };

static gr_precision precision; /* of the rigs that are opened */

/* A model, its adapter with values far from 0, and a CPU backend of some threads. */
struct rig {
  golden g;
  gr_pool *pool;
  gr_backend *backend;
};

static void rig_open(struct rig *r, const char *model, int threads)
{
  gr_error e = { 0 };
  golden_open(&r->g, model);
  assert_ok(gr_pool_create(&r->pool, threads, &e), &e);
  assert_ok(gr_backend_open(&r->backend, "cpu", r->pool, &e), &e);
  assert_ok(gr_backend_use_precision(r->backend, precision, &e), &e);
}

static void rig_close(struct rig *r)
{
  golden_close(&r->g);
  gr_backend_close(r->backend);
  gr_pool_free(r->pool);
}

static gr_step *rig_step(struct rig *r, int32_t tokens, bool train, bool recompute, float dropout)
{
  gr_error e = { 0 };
  gr_step *s = NULL;
  uint8_t layers[64];
  memset(layers, recompute, sizeof layers);
  const gr_step_options o = { .tokens = tokens,
                              .train = train,
                              .dropout = dropout,
                              .seed = 7,
                              .recompute = train ? layers : NULL,
                              .backends = &r->backend,
                              .n_backends = 1,
                              .poison = true };
  assert_ok(gr_step_plan(&s, r->g.model, r->g.lora, &o, &e), &e);
  return s;
}

static void run(gr_step *s, const gr_dataset *d, const size_t *indices, size_t n, uint64_t step, float *nll)
{
  gr_error e = { 0 };
  assert_ok(gr_step_run(s, d, indices, n, step, nll, NULL, NULL, &e), &e);
}

static float *copy_gradient(const struct rig *r, const gr_step *s)
{
  size_t n = gr_lora_parameters(r->g.lora);
  float *g = gr_alloc(n * sizeof *g);
  assert_non_null(g);
  memcpy(g, gr_step_gradient(s), n * sizeof *g);
  return g;
}

/* ---- the optimizer against PyTorch ---- */

static double golden_number(const golden *g, const char *key)
{
  gr_error e = { 0 };
  double v = 0;
  assert_ok(gr_gguf_f64(g->expected, key, GR_GGUF_REQUIRED, -1e30, 1e30, &v, &e), &e);
  return v;
}

static double norm_of(const float *x, size_t n) { return gr_norm(x, n, 1, NULL); }

static void check_final_norms(const golden *g)
{
  for (size_t i = 0; i < gr_lora_pair_count(g->lora); i++) {
    const gr_lora_pair *p = gr_lora_pair_at(g->lora, i);
    const float *values[2] = { p->a, p->b };
    const size_t sizes[2] = { gr_lora_pair_a(p), gr_lora_pair_b(p) };
    for (int k = 0; k < 2; k++) {
      char name[160];
      snprintf(name, sizeof name, "final.%s.lora_%c", p->name, "ab"[k]);
      double want = (double)*(const float *)golden_tensor(g, name)->data, got = norm_of(values[k], sizes[k]);
      if (!(fabs(got - want) <= 1e-3 * want)) fail_msg("%s is %.6f, PyTorch's %.6f", name, got, want);
    }
  }
}

/* Twenty steps of AdamW with decay and clipping on one batch. */
static double check_curve(const char *model)
{
  struct rig r;
  rig_open(&r, model, 1);
  golden *g = &r.g;
  gr_dataset *d = golden_samples(g);
  size_t n = gr_lora_parameters(g->lora), all[8];
  assert_true(gr_dataset_count(d) == 2);
  for (size_t i = 0; i < 2; i++) all[i] = i;
  const gr_adamw adamw = { golden_number(g, "golden.adamw.beta1"), golden_number(g, "golden.adamw.beta2"),
                           golden_number(g, "golden.adamw.eps"), golden_number(g, "golden.adamw.weight_decay") };
  assert_true(adamw.weight_decay > 0);
  double lr = golden_number(g, "golden.adamw.lr"), clip = golden_number(g, "golden.clip"), worst = 0;
  const float *losses = golden_tensor(g, "curve.loss")->data, *norms = golden_tensor(g, "curve.grad_norm")->data;
  float *m = gr_calloc(2 * n, sizeof *m), *v = m + n;
  gr_step *s = rig_step(&r, (int32_t)g->n, true, false, 0);
  bool clipped = false;
  for (uint64_t t = 0; t <= 20; t++) {
    gr_step_clear(s);
    run(s, d, all, 2, t, NULL);
    double weight = gr_step_sums_of(s)->weight, loss = gr_step_sums_of(s)->loss / weight, scale = 1 / weight;
    double want = t < 20 ? (double)losses[t] : (double)*(const float *)golden_tensor(g, "curve.last_loss")->data;
    worst = fmax(worst, fabs(loss - want));
    if (!(fabs(loss - want) <= 1e-3)) fail_msg("%s: loss of step %d is %.6f, PyTorch's %.6f", model, (int)t, loss, want);
    if (t == 20) break;
    double norm = gr_norm(gr_step_gradient(s), n, scale, NULL);
    if (!(fabs(norm - (double)norms[t]) <= 1e-3 * (double)norms[t]))
      fail_msg("%s: gradient norm of step %d is %.6f, PyTorch's %.6f", model, (int)t, norm, (double)norms[t]);
    if (norm > clip) scale *= clip / (norm + 1e-6), clipped = true;
    gr_adamw_update(&adamw, gr_lora_values(g->lora), gr_step_gradient(s), m, v, n, scale, lr, t + 1, NULL);
  }
  assert_true(clipped);
  check_final_norms(g);
  gr_step_free(s);
  gr_free(m);
  gr_dataset_free(d);
  rig_close(&r);
  return worst;
}

static void adamw_curves_are_pytorchs(void **state)
{
  (void)state;
  for (int i = 0; i < MODELS; i++) print_message("# %s: twenty losses within %.1e of PyTorch's\n", models[i], check_curve(models[i]));
}

static void schedules_hit_their_ends(void **state)
{
  (void)state;
  for (int s = 0; s <= GR_SCHEDULE_CONSTANT; s++) {
    assert_float_equal(gr_schedule_rate((gr_schedule)s, 1, 0.1, 4, 20, 0), 0.25, 1e-12);
    assert_float_equal(gr_schedule_rate((gr_schedule)s, 1, 0.1, 4, 20, 3), 1, 1e-12);
    assert_float_equal(gr_schedule_rate((gr_schedule)s, 1, 0.1, 4, 20, 4), 1, 1e-12);
    for (uint64_t t = 4; t < 20; t++)
      assert_true(gr_schedule_rate((gr_schedule)s, 1, 0.1, 4, 20, t + 1) <= gr_schedule_rate((gr_schedule)s, 1, 0.1, 4, 20, t));
    assert_float_equal(gr_schedule_rate((gr_schedule)s, 1, 0.1, 4, 20, 20), s == GR_SCHEDULE_CONSTANT ? 1 : 0.1, 1e-12);
    assert_float_equal(gr_schedule_rate((gr_schedule)s, 1, 0.1, 0, 20, 0), 1, 1e-12);
  }
  assert_float_equal(gr_schedule_rate(GR_SCHEDULE_COSINE, 1, 0, 0, 20, 10), 0.5, 1e-12);
  assert_float_equal(gr_schedule_rate(GR_SCHEDULE_LINEAR, 1, 0, 0, 20, 5), 0.75, 1e-12);
}

/* ---- promises of the step ---- */

static const int32_t lengths[8] = { 23, 40, 7, 31, 17, 2, 29, 36 };

static gr_dataset *eight_samples(const golden *g)
{
  gr_dataset *d = NULL;
  for (uint32_t i = 0; i < 8; i++) add_sequence(&d, lengths[i], gr_model_hparams(g->model)->vocab, 77 + i);
  return d;
}

/* Sum and gradient of the eight samples, `at_once` of them a run. Returns the gradient. */
static float *in_pieces(struct rig *r, const gr_dataset *d, size_t at_once, bool recompute, float dropout, double *loss)
{
  static const size_t order[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
  int32_t most = 0;
  for (size_t i = 0; i < 8; i += at_once) {
    int32_t sum = 0;
    for (size_t k = i; k < i + at_once && k < 8; k++) sum += lengths[k];
    if (sum > most) most = sum;
  }
  gr_step *s = rig_step(r, most, true, recompute, dropout);
  gr_step_clear(s);
  for (size_t i = 0; i < 8; i += at_once) run(s, d, order + i, i + at_once > 8 ? 8 - i : at_once, 3, NULL);
  *loss = gr_step_sums_of(s)->loss / gr_step_sums_of(s)->weight;
  float *g = copy_gradient(r, s);
  gr_step_free(s);
  return g;
}

/* Promise 7: only the order of float additions differs. 1e-6 relative is eight times the worst seen; a mean of means is off by 1e-1
 * here (the samples' lengths differ), and so is a gradient that forgets one run. */
static void micro_batches_make_the_same_step(void **state)
{
  (void)state;
  for (int i = 0; i < MODELS; i++) {
    struct rig r;
    rig_open(&r, models[i], 1);
    fill_values(r.g.lora, 5);
    gr_dataset *d = eight_samples(&r.g);
    size_t n = gr_lora_parameters(r.g.lora);
    static const size_t pieces[] = { 8, 1, 3, 4 };
    double loss[4], worst = 0;
    float *g[4];
    for (int k = 0; k < 4; k++) g[k] = in_pieces(&r, d, pieces[k], false, 0.1f, &loss[k]);
    for (int k = 1; k < 4; k++) {
      double error = golden_error(g[k], g[0], n, 1);
      worst = fmax(worst, error);
      if (!(error <= 1e-6)) fail_msg("%s: %zu at once: the gradient is off by %.2e", models[i], pieces[k], error);
      assert_true(fabs(loss[k] - loss[0]) <= 1e-12 * loss[0]); /* each nll has the same bits, and they are summed in double */
    }
    print_message("# %s: micro-batches differ by %.1e\n", models[i], worst);
    for (int k = 0; k < 4; k++) gr_free(g[k]);
    gr_dataset_free(d);
    rig_close(&r);
  }
}

static void threads_and_recompute_leave_the_bits(void **state)
{
  (void)state;
  static const int threads[] = { 1, 2, 7 };
  for (int i = 0; i < MODELS; i++) {
    float *first = NULL;
    double first_loss = 0;
    for (int k = 0; k < 6; k++) {
      struct rig r;
      rig_open(&r, models[i], threads[k % 3]);
      fill_values(r.g.lora, 5);
      gr_dataset *d = eight_samples(&r.g);
      size_t n = gr_lora_parameters(r.g.lora);
      double loss;
      float *g = in_pieces(&r, d, 4, k >= 3, 0.1f, &loss);
      if (!first) {
        first = g;
        first_loss = loss;
        assert_true(norm_of(g, n) > 0);
      } else {
        if (memcmp(g, first, n * sizeof *g) != 0 || memcmp(&loss, &first_loss, sizeof loss) != 0)
          fail_msg("%s: other bits with %d threads%s", models[i], threads[k % 3], k >= 3 ? " and recompute" : "");
        gr_free(g);
      }
      gr_dataset_free(d);
      rig_close(&r);
    }
    gr_free(first);
  }
}

/* The nll of each sample alone, of all of them packed, and packed behind others: the same bits, in training and evaluation. */
static void a_samples_nll_has_the_same_bits_packed_or_alone(void **state)
{
  (void)state;
  for (int i = 0; i < MODELS; i++) {
    struct rig r;
    rig_open(&r, models[i], 2);
    gr_dataset *d = eight_samples(&r.g);
    static const size_t orders[2][8] = { { 0, 1, 2, 3, 4, 5, 6, 7 }, { 6, 3, 7, 5, 1, 0, 4, 2 } };
    float packed[2][200], alone[40];
    int32_t total = 0;
    for (int k = 0; k < 8; k++) total += lengths[k];
    gr_step *wide = rig_step(&r, total, false, false, 0), *narrow = rig_step(&r, 40, false, false, 0);
    for (int o = 0; o < 2; o++) run(wide, d, orders[o], 8, 0, packed[o]);
    for (size_t k = 0; k < 8; k++) {
      run(narrow, d, &k, 1, 0, alone);
      for (int o = 0; o < 2; o++) {
        size_t at = 0;
        for (size_t j = 0; orders[o][j] != k; j++) at += (size_t)lengths[orders[o][j]];
        if (memcmp(packed[o] + at, alone, (size_t)lengths[k] * sizeof *alone) != 0)
          fail_msg("%s: sample %zu differs when packed", models[i], k);
      }
    }
    gr_step_free(wide);
    gr_step_free(narrow);
    gr_dataset_free(d);
    rig_close(&r);
  }
}

/* Both promises hold where operands are rounded: of the golden models that are stored quantized. */
static void in_bf16_too(void **state)
{
  precision = GR_PRECISION_BF16;
  a_samples_nll_has_the_same_bits_packed_or_alone(state);
  threads_and_recompute_leave_the_bits(state);
  precision = GR_PRECISION_F32;
}

/* Twelve samples of 150 tokens, two sets of neighbours, and one of 200, which alone is trained when it is to be judged by its gradient. */
static gr_dataset *neighbours(int32_t vocab, bool last_only)
{
  gr_error e = { 0 };
  gr_dataset *d = NULL;
  for (uint32_t i = 0; i < 12; i++) add_sequence(&d, 150, vocab, 1000 + i);
  add_sequence(&d, 200, vocab, 5);
  if (!last_only) return d;
  gr_dataset *masked = NULL;
  const float none[150] = { 0 };
  for (size_t i = 0; i < 12; i++) assert_ok(gr_dataset_add_ids(&masked, gr_dataset_at(d, i)->ids, none, 150, &e), &e);
  const gr_sample *last = gr_dataset_at(d, 12);
  assert_ok(gr_dataset_add_ids(&masked, last->ids, last->weights, last->n, &e), &e);
  gr_dataset_free(d);
  return masked;
}

/* What stands before a sample in a long window does not exist for it: other neighbours, or none, and its nll has the same bits. So
 * has its gradient with other neighbours; alone, it is the same to the order of additions. */
static void a_long_windows_last_sample_sees_no_other(void **state)
{
  (void)state;
  struct rig r;
  rig_open(&r, "qwen3", 2);
  fill_values(r.g.lora, 9);
  int32_t vocab = gr_model_hparams(r.g.model)->vocab;
  gr_dataset *d = neighbours(vocab, false);
  static const size_t orders[3][7] = { { 0, 1, 2, 3, 4, 5, 12 }, { 6, 7, 8, 9, 10, 11, 12 }, { 12 } }, counts[3] = { 7, 7, 1 };
  float nll[2][1100], *gradients[3];
  gr_step *s = rig_step(&r, 1100, false, false, 0);
  for (int o = 0; o < 2; o++) run(s, d, orders[o], 7, 0, nll[o]);
  assert_memory_equal(nll[0] + 900, nll[1] + 900, 200 * sizeof(float));
  assert_true(memcmp(nll[0], nll[1], 900 * sizeof(float)) != 0);
  run(s, d, orders[2], 1, 0, nll[1]);
  assert_memory_equal(nll[0] + 900, nll[1], 200 * sizeof(float));
  gr_step_free(s);
  gr_dataset_free(d);
  d = neighbours(vocab, true);
  s = rig_step(&r, 1100, true, false, 0);
  size_t n = gr_lora_parameters(r.g.lora);
  for (int o = 0; o < 3; o++) {
    gr_step_clear(s);
    run(s, d, orders[o], counts[o], 0, NULL);
    gradients[o] = copy_gradient(&r, s);
  }
  assert_true(norm_of(gradients[0], n) > 0);
  assert_memory_equal(gradients[0], gradients[1], n * sizeof *gradients[0]);
  assert_true(golden_error(gradients[2], gradients[0], n, 1) <= 1e-6);
  for (int o = 0; o < 3; o++) gr_free(gradients[o]);
  gr_step_free(s);
  gr_dataset_free(d);
  rig_close(&r);
}

/* B = 0: the graph with a fresh adapter computes the bits of the graph without one, whatever A, rank and alpha. */
static void a_fresh_adapter_changes_no_bit(void **state)
{
  (void)state;
  for (int i = 0; i < MODELS; i++) {
    struct rig r;
    gr_error e = { 0 };
    rig_open(&r, models[i], 2);
    gr_lora_free(r.g.lora);
    static const char *const targets[] = { "all-linear", "experts" };
    size_t n_targets = gr_model_hparams(r.g.model)->experts ? 2 : 1;
    const gr_lora_options lo = { .rank = 4, .alpha = 77, .seed = 3, .targets = targets, .n_targets = n_targets };
    assert_ok(gr_lora_create(&r.g.lora, r.g.model, &lo, &e), &e);
    gr_dataset *d = eight_samples(&r.g);
    float with[40], without[40];
    gr_step *s = rig_step(&r, 40, false, false, 0), *bare = NULL;
    const gr_step_options o = { .tokens = 40, .backends = &r.backend, .n_backends = 1 };
    assert_ok(gr_step_plan(&bare, r.g.model, NULL, &o, &e), &e);
    const size_t first = 0;
    run(s, d, &first, 1, 0, with);
    run(bare, d, &first, 1, 0, without);
    assert_memory_equal(with, without, (size_t)lengths[0] * sizeof *with);
    gr_lora_pair_at(r.g.lora, 0)->b[0] = 1; /* one element of a B: no longer */
    run(s, d, &first, 1, 0, with);
    assert_true(memcmp(with, without, (size_t)lengths[0] * sizeof *with) != 0);
    gr_step_free(s);
    gr_step_free(bare);
    gr_dataset_free(d);
    rig_close(&r);
  }
}

static bool always(void *ctx)
{
  (void)ctx;
  return true;
}

static void a_stopped_step_leaves_the_sums(void **state)
{
  (void)state;
  struct rig r;
  gr_error e = { 0 };
  rig_open(&r, "llama", 1);
  gr_dataset *d = eight_samples(&r.g);
  const size_t two[2] = { 0, 1 };
  gr_step *s = rig_step(&r, 64, true, false, 0);
  gr_step_clear(s);
  run(s, d, two, 1, 0, NULL);
  gr_step_sums before = *gr_step_sums_of(s);
  float *gradient = copy_gradient(&r, s);
  assert_int_equal(gr_step_run(s, d, two + 1, 1, 0, NULL, always, NULL, &e), GR_ERR_CANCELLED);
  assert_memory_equal(&before, gr_step_sums_of(s), sizeof before);
  assert_memory_equal(gradient, gr_step_gradient(s), gr_lora_parameters(r.g.lora) * sizeof *gradient);
  gr_free(gradient);
  gr_step_free(s);
  gr_dataset_free(d);
  rig_close(&r);
}

static void samples_whose_loss_is_no_number_are_named(void **state)
{
  (void)state;
  struct rig r;
  gr_error e = { 0 };
  rig_open(&r, "llama", 1);
  gr_dataset *d = eight_samples(&r.g);
  size_t all[8] = { 0, 1, 2, 3, 4, 5, 6, 7 }, bad[4] = { 0 };
  gr_step *s = rig_step(&r, 200, true, false, 0);
  gr_step_clear(s);
  run(s, d, all, 8, 0, NULL);
  assert_int_equal(gr_step_bad_samples(s, bad, 4), 0);
  for (size_t i = 0; i < gr_lora_parameters(r.g.lora); i++) gr_lora_values(r.g.lora)[i] = 3e38f;
  assert_int_equal(gr_step_run(s, d, all + 2, 6, 0, NULL, NULL, NULL, &e), GR_ERR_NUMERIC);
  assert_int_equal(gr_step_bad_samples(s, bad, 4), 6);
  for (size_t i = 0; i < 4; i++) assert_int_equal(bad[i], i + 2);
  gr_step_free(s);
  gr_dataset_free(d);
  rig_close(&r);
}

/* ---- evaluation ---- */

static void heldout_compares_samples_in_pairs(void **state)
{
  (void)state;
  struct rig r;
  gr_error e = { 0 };
  rig_open(&r, "llama", 1);
  gr_dataset *d = eight_samples(&r.g);
  const size_t held[4] = { 7, 1, 4, 2 };
  gr_heldout h;
  assert_ok(gr_heldout_open(&h, d, held, 4, 64, &e), &e);
  assert_true(h.longest >= 40 && h.longest <= 64);
  gr_step *s = rig_step(&r, h.longest, false, false, 0);
  assert_ok(gr_heldout_run(&h, s, NULL, NULL, &e), &e);
  double mean, error, first = h.loss;
  gr_heldout_compare(&h, &mean, &error);
  assert_true(fabs(mean) <= 0 && fabs(error) <= 0);
  /* By hand: each sample alone. */
  double sum = 0, weight = 0;
  size_t tokens = 0;
  for (size_t i = 0; i < 4; i++) {
    const gr_sample *x = gr_dataset_at(d, held[i]);
    float nll[64];
    run(s, d, &held[i], 1, 0, nll);
    for (int32_t t = 1; t < x->n; t++)
      sum += (double)x->weights[t] * (double)nll[t], weight += (double)x->weights[t], tokens += x->weights[t] > 0;
  }
  assert_true(fabs(first - sum / weight) <= 1e-12 * first);
  assert_int_equal(h.tokens, tokens);
  fill_values(r.g.lora, 1);
  assert_ok(gr_heldout_run(&h, s, NULL, NULL, &e), &e);
  gr_heldout_compare(&h, &mean, &error);
  double by_hand = 0, squares = 0;
  for (size_t i = 0; i < 4; i++) by_hand += (h.baseline[i] - h.losses[i]) / 4;
  for (size_t i = 0; i < 4; i++) squares += pow(h.baseline[i] - h.losses[i] - by_hand, 2);
  assert_float_equal(mean, by_hand, 1e-12);
  assert_float_equal(error, sqrt(squares / 3 / 4), 1e-12);
  assert_true(error > 0);
  gr_step_free(s);
  gr_heldout_close(&h);
  gr_dataset_free(d);
  rig_close(&r);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(adamw_curves_are_pytorchs),
    cmocka_unit_test(schedules_hit_their_ends),
    cmocka_unit_test(micro_batches_make_the_same_step),
    cmocka_unit_test(threads_and_recompute_leave_the_bits),
    cmocka_unit_test(a_samples_nll_has_the_same_bits_packed_or_alone),
    cmocka_unit_test(in_bf16_too),
    cmocka_unit_test(a_long_windows_last_sample_sees_no_other),
    cmocka_unit_test(a_fresh_adapter_changes_no_bit),
    cmocka_unit_test(a_stopped_step_leaves_the_sums),
    cmocka_unit_test(samples_whose_loss_is_no_number_are_named),
    cmocka_unit_test(heldout_compares_samples_in_pairs),
  };
  return cmocka_run_group_tests_name("train", tests, NULL, NULL);
}
