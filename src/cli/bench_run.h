/* What `graft bench` measures, beside the machine's limits in the same run. */
#ifndef GR_CLI_BENCH_RUN_H
#define GR_CLI_BENCH_RUN_H
#include "backend/cpu/peak.h"
#include "cli/cli.h"

/* Kinds of work in a profile. */
typedef enum gr_bench_class {
  GR_BENCH_PRODUCTS, /* weights and adapters, forward and backward */
  GR_BENCH_EXPERTS,  /* the same of stacks of experts, with routing */
  GR_BENCH_ATTENTION,
  GR_BENCH_HEAD,      /* logits, or head and loss in one */
  GR_BENCH_SMALL,     /* norms, rope, gates, sums, scales */
  GR_BENCH_MOVES,     /* rows by id, the cache, copies */
  GR_BENCH_OPTIMIZER, /* norm of the gradient and AdamW */
  GR_BENCH_CLASSES
} gr_bench_class;
const char *gr_bench_class_name(gr_bench_class c);

enum { GR_BENCH_FORWARD, GR_BENCH_BACKWARD, GR_BENCH_PHASES }; /* backward: recomputation and optimizer too */

typedef struct gr_bench_work {
  double seconds, flops[2], bytes; /* of all timed runs; operations (of F32, of operands rounded to bf16) and bytes as the ops' costs say */
  size_t launches;
} gr_bench_work;

enum { GR_BENCH_RUNS = 64 };

/* One kind of use: several runs of so many tokens. */
typedef struct gr_bench_use {
  const char *name;
  int64_t tokens; /* of a run; 0: not measured */
  size_t runs;
  double seconds[GR_BENCH_RUNS], processor[GR_BENCH_RUNS]; /* of each run: by the wall clock, and processor time of all threads */
  gr_bench_work work[GR_BENCH_CLASSES][GR_BENCH_PHASES];
} gr_bench_use;

typedef struct gr_bench {
  gr_cli_model *m;
  int64_t prompt_tokens, gen_tokens, window, rank, runs;
  const char *data; /* NULL: random tokens */
  /* Results. */
  gr_bench_use prefill, generation, training;
  gr_cpu_limits limits;
} gr_bench;

gr_status gr_bench_run(gr_bench *b, gr_error *e);

#endif
