/* A training step split between two kinds of backend (the emulated GPU has memory and a queue of its own) gives the gradients of the
 * CPU alone, to 1e-5; and the placement report names every node. */
#include "golden.h"

/* Every second node that the emulator has a kernel for goes there, so that tensors cross both ways all the time. */
static size_t every_second(void *ctx, const gr_node *node)
{
  (void)ctx;
  return node->id % 2 ? 0 : 1;
}

static size_t cpu_only(void *ctx, const gr_node *node)
{
  (void)ctx;
  (void)node;
  return 1;
}

static size_t emu_first(void *ctx, const gr_node *node)
{
  (void)ctx;
  (void)node;
  return 0;
}

struct gradients {
  float **items;
  size_t *counts, n;
};

static struct gradients step_gradients(const char *model, gr_backend **backends, size_t (*prefer)(void *, const gr_node *),
                                       size_t on_emu_at_least)
{
  golden t;
  golden_open(&t, model);
  const gr_plan_options options = { .backends = backends, .n_backends = 2, .prefer = prefer, .poison = true };
  golden_plan(&t, &options);
  golden_run(&t);
  size_t on_emu = 0, copies = 0;
  for (size_t i = 0; i < gr_plan_launches(t.plan); i++) {
    gr_launch_info info;
    gr_plan_launch_info(t.plan, i, &info);
    assert_true(info.op[0] && info.row[0] && info.backend[0]);
    assert_non_null(info.name);
    if (info.node) assert_non_null(strstr(info.row, info.backend));
    on_emu += info.node && strcmp(info.backend, "emu") == 0;
    copies += info.node == NULL;
  }
  assert_true(on_emu >= on_emu_at_least);
  if (on_emu_at_least) assert_true(copies > 0);
  struct gradients g = { gr_calloc(2 * t.mg.n_pairs, sizeof(float *)), gr_calloc(2 * t.mg.n_pairs, sizeof(size_t)), 2 * t.mg.n_pairs };
  assert_true(g.items && g.counts);
  for (size_t i = 0; i < g.n; i++) g.items[i] = golden_read(&t, t.grad_a[i], &g.counts[i]); /* grad_b follows grad_a */
  golden_close(&t);
  return g;
}

static void free_gradients(struct gradients *g)
{
  for (size_t i = 0; i < g->n; i++) gr_free(g->items[i]);
  gr_free(g->items);
  gr_free(g->counts);
}

static void check_model(const char *model, gr_backend **backends, size_t (*prefer)(void *, const gr_node *))
{
  struct gradients want = step_gradients(model, backends, cpu_only, 0), got = step_gradients(model, backends, prefer, 20);
  assert_int_equal(want.n, got.n);
  for (size_t i = 0; i < want.n; i++) {
    double error = golden_error(got.items[i], want.items[i], want.counts[i], 1);
    if (!(error <= 1e-5)) fail_msg("%s: gradient %zu differs by %.3g", model, i, error);
  }
  free_gradients(&want);
  free_gradients(&got);
}

static void split_steps_equal_the_cpu(void **state)
{
  (void)state;
  static const char *const models[] = { "llama", "qwen2", "qwen3", "llama-scaled" };
  gr_error e = { 0 };
  gr_backend *backends[2] = { 0 };
  assert_ok(gr_backend_open(&backends[0], "emu", NULL, &e), &e);
  assert_ok(gr_backend_open(&backends[1], "cpu", NULL, &e), &e);
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    check_model(models[i], backends, every_second);
    check_model(models[i], backends, emu_first);
  }
  gr_backend_close(backends[0]);
  gr_backend_close(backends[1]);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(split_steps_equal_the_cpu) };
  return cmocka_run_group_tests_name("split", tests, NULL, NULL);
}
