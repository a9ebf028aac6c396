/* bench_step MODEL [window = 512] [threads = 2] [seconds = 20] [rank = 16] [f32 or bf16]
 *
 * What a training step costs on this machine, beside the machine's own limit measured in the same run (the best of tries between the
 * repetitions): forward and backward of one window of random tokens, LoRA on every linear. The limit is that of F32 in both precisions.
 * Operations are counted as 4PT (parameters x tokens: 2 forward, 2 backward) + 6 for each parameter of an adapter and token (2 forward, 4
 * backward) + what attention's cost says of visible pairs (4 forward, 10 backward for each element of a head: the backward computes scores
 * again, as every flash attention does); nothing else that is computed again counts. Prints where the time goes, then medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/peak.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "graph/graph.h"
#include "model/model.h"

enum { RUNS_MAX = 200 };

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *x, size_t n)
{
  qsort(x, n, sizeof *x, by_value);
  return x[n / 2];
}

static void need(gr_status s, const gr_error *e)
{
  if (s == GR_OK) return;
  fprintf(stderr, "bench: %s\n", e->text);
  exit(1);
}

typedef struct step {
  gr_model_graph mg;
  gr_tensor *seed, **grads;
  gr_plan *plan;
  size_t n;
} step;

static void make_step(step *s, const gr_model *m, gr_lora *lora, gr_backend *backend, int64_t n)
{
  gr_error e = { 0 };
  const gr_adapter_use use = { lora, 1, true };
  const gr_build build = { .tokens = n, .loss = true, .adapters = &use, .n_adapters = 1 };
  need(gr_model_build(m, &build, &s->mg, &e), &e);
  size_t pairs = s->mg.n_pairs;
  gr_tensor **wrt = gr_calloc(4 * pairs + 1, sizeof(gr_tensor *));
  s->grads = wrt + 2 * pairs;
  memcpy(wrt, s->mg.a, pairs * sizeof *wrt);
  memcpy(wrt + pairs, s->mg.b, pairs * sizeof *wrt);
  s->seed = gr_graph_leaf(s->mg.graph, GR_LEAF_INPUT, GR_F32, s->mg.nll->ne, s->mg.nll->dim, NULL, "weights");
  need(gr_graph_backward(s->mg.graph, s->mg.nll, s->seed, wrt, 2 * pairs, s->grads, &e), &e);
  s->grads[2 * pairs] = s->mg.nll;
  const gr_plan_options o = { .backends = &backend, .n_backends = 1, .profile = true };
  need(gr_plan_create(&s->plan, s->mg.graph, s->grads, 2 * pairs + 1, &o, &e), &e);
  need(gr_plan_allocate(s->plan, &e), &e);
  s->n = (size_t)n;
}

static void fill(step *s, const gr_model *m)
{
  gr_error e = { 0 };
  size_t words = s->n * sizeof(int32_t);
  int32_t *ids = gr_alloc(words), *positions = gr_alloc(words), *segments = gr_calloc(s->n, sizeof(int32_t));
  float *ones = gr_alloc(words), *room = gr_alloc(gr_model_position_floats(m) * words);
  for (size_t i = 0; i < s->n; i++) {
    ids[i] = (int32_t)gr_random_below(1, 2, i, (uint64_t)gr_model_hparams(m)->vocab);
    positions[i] = (int32_t)i;
    ones[i] = 1;
  }
  need(gr_plan_write(s->plan, s->mg.ids, ids, words, &e), &e);
  need(gr_plan_write(s->plan, s->mg.labels, ids, words, &e), &e);
  need(gr_model_write_positions(m, &s->mg, s->plan, positions, s->n, room, &e), &e);
  need(gr_plan_write(s->plan, s->mg.segments, segments, words, &e), &e);
  need(gr_plan_write(s->plan, s->seed, ones, words, &e), &e);
}

/* Seconds of one run: forward launches, then backward ones. */
static void run(step *s, double *forward, double *backward)
{
  gr_error e = { 0 };
  *forward = *backward = 0;
  for (size_t cursor = 0; cursor < gr_plan_launches(s->plan);) {
    gr_launch_info info;
    gr_plan_launch_info(s->plan, cursor, &info);
    double start = now();
    need(gr_plan_run(s->plan, &cursor, 1, &e), &e);
    *(info.node && info.node->phase == GR_PHASE_FORWARD ? forward : backward) += now() - start;
  }
}

