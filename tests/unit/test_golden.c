/* Logits, nll and every LoRA gradient against PyTorch + transformers + PEFT (tests/golden/README.md). The bound is the issue's
 * 1e-4 relative, tensor by tensor and expert by expert (the worst expert seen is off by 5.4e-6). */
#include "golden.h"

static const char *const models[] = { GOLDEN_DENSE, GOLDEN_EXPERTS };
enum { MODELS = sizeof models / sizeof *models };

static bool golden_is_zero(const float *x, size_t n)
{
  for (size_t i = 0; i < n; i++)
    if (!(fabsf(x[i]) <= 0)) return false;
  return true;
}

/* Whole, and of a stack expert by expert: an expert that no token chose must get exactly nothing. */
static void check_tensor(golden *t, const gr_tensor *got, const char *name, double scale, double bound)
{
  size_t n, zero = 0;
  float *data = golden_read(t, got, &n);
  const gr_gguf_tensor *want = golden_tensor(t, name);
  assert_int_equal(want->bytes, n * sizeof(float));
  double error = golden_error(data, want->data, n, scale);
  size_t slices = (size_t)want->ne[2], each = n / slices;
  for (size_t k = 0; slices > 1 && k < slices; k++) {
    const float *slice = (const float *)want->data + k * each;
    if (golden_is_zero(slice, each)) {
      if (!golden_is_zero(data + k * each, each)) fail_msg("%s: expert %zu, which nobody chose, gets a gradient", name, k);
      zero++;
      continue;
    }
    double of_slice = golden_error(data + k * each, slice, each, scale);
    if (!(of_slice <= bound)) fail_msg("%s: expert %zu is off by %.3g, more than %.3g", name, k, of_slice, bound);
  }
  gr_free(data);
  if (!(error <= bound)) fail_msg("%s is off by %.3g, more than %.3g", name, error, bound);
  if (slices > 1 && zero == 0) fail_msg("%s: there is no expert that nobody chose", name);
}

static void check_step(const char *model, const gr_plan_options *options, double bound)
{
  golden t;
  golden_open(&t, model);
  golden_plan(&t, options);
  golden_run(&t);
  check_tensor(&t, t.mg.logits, "logits", 1, bound);
  check_tensor(&t, t.mg.nll, "nll", 1, bound);
  double scale = 1 / golden_weight_sum(&t);
  for (size_t i = 0; i < t.mg.n_pairs; i++) {
    char name[128];
    snprintf(name, sizeof name, "grad.%s.lora_a", gr_lora_pair_at(t.lora, i)->name);
    check_tensor(&t, t.grad_a[i], name, scale, bound);
    snprintf(name, sizeof name, "grad.%s.lora_b", gr_lora_pair_at(t.lora, i)->name);
    check_tensor(&t, t.grad_b[i], name, scale, bound);
  }
  golden_close(&t);
}

static void check_backend(const char *name, bool plain)
{
  gr_error e = { 0 };
  gr_backend *backend = NULL;
  assert_ok(gr_backend_open(&backend, name, NULL, &e), &e);
  const gr_plan_options options = {
    .backends = &backend, .n_backends = 1, .no_fusion = plain, .allow_ref = strcmp(name, "ref") == 0, .poison = true
  };
  for (int i = 0; i < MODELS; i++) check_step(models[i], &options, 1e-4);
  gr_backend_close(backend);
}

static void reference_gives_pytorchs_gradients(void **state)
{
  (void)state;
  check_backend("ref", true);
}

static void fused_reference_gives_pytorchs_gradients(void **state)
{
  (void)state;
  check_backend("ref", false);
}

static void cpu_gives_pytorchs_gradients(void **state)
{
  (void)state;
  check_backend("cpu", false);
}

static void cpu_gives_pytorchs_gradients_unfused(void **state)
{
  (void)state;
  check_backend("cpu", true);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(reference_gives_pytorchs_gradients),
                                      cmocka_unit_test(fused_reference_gives_pytorchs_gradients),
                                      cmocka_unit_test(cpu_gives_pytorchs_gradients),
                                      cmocka_unit_test(cpu_gives_pytorchs_gradients_unfused) };
  return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
