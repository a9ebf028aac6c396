/* Curves across backends (C9), the short form: one dense model and one with experts. tests/full/test_split_curves.c has every architecture.
 */
#include "split_curve.h"

/* The emulator has the second of the two layers, forward and backward, but for what it has no kernel for. */
static size_t second_layer_to_emu(void *ctx, const gr_node *n)
{
  (void)ctx;
  return n->layer == 1 ? 1 : 0;
}

static void curves_of_cpu_and_emulator(void **state)
{
  (void)state;
  static const char *const models[] = { "llama", "qwen3moe" };
  gr_error e = { 0 };
  gr_backend *b[2];
  assert_ok(gr_backend_open(&b[0], "cpu", NULL, &e), &e);
  assert_ok(gr_backend_open(&b[1], "emu", NULL, &e), &e);
  const curve_on cpu = { b, 1, NULL }, both = { b, 2, second_layer_to_emu };
  for (int i = 0; i < 2; i++) curve_hold(models[i], curve_both(models[i], &cpu, &both, 16), &curve_f32);
  for (int i = 0; i < 2; i++) gr_backend_close(b[i]);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(curves_of_cpu_and_emulator) };
  return cmocka_run_group_tests_name("split curve", tests, NULL, NULL);
}