static void print_profile(const step *s)
{
  struct {
    const char *key;
    double seconds, flops;
    size_t runs;
  } rows[128] = { 0 };
  size_t n = 0;
  double total = 0;
  for (size_t i = 0; i < gr_plan_launches(s->plan); i++) {
    gr_launch_info info;
    gr_plan_launch_info(s->plan, i, &info);
    size_t k = 0;
    while (k < n && strcmp(rows[k].key, info.row) != 0) k++;
    if (k == n && n < 128) rows[n++].key = info.row;
    rows[k].seconds += info.seconds;
    rows[k].flops += info.cost.flops * (double)info.runs;
    rows[k].runs += info.runs;
    total += info.seconds;
  }
  printf("\n| row | share of the step | launches | GFLOP/s |\n|---|---|---|---|\n");
  for (size_t shown = 0; shown < n; shown++) {
    size_t best = 0;
    for (size_t k = 1; k < n; k++)
      if (rows[k].seconds > rows[best].seconds) best = k;
    if (rows[best].seconds < 0) break;
    printf("| %s | %.1f %% | %zu | %.1f |\n", rows[best].key, 100 * rows[best].seconds / total, rows[best].runs,
           rows[best].flops / rows[best].seconds * 1e-9);
    rows[best].seconds = -1;
  }
}

static double attention_flops(const step *s)
{
  double sum = 0;
  for (size_t i = 0; i < gr_plan_launches(s->plan); i++) {
    gr_launch_info info;
    gr_plan_launch_info(s->plan, i, &info);
    if (info.node && (info.node->op == GR_OP_attention || info.node->op == GR_OP_attention_back)) sum += info.cost.flops;
  }
  return sum;
}

static void print_rate(const char *what, double flops, double wall, double processor, double limit)
{
  printf("%-28s %7.1f GFLOP/s, %5.1f %% of the limit; by processor time %7.1f, %5.1f %%\n", what, flops / wall * 1e-9,
         100 * flops / wall / limit, flops / processor * 1e-9, 100 * flops / processor / limit);
}

int main(int argc, char **argv)
{
  if (argc < 2) return fprintf(stderr, "usage: step MODEL [window] [threads] [seconds] [rank] [f32 or bf16]\n"), 2;
  int64_t window = argc > 2 ? atoll(argv[2]) : 512, rank = argc > 5 ? atoll(argv[5]) : 16;
  int threads = argc > 3 ? atoi(argv[3]) : 2;
  double seconds = argc > 4 ? atof(argv[4]) : 20;
  gr_error e = { 0 };
  gr_model *m = NULL;
  gr_lora *lora = NULL;
  gr_pool *pool = NULL;
  gr_backend *cpu = NULL;
  need(gr_model_open(&m, argv[1], &e), &e);
  need(gr_pool_create(&pool, threads, &e), &e);
  need(gr_backend_open(&cpu, "cpu", pool, &e), &e);
  gr_precision precision;
  need(gr_precision_parse(argc > 6 ? argv[6] : NULL, &precision, &e), &e);
  need(gr_backend_use_precision(cpu, precision, &e), &e);
  const gr_lora_options lo = { .rank = rank, .alpha = 2.0 * (double)rank, .seed = 1 };
  need(gr_lora_create(&lora, m, &lo, &e), &e);
  float *values = gr_lora_values(lora);
  for (size_t i = 0; i < gr_lora_parameters(lora); i++) values[i] += 0.01f * (float)gr_random_normal(3, 4, i);
  step s = { 0 };
  make_step(&s, m, lora, cpu, window);
  fill(&s, m);
  double f[RUNS_MAX], b[RUNS_MAX], both[RUNS_MAX], processor[RUNS_MAX];
  double base = 4.0 * (double)gr_model_parameters(m) * (double)window, lora_flops = 6.0 * (double)gr_lora_parameters(lora) * (double)window;
  gr_cpu_limits limits = { 0 };
  size_t n = 0;
  run(&s, &f[0], &b[0]);
  for (double end = now() + seconds; n < RUNS_MAX && (n < 3 || now() < end); n++) {
    gr_cpu_limits_raise(&limits, cpu, pool, NULL, 0);
    double start = gr_pool_seconds(pool);
    run(&s, &f[n], &b[n]);
    processor[n] = (gr_pool_seconds(pool) - start) / threads;
    both[n] = f[n] + b[n];
  }
  print_profile(&s);
  double t = median(both, n), tp = median(processor, n), tf = median(f, n), tb = median(b, n), attention = attention_flops(&s);
  printf(
      "\nwindow %lld, %d threads, rank %lld, %zu runs: %.3f s a window, %.1f tokens/s (%.1f by processor time); backward / forward %.2f\n",
      (long long)window, threads, (long long)rank, n, t, (double)window / t, (double)window / tp, tb / tf);
  printf("limit: %.1f GFLOP/s of F32 multiply-adds on registers\n", limits.flop_s[0] * 1e-9);
  print_rate("4PT + LoRA + attention:", base + lora_flops + attention, t, tp, limits.flop_s[0]);
  print_rate("4PT alone:", base, t, tp, limits.flop_s[0]);
  printf("plan: %.1f MB\n", (double)gr_plan_bytes(s.plan, 0) / 1e6);
  return 0;
}
