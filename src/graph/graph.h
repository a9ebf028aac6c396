/* From a built graph to a run: gradients, rewriting, placement, memory, execution.
 *
 *   gr_graph_backward   appends the nodes of the gradients                                   (backward.c)
 *   gr_plan_create      drops what no output needs, recomputes the layers asked for, fuses, places each node on a backend, joins
 *                       launches that need nothing of each other, lays every tensor out in one arena a backend
 *                                                                                            (rewrite.c, place.c, join.c, layout.c)
 *   gr_plan_allocate    takes that memory; nothing is allocated afterwards
 *   gr_plan_run         runs launches from a cursor; may stop after any launch, with the same bits (run.c) */
#ifndef GR_GRAPH_GRAPH_H
#define GR_GRAPH_GRAPH_H
#include "backend/backend.h"
#include "base/buf.h"

/* Appends nodes for d(sum(seed * out)) / d(wrt[i]) and stores them in grads[i]. seed has the shape of out. A wrt[i] that out
 * does not depend on gets NULL: the caller names it (promise 2). An op on the way that has no gradient is an error that names it. */
gr_status gr_graph_backward(gr_graph *g, gr_tensor *out, gr_tensor *seed, gr_tensor *const *wrt, size_t n, gr_tensor **grads, gr_error *e);

typedef struct gr_plan gr_plan;

typedef struct gr_plan_options {
  gr_backend *const *backends; /* in order of preference */
  size_t n_backends;
  /* Which backend a node should go to, as an index; NULL or a backend without a row for it: the first that has one. */
  size_t (*prefer)(void *ctx, const gr_node *node);
  void *prefer_ctx;
  const uint8_t *recompute; /* [n_layers] 1: drop this layer's activations and compute them again for backward; NULL: none */
  size_t n_layers;
  bool no_fusion; /* keep the plain nodes: the oracle of every fused row */
  bool allow_ref; /* let nodes without any other row run on the double reference */
  bool poison;    /* fill the arenas with NaN bytes before every run that starts at launch 0 (tests) */
  bool profile;   /* time every launch */
} gr_plan_options;

/* Plans g (which is consumed: its nodes are rewritten, and it must outlive the plan) so that `outputs` can be read afterwards.
 * Refuses, naming it, a node that no backend has a kernel for. */
gr_status gr_plan_create(gr_plan **p, gr_graph *g, gr_tensor *const *outputs, size_t n_outputs, const gr_plan_options *o, gr_error *e);
void gr_plan_free(gr_plan *p);

/* Bytes that gr_plan_allocate takes on backend i: arena and scratch. External leaves on host backends take none. */
size_t gr_plan_bytes(const gr_plan *p, size_t backend);
gr_status gr_plan_allocate(gr_plan *p, gr_error *e);

/* Sets a run-time scalar; every dimension tagged with it becomes `live` (at most its capacity). Starts at the capacity. */
gr_status gr_plan_set_dim(gr_plan *p, gr_dim dim, int64_t live, gr_error *e);

/* Copies the live part of a leaf of kind INPUT in (contiguous, as its shape says), or of an output out. */
gr_status gr_plan_write(gr_plan *p, const gr_tensor *t, const void *data, size_t bytes, gr_error *e);
gr_status gr_plan_read(gr_plan *p, const gr_tensor *t, void *data, size_t bytes, gr_error *e);

/* Host address of a planned tensor (input, output) that lives on a host backend; NULL otherwise. */
void *gr_plan_host(gr_plan *p, const gr_tensor *t);

/* External leaves (WEIGHT, PARAM, STATE) are read at tensor->data, which may be changed between runs of host backends. */

size_t gr_plan_launches(const gr_plan *p);
/* Runs up to `most` launches from *cursor and moves it; done when it reaches gr_plan_launches. */
gr_status gr_plan_run(gr_plan *p, size_t *cursor, size_t most, gr_error *e);
/* All of it. */
gr_status gr_plan_run_all(gr_plan *p, gr_error *e);

/* Called before each launch that computes in host memory, its inputs as the run left them: what recording stands on. NULL: nothing. */
typedef gr_status gr_plan_watch_fn(void *ctx, const gr_node *node, const gr_op_call *call, gr_error *e);
void gr_plan_watch(gr_plan *p, gr_plan_watch_fn *watch, void *ctx);

typedef struct gr_launch_info {
  const gr_node *node; /* NULL for a copy between backends */
  const gr_tensor *copied;
  const char *op, *name; /* op; name of its first output */
  const char *backend, *row;
  bool bf16;      /* the row rounds operands to bf16 */
  gr_cost cost;   /* at the live sizes */
  double seconds; /* all runs so far, with profile */
  size_t runs;
} gr_launch_info;
void gr_plan_launch_info(const gr_plan *p, size_t i, gr_launch_info *info);

/* Nodes that run elsewhere than on the first backend, and which they are: "attention 4, matmul 1" is appended to *ops. */
size_t gr_plan_fallen(const gr_plan *p, gr_buf *ops);

#endif
