/* graft bench: tokens a second of prefill, generation and training, beside what the machine can do at most, by kind of work. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/bench_run.h"

struct options {
  gr_cli_model m;
  gr_bench bench;
  bool json;
};

static int by_value(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Quantile 0 is the least, 0.5 the median. */
static double quantile(const double *x, size_t n, double q)
{
  double sorted[GR_BENCH_RUNS];
  if (!n) return 0;
  memcpy(sorted, x, n * sizeof *x);
  qsort(sorted, n, sizeof *sorted, by_value);
  return sorted[(size_t)(q * (double)(n - 1) + 0.5)];
}

/* The least seconds that the operations of some work can take: those of each precision at its limit. */
static double least_seconds(const gr_bench *b, const double flops[2])
{
  return flops[0] / b->limits.flop_s[0] + flops[1] / b->limits.flop_s[1];
}

/* What a use came to. */
struct figures {
  double tokens_s, best, processor;    /* median and best by the wall clock; median by processor time, as if no other process ran */
  double flop_s, byte_s;               /* over the time of its launches */
  double of_limit, of_limit_processor; /* the least its operations can take over what they took; over the processor time of all runs */
  double seconds;                      /* of all launches */
};

static struct figures figures_of(const gr_bench *b, const gr_bench_use *use)
{
  int threads = gr_pool_threads(b->m->pool);
  double flops[2] = { 0, 0 }, bytes = 0, tokens = (double)use->tokens;
  struct figures f = { .tokens_s = tokens / quantile(use->seconds, use->runs, 0.5),
                       .best = tokens / quantile(use->seconds, use->runs, 0),
                       .processor = tokens * threads / quantile(use->processor, use->runs, 0.5) };
  for (int c = 0; c < GR_BENCH_CLASSES; c++)
    for (int phase = 0; phase < GR_BENCH_PHASES; phase++) {
      const gr_bench_work *w = &use->work[c][phase];
      f.seconds += w->seconds, flops[0] += w->flops[0], flops[1] += w->flops[1], bytes += w->bytes;
    }
  double processor = 0;
  for (size_t i = 0; i < use->runs; i++) processor += use->processor[i];
  f.flop_s = (flops[0] + flops[1]) / f.seconds;
  f.of_limit = least_seconds(b, flops) / f.seconds;
  f.of_limit_processor = least_seconds(b, flops) * threads / processor;
  f.byte_s = bytes / f.seconds;
  return f;
}

/* The same of one kind of work. */
static struct figures figures_of_work(const gr_bench *b, const gr_bench_work *w)
{
  return (struct figures){ .flop_s = (w->flops[0] + w->flops[1]) / w->seconds,
                           .byte_s = w->bytes / w->seconds,
                           .of_limit = least_seconds(b, w->flops) / w->seconds,
                           .seconds = w->seconds };
}

static const char *phase_name(int phase) { return phase == GR_BENCH_FORWARD ? "forward" : "backward"; }

static bool in_bf16(const gr_bench *b) { return b->m->backends[b->m->n_backends - 1]->bf16; }

/* ---- text ---- */

static void print_use(const gr_bench *b, const gr_bench_use *use)
{
  if (!use->runs) return;
  struct figures f = figures_of(b, use);
  printf("\n%-10s %.1f tokens/s (best %.1f; %.1f by processor time), %lld tokens a run, %zu runs\n", use->name, f.tokens_s, f.best,
         f.processor, (long long)use->tokens, use->runs);
  printf("           %.1f GFLOP/s, %.1f %% of the limit (%.1f %% by processor time); %.1f GB/s, %.1f %% of what memory gives\n",
         1e-9 * f.flop_s, 100 * f.of_limit, 100 * f.of_limit_processor, 1e-9 * f.byte_s, 100 * f.byte_s / b->limits.byte_s);
  printf("  %-30s %8s %10s %8s %8s %8s\n", "work", "share", "GFLOP/s", "limit", "GB/s", "memory");
  for (int c = 0; c < GR_BENCH_CLASSES; c++)
    for (int phase = 0; phase < GR_BENCH_PHASES; phase++) {
      const gr_bench_work *w = &use->work[c][phase];
      if (w->seconds <= 0) continue;
      struct figures k = figures_of_work(b, w);
      char name[48];
      snprintf(name, sizeof name, "%s%s%s", gr_bench_class_name((gr_bench_class)c), c == GR_BENCH_OPTIMIZER ? "" : ", ",
               c == GR_BENCH_OPTIMIZER ? "" : phase_name(phase));
      printf("  %-30s %6.1f %% %10.1f %6.1f %% %8.1f %6.1f %%\n", name, 100 * k.seconds / f.seconds, 1e-9 * k.flop_s, 100 * k.of_limit,
             1e-9 * k.byte_s, 100 * k.byte_s / b->limits.byte_s);
    }
}

static void print_text(const gr_bench *b)
{
  printf("model    %s\n", b->m->path);
  printf("limits   %.1f GFLOP/s of F32 multiply-adds on registers", 1e-9 * b->limits.flop_s[0]);
  if (in_bf16(b)) printf(", %.1f of those of bf16", 1e-9 * b->limits.flop_s[1]);
  printf(", %.1f GB/s read from memory; %d threads\n", 1e-9 * b->limits.byte_s, gr_pool_threads(b->m->pool));
  print_use(b, &b->prefill);
  print_use(b, &b->generation);
  print_use(b, &b->training);
}

/* ---- JSON ---- */

