/* What a training step of a model with experts runs, and what it gives to whom. */
#include <math.h>

#include "train_sample.h"

static const char *const models[] = { GOLDEN_EXPERTS };
enum { MODELS = sizeof models / sizeof *models, TOKENS = 40 };

static gr_backend *cpu;

static int setup(void **state)
{
  gr_error e;
  (void)state;
  return gr_backend_open(&cpu, "cpu", NULL, &e) == GR_OK ? 0 : -1;
}

static int teardown(void **state)
{
  (void)state;
  gr_backend_close(cpu);
  return 0;
}

/* An adapter on every linear there is, of random A and B; and a step over one sample of TOKENS. */
typedef struct rig {
  gr_lora *lora;
  gr_step *step;
  gr_dataset *data;
} rig;

static void rig_open(rig *r, const gr_model *m, int64_t rank, bool recompute, float dropout)
{
  gr_error e = { 0 };
  static uint8_t layers[64];
  const char *const all[] = { "re:.*" };
  *r = (rig){ 0 };
  memset(layers, recompute, sizeof layers);
  assert_ok(gr_lora_create(&r->lora, m, &(gr_lora_options){ .rank = rank, .alpha = 4, .targets = all, .n_targets = 1, .seed = 2 }, &e), &e);
  fill_values(r->lora, 11);
  add_sequence(&r->data, TOKENS, gr_model_hparams(m)->vocab, 4);
  const gr_step_options o = {
    .tokens = TOKENS, .train = true, .dropout = dropout, .seed = 7, .recompute = layers, .backends = &cpu, .n_backends = 1, .poison = true
  };
  assert_ok(gr_step_plan(&r->step, m, r->lora, &o, &e), &e);
  assert_ok(gr_step_allocate(r->step, &e), &e);
}

static void rig_run(rig *r)
{
  gr_error e = { 0 };
  const size_t first = 0;
  gr_step_clear(r->step);
  assert_ok(gr_step_run(r->step, r->data, &first, 1, 1, NULL, NULL, NULL, &e), &e);
}

static void rig_close(rig *r)
{
  gr_step_free(r->step);
  gr_lora_free(r->lora);
  gr_dataset_free(r->data);
}

static gr_model *open_model(const char *name)
{
  gr_error e = { 0 };
  gr_model *m = NULL;
  char path[512];
  snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/%s.gguf", name);
  assert_ok(gr_model_open(&m, path, &e), &e);
  return m;
}

/* ---- who gets a gradient ---- */

static bool all_zero(const float *x, size_t n)
{
  for (size_t i = 0; i < n; i++)
    if (x[i] < 0 || x[i] > 0) return false;
  return true;
}

/* Every A and B gets one; of a stack, the slices of the experts that were chosen, in A as in B. Returns how many slices are zero. */
static size_t check_gradients(const gr_model *m, const rig *r)
{
  const float *g = gr_step_gradient(r->step);
  size_t untouched = 0;
  for (size_t i = 0; i < gr_lora_pair_count(r->lora); i++) {
    const gr_lora_pair *p = gr_lora_pair_at(r->lora, i);
    size_t a = gr_lora_pair_a(p), b = gr_lora_pair_b(p), stack = (size_t)p->experts, zero = 0;
    for (size_t k = 0; k < a + b; k++) assert_true(isfinite(g[k]));
    for (size_t x = 0; x < stack; x++) {
      bool none = all_zero(g + x * (a / stack), a / stack);
      if (none != all_zero(g + a + x * (b / stack), b / stack)) fail_msg("%s: expert %zu has half a gradient", p->name, x);
      zero += none;
    }
    if (zero == stack) fail_msg("%s: %s gets no gradient", gr_model_arch(m), p->name);
    untouched += zero;
    g += a + b;
  }
  return untouched;
}

static void every_target_gets_a_gradient(void **state)
{
  (void)state;
  static const char *const dense[] = { GOLDEN_DENSE };
  for (size_t i = 0; i < MODELS + sizeof dense / sizeof *dense; i++) {
    gr_model *m = open_model(i < MODELS ? models[i] : dense[i - MODELS]);
    rig r;
    rig_open(&r, m, 1, false, 0);
    size_t kinds = 0;
    for (size_t k = 0; k < gr_lora_pair_count(r.lora); k++) kinds += gr_lora_pair_at(r.lora, k)->experts > 1;
    assert_int_equal(gr_lora_pair_count(r.lora), gr_model_linear_count(m));
    assert_true((kinds > 0) == (i < MODELS));
    rig_run(&r);
    size_t untouched = check_gradients(m, &r);
    if (i >= MODELS) assert_int_equal(untouched, 0);
    rig_close(&r);
    gr_model_close(m);
  }
}

