/* `ops mutants` can fail: controls that are no breakage, that nothing executes, or whose check proves nothing, all come out red. Built with
 * mutants (cmake/mutants.cmake), on a backend of one row. */
#include "backend/backends.h"
#include "base/alloc.h"
#include "base/mutant.h"
#include "ops/cases.h"
#include "optest.h"

typedef struct one_row_backend {
  gr_backend head;
  gr_backend_ops ops;
  gr_kernel_row rows[2];
} one_row_backend;

static void one_row_close(gr_backend *b) { gr_free(b); }

/* The row that open hands out: tests run one after another. */
static gr_status (*run_of_row)(gr_backend *b, const gr_op_call *c, gr_error *e);

static gr_status one_row_open(gr_backend **out, gr_pool *pool, gr_error *e)
{
  one_row_backend *b = gr_calloc(1, sizeof *b);
  if (!b) return gr_fail_memory(e, sizeof *b);
  b->rows[0] = (gr_kernel_row){ .op = GR_OP_add, .name = "add__control", .run = run_of_row };
  b->rows[1].op = GR_OP_NONE;
  b->ops = (gr_backend_ops){
    .name = "control", .rows = b->rows, .host_memory = true, .alloc = gr_host_alloc, .free = gr_host_free, .close = one_row_close
  };
  b->head = (gr_backend){ .ops = &b->ops, .pool = pool };
  *out = &b->head;
  return GR_OK;
}

static const gr_optest_target target = { "control", one_row_open };

static gr_status run_add(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  (void)b;
  (void)e;
  gr_op_get(GR_OP_add)->reference(c);
  return GR_OK;
}

static gr_status run_wrong(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_add(b, c, e);
  if (gr_array_count(&c->out[0]) && GR_MUTANT(control_equivalent)) *(float *)c->out[0].data += 1;
  return GR_OK;
}

static gr_status run_equivalent(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  if (GR_MUTANT(control_equivalent)) return run_add(b, c, e);
  return run_add(b, c, e);
}

static gr_status run_unreached(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  if (c->op == GR_OP_mul && GR_MUTANT(control_unreached)) return GR_OK;
  return run_add(b, c, e);
}

static gr_status run_red(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_add(b, c, e);
  if (gr_array_count(&c->out[0])) *(float *)c->out[0].data += 1 + (float)GR_MUTANT(control_equivalent);
  return GR_OK;
}

static gr_optest one(const gr_optest_mutant *m, gr_status (*run)(gr_backend *b, const gr_op_call *c, gr_error *e))
{
  run_of_row = run;
  return (gr_optest){ .mutants = m, .n_mutants = 1, .targets = &target, .n_targets = 1 };
}

static const gr_optest_mutant equivalent = { GR_MUTANT_control_equivalent, "control_equivalent", "control", "add", "nothing" };
static const gr_optest_mutant unreached = { GR_MUTANT_control_unreached, "control_unreached", "control", "add", "nothing" };

static void a_breakage_is_caught(void **state)
{
  (void)state;
  gr_optest o = one(&equivalent, run_wrong);
  char *text = run_mode(gr_optest_mutants, &o);
  assert_int_equal(o.failures, 0);
  assert_non_null(strstr(text, "caught: control_equivalent: nothing; by add("));
  assert_non_null(strstr(text, "(add__control, test)"));
  assert_non_null(strstr(text, "1 of 1 caught"));
  free(text);
}

static void an_equivalent_mutant_survives(void **state)
{
  (void)state;
  gr_optest o = one(&equivalent, run_equivalent);
  fails(gr_optest_mutants, &o, "survived: control_equivalent");
  o = one(&equivalent, run_equivalent);
  fails(gr_optest_mutants, &o, "0 of 1 caught");
}

static void a_line_that_nothing_executes_does_not_count(void **state)
{
  (void)state;
  gr_optest o = one(&unreached, run_unreached);
  fails(gr_optest_mutants, &o, "unreached: control_unreached");
}

static void a_check_that_is_red_anyway_proves_nothing(void **state)
{
  (void)state;
  gr_optest o = one(&equivalent, run_red);
  fails(gr_optest_mutants, &o, "is red already");
  o = one(&equivalent, run_red);
  fails(gr_optest_mutants, &o, "uncertain: control_equivalent");
}

static void a_check_that_checks_nothing_proves_nothing(void **state)
{
  (void)state;
  gr_optest_mutant without_rows = equivalent;
  without_rows.subject = "mul";
  gr_optest o = one(&without_rows, run_wrong);
  fails(gr_optest_mutants, &o, "checks nothing");
}

static void a_program_that_never_meets_the_mutant_does_not_count(void **state)
{
  (void)state;
  static const gr_optest_mutant unknown = { 0, "unknown", "program", "test_train", "nothing" };
  gr_optest o = one(&unknown, run_add);
  fails(gr_optest_mutants, &o, "unreached: unknown");
}

static void refuses(gr_optest o, gr_status status, const char *says)
{
  gr_error e = { 0 };
  assert_int_equal(gr_optest_mutants(&o, &e), status);
  if (!strstr(e.text, says)) fail_msg("'%s' was expected, but: %s", says, e.text);
}

static void what_is_not_there_is_refused(void **state)
{
  (void)state;
  static const gr_optest_mutant no_op = { GR_MUTANT_control_equivalent, "control", "cpu", "nope", "" };
  static const gr_optest_mutant no_program = { GR_MUTANT_control_equivalent, "control", "program", "test_nope", "" };
  refuses(one(&no_op, run_add), GR_ERR_USAGE, "no op 'nope'");
  refuses(one(&no_program, run_add), GR_ERR_IO, "test_nope");
  refuses((gr_optest){ .mutant = "nope" }, GR_ERR_USAGE, "no mutant 'nope'");
}

/* A filter that leaves none is no success. */
static void no_mutant_at_all_is_a_failure(void **state)
{
  (void)state;
  gr_optest o = only(GR_OP_NONE);
  fails(gr_optest_mutants, &o, "nothing was checked");
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_breakage_is_caught),
    cmocka_unit_test(an_equivalent_mutant_survives),
    cmocka_unit_test(a_line_that_nothing_executes_does_not_count),
    cmocka_unit_test(a_check_that_is_red_anyway_proves_nothing),
    cmocka_unit_test(a_check_that_checks_nothing_proves_nothing),
    cmocka_unit_test(a_program_that_never_meets_the_mutant_does_not_count),
    cmocka_unit_test(what_is_not_there_is_refused),
    cmocka_unit_test(no_mutant_at_all_is_a_failure),
  };
  return cmocka_run_group_tests_name("mutants", tests, NULL, NULL);
}
