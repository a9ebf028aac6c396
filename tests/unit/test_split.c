/* A training step split between two backends, one of which has memory and a queue of its own, gives what one backend gives: logits, nll and
 * every LoRA gradient of the golden models, whatever the split; and the plan says of every node where it runs. */
#include "golden.h"

static const char *const models[] = { "llama", "llama-scaled", "qwen2", "qwen3", "llama-wide", "qwen3moe", "gpt-oss" };
enum { MODELS = sizeof models / sizeof *models, EMU = 0, CPU = 1, BACKENDS = 2 };

/* "Within 1e-5 of the CPU alone" is the issue's; seen: at most 2.8e-6. A lost copy or a stale one is above 1e-2. */
static const double bound = 1e-5;

typedef struct split {
  const char *name;
  size_t (*prefer)(void *ctx, const gr_node *node);
  bool no_fusion;
} split;

static size_t all_to_emu(void *ctx, const gr_node *n)
{
  (void)ctx;
  (void)n;
  return EMU;
}

/* Copies around nearly every node. */
static size_t every_other_node(void *ctx, const gr_node *n)
{
  (void)ctx;
  return n->id % 2;
}

static size_t every_other_layer(void *ctx, const gr_node *n)
{
  (void)ctx;
  return n->layer >= 0 && n->layer % 2 == 0 ? EMU : CPU;
}

static size_t backward_to_emu(void *ctx, const gr_node *n)
{
  (void)ctx;
  return n->phase == GR_PHASE_BACKWARD ? EMU : CPU;
}

static const split splits[] = {
  { "all to emu", all_to_emu, false },           { "every other node", every_other_node, false },
  { "all to emu, unfused", all_to_emu, true },   { "every other layer", every_other_layer, true },
  { "backward to emu", backward_to_emu, false },
};
enum { SPLITS = sizeof splits / sizeof *splits };

static gr_backend *backends[BACKENDS];

static int setup(void **state)
{
  gr_error e;
  (void)state;
  return gr_backend_open(&backends[EMU], "emu", NULL, &e) == GR_OK && gr_backend_open(&backends[CPU], "cpu", NULL, &e) == GR_OK ? 0 : -1;
}

static int teardown(void **state)
{
  (void)state;
  for (int i = 0; i < BACKENDS; i++) gr_backend_close(backends[i]);
  return 0;
}

static void open_and_run(golden *t, const char *model, gr_backend *const *b, size_t n, const split *s)
{
  const gr_plan_options options = { .backends = b, .n_backends = n, .prefer = s->prefer, .no_fusion = s->no_fusion, .poison = true };
  golden_open(t, model);
  golden_plan(t, &options);
  golden_run(t);
}

static double worst;

static void compare(golden *got, const gr_tensor *x, golden *want, const gr_tensor *y, const char *name, const split *s)
{
  size_t n, m;
  float *a = golden_read(got, x, &n), *b = golden_read(want, y, &m);
  assert_int_equal(n, m);
  double error = golden_error(a, b, n, 1);
  if (error > worst) worst = error;
  if (!(error <= bound)) fail_msg("%s, split '%s': off by %.3g, more than %.3g", name, s->name, error, bound);
  gr_free(a);
  gr_free(b);
}

static void splits_give_the_cpus_gradients(void **state)
{
  (void)state;
  for (int i = 0; i < MODELS; i++)
    for (int k = 0; k < (i ? 2 : SPLITS); k++) { /* every split of the first model, two of the others */
      const split *s = &splits[k], whole = { "none", NULL, s->no_fusion };
      golden cpu, both;
      open_and_run(&cpu, models[i], &backends[CPU], 1, &whole);
      open_and_run(&both, models[i], backends, BACKENDS, s);
      compare(&both, both.mg.logits, &cpu, cpu.mg.logits, "logits", s);
      compare(&both, both.mg.nll, &cpu, cpu.mg.nll, "nll", s);
      for (size_t p = 0; p < cpu.mg.n_pairs; p++) {
        const char *name = gr_lora_pair_at(cpu.lora, p)->name;
        compare(&both, both.grad_a[p], &cpu, cpu.grad_a[p], name, s);
        compare(&both, both.grad_b[p], &cpu, cpu.grad_b[p], name, s);
      }
      golden_close(&both);
      golden_close(&cpu);
    }
  print_message("# worst error %.2g\n", worst);
}

/* Each launch says op, backend, row and what it gives; and with everything wished onto the emulator, a training step of every architecture
 * leaves no node to the CPU, fused or not (C8): what is launched there is copies of what lives on the host. */
static void no_node_falls_to_the_cpu(void **state)
{
  (void)state;
  static const char *const all[] = { GOLDEN_DENSE, GOLDEN_EXPERTS };
  for (size_t i = 0; i < 2 * sizeof all / sizeof *all; i++) {
    golden t;
    size_t nodes = 0, copies = 0;
    const gr_plan_options options = { .backends = backends, .n_backends = BACKENDS, .prefer = all_to_emu, .no_fusion = i % 2 };
    golden_open(&t, all[i / 2]);
    golden_plan(&t, &options);
    for (size_t k = 0; k < gr_plan_launches(t.plan); k++) {
      gr_launch_info info;
      gr_plan_launch_info(t.plan, k, &info);
      assert_true(info.op && info.op[0] && info.backend && info.backend[0] && info.row && info.row[0]);
      assert_true(info.name && info.name[0]);
      copies += !info.node;
      nodes += info.node != NULL;
      if (!info.node) continue;
      assert_non_null(strstr(info.row, info.backend));
      if (strcmp(info.backend, "emu") != 0) fail_msg("%s: %s (%s) fell to %s", all[i / 2], info.name, info.op, info.backend);
    }
    assert_true(nodes > 50 && copies > 0);
    golden_close(&t);
  }
}

/* A run that stops after any launch and goes on gives the same bits, with a queue in between too. */
static void stopping_anywhere_changes_nothing(void **state)
{
  (void)state;
  gr_error e = { 0 };
  golden t;
  size_t n;
  open_and_run(&t, "llama", backends, BACKENDS, &splits[1]);
  float *want = golden_read(&t, t.grad_a[0], &n);
  for (size_t cursor = 0, step = 1; cursor < gr_plan_launches(t.plan); step = step % 5 + 1)
    assert_ok(gr_plan_run(t.plan, &cursor, step, &e), &e);
  float *got = golden_read(&t, t.grad_a[0], &n);
  assert_memory_equal(got, want, n * sizeof *got);
  gr_free(got);
  gr_free(want);
  golden_close(&t);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(splits_give_the_cpus_gradients),
    cmocka_unit_test(no_node_falls_to_the_cpu),
    cmocka_unit_test(stopping_anywhere_changes_nothing),
  };
  return cmocka_run_group_tests_name("split", tests, setup, teardown);
}