/* ---- what is run ---- */

/* Routing and grouping are made once a layer and step, whatever is recomputed and however many stacks are adapted. */
static void tokens_are_routed_and_grouped_once_a_layer(void **state)
{
  (void)state;
  for (int i = 0; i < MODELS; i++)
    for (int recompute = 0; recompute < 2; recompute++) {
      gr_model *m = open_model(models[i]);
      rig r;
      rig_open(&r, m, 1, recompute, 0);
      rig_run(&r);
      gr_plan *plan = gr_step_plan_of(r.step);
      int count[GR_OP_COUNT] = { 0 }, again = 0;
      for (size_t k = 0; k < gr_plan_launches(plan); k++) {
        gr_launch_info info;
        gr_plan_launch_info(plan, k, &info);
        assert_non_null(info.node);
        count[info.node->op]++;
        again += info.node->phase == GR_PHASE_RECOMPUTE;
        assert_true(strstr(info.row, "ref") == NULL);
      }
      int layers = gr_model_hparams(m)->layers;
      assert_true((again > 0) == (recompute == 1));
      assert_int_equal(count[GR_OP_group_experts], layers);
      assert_int_equal(count[GR_OP_route], layers);
      assert_int_equal(count[GR_OP_route_back], layers);
      assert_true(count[GR_OP_matmul_id_lora_back] > 0 && count[GR_OP_out_prod_id] > 0 && count[GR_OP_combine_back] == layers);
      rig_close(&r);
      gr_model_close(m);
    }
}

/* Dropout of what adapters of experts read: other steps, other masks, and none without it. */
static void dropout_reaches_the_adapters_of_experts(void **state)
{
  (void)state;
  gr_error e = { 0 };
  const size_t first = 0;
  gr_model *m = open_model("qwen3moe");
  rig wet, dry;
  rig_open(&wet, m, 2, false, 0.3f);
  rig_open(&dry, m, 2, false, 0);
  int masks = 0;
  gr_plan *plan = gr_step_plan_of(wet.step);
  for (size_t k = 0; k < gr_plan_launches(plan); k++) {
    gr_launch_info info;
    gr_plan_launch_info(plan, k, &info);
    masks += info.node->op == GR_OP_dropout && info.node->phase == GR_PHASE_FORWARD;
  }
  /* all but the head's, whose loss takes the adapter inside */
  assert_int_equal(masks, gr_lora_pair_count(wet.lora) - 1);
  rig_run(&dry);
  double loss[3] = { gr_step_sums_of(dry.step)->loss };
  for (uint64_t t = 1; t < 3; t++) {
    gr_step_clear(wet.step);
    assert_ok(gr_step_run(wet.step, wet.data, &first, 1, t, NULL, NULL, NULL, &e), &e);
    loss[t] = gr_step_sums_of(wet.step)->loss;
  }
  assert_true(fabs(loss[0] - loss[1]) > 1e-6 && fabs(loss[1] - loss[2]) > 1e-6 && fabs(loss[0] - loss[2]) > 1e-6);
  rig_close(&wet);
  rig_close(&dry);
  gr_model_close(m);
}

/* ---- what a token passes through ---- */

static void active_parameters_count_the_chosen_experts(void **state)
{
  (void)state;
  gr_model *m = open_model("qwen3moe");
  size_t all = gr_model_parameters(m), active = gr_model_active_parameters(m);
  assert_int_equal(all - active, 2 * 3 * 64 * 32 * (8 - 3)); /* layers, matrices, their size, the experts that are not chosen */
  gr_model_close(m);
  m = open_model("llama");
  assert_int_equal(gr_model_parameters(m), gr_model_active_parameters(m));
  gr_model_close(m);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_target_gets_a_gradient),
    cmocka_unit_test(tokens_are_routed_and_grouped_once_a_layer),
    cmocka_unit_test(dropout_reaches_the_adapters_of_experts),
    cmocka_unit_test(active_parameters_count_the_chosen_experts),
  };
  return cmocka_run_group_tests_name("experts_step", tests, setup, teardown);
}
