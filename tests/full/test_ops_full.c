/* Dear cases too: sums over 600,000 rows in both layouts (B3), a vocabulary of 248,320 with packed weights. */
#include "optest.h"

static void every_gradient_is_right(void **state)
{
  (void)state;
  passes(gr_optest_grad, &(gr_optest){ .full = true }, 800);
}

static void every_row_of_the_cpu_agrees_with_its_reference(void **state)
{
  (void)state;
  passes(gr_optest_test, &(gr_optest){ .full = true, .backend = "cpu" }, 7000);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_gradient_is_right),
    cmocka_unit_test(every_row_of_the_cpu_agrees_with_its_reference),
  };
  return cmocka_run_group_tests_name("ops, full", tests, NULL, NULL);
}