static json_t *work_json(const gr_bench *b, const gr_bench_use *use, double seconds)
{
  json_t *all = json_array();
  for (int c = 0; c < GR_BENCH_CLASSES; c++)
    for (int phase = 0; phase < GR_BENCH_PHASES; phase++) {
      const gr_bench_work *w = &use->work[c][phase];
      if (w->seconds <= 0) continue;
      struct figures k = figures_of_work(b, w);
      json_array_append_new(all, json_pack("{s:s,s:s,s:f,s:f,s:f,s:f,s:f,s:f}", "work", gr_bench_class_name((gr_bench_class)c), "phase",
                                           c == GR_BENCH_OPTIMIZER ? "optimizer" : phase_name(phase), "seconds", k.seconds, "share",
                                           k.seconds / seconds, "gflop_s", 1e-9 * k.flop_s, "of_limit", k.of_limit, "gb_s", 1e-9 * k.byte_s,
                                           "of_memory", k.byte_s / b->limits.byte_s));
    }
  return all;
}

static void add_use(json_t *out, const gr_bench *b, const gr_bench_use *use)
{
  if (!use->runs) return;
  struct figures f = figures_of(b, use);
  json_object_set_new(out, use->name,
                      json_pack("{s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:o}", "tokens", (json_int_t)use->tokens, "runs",
                                (json_int_t)use->runs, "tokens_s", f.tokens_s, "tokens_s_best", f.best, "tokens_s_processor", f.processor,
                                "gflop_s", 1e-9 * f.flop_s, "of_limit", f.of_limit, "of_limit_processor", f.of_limit_processor, "gb_s",
                                1e-9 * f.byte_s, "of_memory", f.byte_s / b->limits.byte_s, "work", work_json(b, use, f.seconds)));
}

static void print_json(const gr_bench *b)
{
  json_t *out =
      json_pack("{s:o,s:i,s:s,s:f,s:f,s:f}", "model", gr_cli_json_text(b->m->path, strlen(b->m->path)), "threads",
                gr_pool_threads(b->m->pool), "precision", in_bf16(b) ? "bf16" : "f32", "limit_gflop_s", 1e-9 * b->limits.flop_s[0],
                "limit_bf16_gflop_s", 1e-9 * b->limits.flop_s[1], "memory_gb_s", 1e-9 * b->limits.byte_s);
  add_use(out, b, &b->prefill);
  add_use(out, b, &b->generation);
  add_use(out, b, &b->training);
  gr_cli_json(out);
}

/* ---- command ---- */

static gr_status check(const gr_bench *b, gr_error *e)
{
  const int64_t most = 1 << 24;
  if (b->prompt_tokens < 0 || b->prompt_tokens > most || b->gen_tokens < 0 || b->gen_tokens > most || b->window < 0 || b->window > most)
    return gr_fail(e, GR_ERR_USAGE, "--prompt-tokens, --gen-tokens and --window take 0 (none) to %lld tokens", (long long)most);
  if (b->window == 1)
    return gr_fail(e, GR_ERR_USAGE, "a window of one token has nothing to predict: give at least 2 with -c, or 0 for no training");
  if (b->gen_tokens && !b->prompt_tokens)
    return gr_fail(e, GR_ERR_USAGE, "generation goes on from a prompt: give --prompt-tokens 1 or more, or --gen-tokens 0");
  if (!b->prompt_tokens && !b->window) return gr_fail(e, GR_ERR_USAGE, "there is nothing to measure: --prompt-tokens and --window are 0");
  if (b->runs < 1 || b->runs > GR_BENCH_RUNS)
    return gr_fail(e, GR_ERR_USAGE, "--runs takes 1 to %d, not %lld", GR_BENCH_RUNS, (long long)b->runs);
  return GR_OK;
}

static gr_status run(struct options *o, gr_error *e)
{
  gr_bench *b = &o->bench;
  GR_TRY(check(b, e));
  GR_TRY(gr_cli_model_open(&o->m, e));
  GR_TRY(gr_cli_check_bases(&o->m, NULL, false, e));
  GR_TRY(gr_bench_run(b, e));
  if (o->json) print_json(b);
  else print_text(b);
  return GR_OK;
}

int gr_cmd_bench(int argc, char **argv)
{
  struct options o = { .bench = { .prompt_tokens = 512, .gen_tokens = 64, .window = 512, .rank = 16, .runs = 5 } };
  o.bench.m = &o.m;
  const gr_arg args[] = {
    GR_CLI_MODEL_ARGS(o.m),
    { "-d --data", GR_ARG_TEXT, "FILE", "take the tokens from this data, as train does (default: random ones)", &o.bench.data, NULL },
    { "--prompt-tokens", GR_ARG_INT, "N", "tokens of a prompt (default 512; 0: no prefill)", &o.bench.prompt_tokens, NULL },
    { "--gen-tokens", GR_ARG_INT, "N", "tokens generated after it (default 64; 0: none)", &o.bench.gen_tokens, NULL },
    { "-c --window", GR_ARG_INT, "N", "tokens of a training window (default 512; 0: no training)", &o.bench.window, NULL },
    { "-r --rank", GR_ARG_INT, "R", "of the adapter that is trained, on every linear layer (default 16)", &o.bench.rank, NULL },
    { "--runs", GR_ARG_INT, "N", "timed runs of each, after one that is not (default 5)", &o.bench.runs, NULL },
    { "--json", GR_ARG_FLAG, NULL, "JSON on stdout", &o.json, NULL },
    { 0 },
  };
  int status = 0;
  gr_error e = { 0 };
  if (gr_cli_parse(args, argc, argv, NULL, "usage: graft bench -m MODEL [-d FILE] [options]", &status))
    status = run(&o, &e) == GR_OK ? 0 : gr_cli_fail(&e);
  gr_cli_model_close(&o.m);
  return status;
}
