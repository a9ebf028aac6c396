/* Curves across backends (C9), of every golden model: the CPU beside the CPU with the emulated GPU, and products in bf16 beside F32. */
#include "split_curve.h"

static gr_backend *opened(const char *name, gr_precision precision)
{
  gr_error e = { 0 };
  gr_backend *b = NULL;
  assert_ok(gr_backend_open(&b, name, NULL, &e), &e);
  assert_ok(gr_backend_use_precision(b, precision, &e), &e);
  return b;
}

/* The emulator takes every node that it has a kernel for. */
static void curves_of_cpu_and_emulator(void **state)
{
  (void)state;
  static const char *const models[] = { GOLDEN_DENSE, GOLDEN_EXPERTS };
  gr_backend *b[2] = { opened("emu", GR_PRECISION_F32), opened("cpu", GR_PRECISION_F32) };
  const curve_on cpu = { b + 1, 1, NULL }, both = { b, 2, NULL };
  for (size_t i = 0; i < sizeof models / sizeof *models; i++)
    curve_hold(models[i], curve_both(models[i], &cpu, &both, INT32_MAX), &curve_f32);
  for (int i = 0; i < 2; i++) gr_backend_close(b[i]);
}

/* The golden models whose matrices are large enough to be rounded (and quantized). */
static void curves_in_bf16_and_f32(void **state)
{
  (void)state;
  static const char *const models[] = { "llama-wide", "qwen3moe-wide" };
  gr_backend *b[2] = { opened("cpu", GR_PRECISION_F32), opened("cpu", GR_PRECISION_BF16) };
  const curve_on wide = { b, 1, NULL }, rounds = { b + 1, 1, NULL };
  for (size_t i = 0; i < sizeof models / sizeof *models; i++)
    curve_hold(models[i], curve_both(models[i], &wide, &rounds, INT32_MAX), &curve_bf16);
  for (int i = 0; i < 2; i++) gr_backend_close(b[i]);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(curves_in_bf16_and_f32), cmocka_unit_test(curves_of_cpu_and_emulator) };
  return cmocka_run_group_tests_name("split curves", tests, NULL, NULL);
}
