/* The harness of ops: proves gradients, compares kernels with references, measures them, and tells what is supported.
 *
 * It reads the registry of ops (their cases stand in each op's own file) and the rows of every backend, so a new op or a new row
 * is tested the day it lands, with no edit here. Nothing passes vacuously: every mode counts its checks and fails at none. */
#ifndef GR_OPTEST_OPTEST_H
#define GR_OPTEST_OPTEST_H
#include <stdio.h>

#include "backend/backend.h"

/* The default: the one that the errors written down beside cases (`seen`) were measured at. */
enum { GR_OPTEST_SEED = 42 };

/* One backend to test. open NULL: the backend registered under this name. */
typedef struct gr_optest_target {
  const char *name;
  gr_status (*open)(gr_backend **b, gr_pool *pool, gr_error *e);
} gr_optest_target;

/* For the harness's own tests: this op's descriptor is used in place of the registered one. */
typedef struct gr_optest_swap {
  gr_op_id id;
  const gr_op *op;
} gr_optest_swap;

/* Where a check first turned red. */
typedef struct gr_optest_failure {
  char row[96], what[512], why[512];
} gr_optest_failure;

/* A breakage that must be caught: a line of base/mutants.def. */
typedef struct gr_optest_mutant {
  int id; /* gr_mutant */
  const char *name, *check, *subject, *what;
} gr_optest_mutant;

typedef struct gr_optest {
  FILE *out;           /* results; NULL: only the counters */
  bool json;           /* one object a line */
  bool verbose;        /* a line for each case too */
  bool full;           /* dear cases as well */
  bool strict;         /* a case that no row of a backend admits is a failure; on the CPU it always is */
  bool races;          /* test, for a sanitizer of threads: rows on several threads alone, held to each other's bits and nothing else */
  size_t failures_max; /* grad and test stop once so many failed; 0: never */
  uint64_t seed;       /* of all data: same seed, same bits */
  int threads;         /* perf: 0 is every processor */
  bool chosen[GR_OP_COUNT];
  bool chosen_any; /* false: every op */
  const gr_optest_target *targets;
  size_t n_targets; /* 0: every backend of this build, or the one named */
  const char *backend;
  const gr_optest_swap *swap;
  const char *mutant;              /* mutants: this one alone */
  const gr_optest_mutant *mutants; /* NULL: those of base/mutants.def; else n_mutants of them */
  size_t n_mutants;
  gr_optest_failure *first; /* NULL, or where the first failure is kept */
  const char *replay;       /* test: a recording, whose calls are the cases; NULL: each op's own */
  /* Counted while running. */
  size_t cases, checks, failures, uncovered;
} gr_optest;

/* Each runs its mode over the chosen ops and writes a summary. The status tells operating errors (no memory, no such backend);
 * what was found wrong is in failures, and a run that checked nothing is counted as one. */
gr_status gr_optest_grad(gr_optest *o, gr_error *e);
gr_status gr_optest_test(gr_optest *o, gr_error *e);
gr_status gr_optest_perf(gr_optest *o, gr_error *e);
gr_status gr_optest_support(gr_optest *o, gr_error *e);
/* Only in the build that has mutants; any other refuses it in words. A mutant that no check catches is a failure. */
gr_status gr_optest_mutants(gr_optest *o, gr_error *e);
/* docs/ops.md, from ops.def and the descriptors. */
gr_status gr_optest_doc(gr_optest *o, gr_error *e);

/* ---- recording (C10): calls of a real run, kept as cases ---- */

typedef struct gr_recorder gr_recorder;

/* Keeps the first call of each kind (op, parameters, types, shapes and layouts), as long as they take at most `bytes` together. */
gr_status gr_recorder_create(gr_recorder **r, size_t bytes, gr_error *e);
void gr_recorder_free(gr_recorder *r); /* NULL is fine */
/* A gr_plan_watch_fn: ctx is the recorder. */
gr_status gr_recorder_watch(void *ctx, const gr_node *node, const gr_op_call *call, gr_error *e);
/* Writes a GGUF file: parameters and layouts as metadata, inputs as tensors. Parameters have the bytes of this build's structs: a recording
 * is for the build that made it. What is there is replaced if it is a recording, and GR_ERR_USAGE if not. */
gr_status gr_recorder_save(const gr_recorder *r, const char *path, gr_error *e);
/* Calls seen, kept, and left out because they were too large. */
void gr_recorder_counts(const gr_recorder *r, size_t *seen, size_t *kept, size_t *left_out);

/* graft ops MODE [options]: argv[0] is the mode. Writes results to out and errors to err; returns the exit status: 0 all passed, 1
 * something failed, 2 wrong usage. */
int gr_optest_main(int argc, char **argv, FILE *out, FILE *err);

#endif
