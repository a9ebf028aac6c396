/* What the files of the harness share. */
#ifndef GR_OPTEST_INTERNAL_H
#define GR_OPTEST_INTERNAL_H
#include "io/gguf.h"
#include "ops/cases.h"
#include "optest/optest.h"

/* ---- cases.c: the cases of an op, and one of them as a graph ---- */

typedef struct gr_case_list {
  gr_case_sink sink; /* first: what an op's `cases` is handed */
  gr_arena arena;
  gr_case **items;
  size_t n, cap;
  gr_op_id op;
  bool failed;
} gr_case_list;

gr_status gr_case_list_make(gr_case_list *l, const gr_optest_swap *swap, gr_op_id op, gr_error *e);
void gr_case_list_free(gr_case_list *l);
/* "matmul(Q4_K [256, 5], F32 [256, 3] transposed) name" */
const char *gr_case_describe(gr_op_id op, const gr_case *c, char *text, size_t size);

/* record.c: puts the calls of l's op in a recording in the place of its cases, with their tolerance. The recording must outlive l. */
gr_status gr_record_cases(const gr_gguf *recording, gr_case_list *l, gr_error *e);

/* Each input is a view into a leaf of its own that is larger by guards on both sides. */
typedef struct gr_case_graph {
  gr_graph *graph;
  gr_tensor *in[GR_IN_MAX];
  gr_node *node;
} gr_case_graph;

/* Refusals of the op's infer come back as its status and sentence. */
gr_status gr_case_build(gr_case_graph *cg, gr_op_id op, const gr_case *c, gr_error *e);
void gr_case_graph_free(gr_case_graph *cg);

/* ---- fill.c ---- */

/* Writes every element of a (F32 or F64 for F32 inputs); key tells inputs apart. */
void gr_case_fill(const gr_case_in *in, const gr_array *a, uint64_t seed, uint64_t key);
/* Bytes that are NaN in every float type and far out of range as integers. */
void gr_poison(void *p, size_t bytes, gr_dtype dtype);

/* ---- interp.c: runs graphs by the references ---- */

typedef struct gr_interp {
  const gr_graph *graph;
  const gr_optest_swap *swap;
  bool wide;      /* F32 tensors are held as F64: strides and offsets double */
  void **storage; /* by tensor id; NULL for views */
  size_t *bytes;
  int64_t live[GR_DIM_COUNT]; /* of each tagged dimension; -1: as planned */
} gr_interp;

gr_status gr_interp_open(gr_interp *it, const gr_graph *g, bool wide, const gr_optest_swap *swap, gr_error *e);
void gr_interp_close(gr_interp *it);
gr_array gr_interp_array(const gr_interp *it, const gr_tensor *t);
void gr_interp_call(const gr_interp *it, const gr_node *n, gr_op_call *call);
void gr_interp_run(const gr_interp *it, size_t first, size_t end);
void gr_interp_poison(const gr_interp *it, const gr_tensor *t); /* the whole storage that t is part of */

/* ---- rig.c: one kernel row set up on its backend, with guards ---- */

/* Shapes, types and strides at the planned capacities, data NULL: what predicates and scratch sizes are asked with. */
void gr_case_call(const gr_case_graph *cg, gr_op_call *call);

typedef struct gr_rig_buffer {
  void *device; /* NULL: none */
  size_t bytes; /* guards included */
  size_t guard; /* bytes before the first element */
} gr_rig_buffer;

typedef struct gr_rig {
  gr_backend *backend;
  const gr_kernel_row *row;
  gr_op_call call; /* at the live sizes, in the backend's memory */
  gr_rig_buffer in[GR_IN_MAX], out[GR_OUT_MAX], scratch;
  void *state; /* host copy of what an op in place found; NULL for the others */
  size_t state_bytes;
  bool in_place;
} gr_rig;

/* Inputs are those of `it`, but where replace[i].data is set: dense host arrays that stand in for input i. NULL: none. */
gr_status gr_rig_open(gr_rig *r, gr_backend *b, const gr_kernel_row *row, const gr_interp *it, const gr_case_graph *cg,
                      const gr_array *replace, gr_error *e);
void gr_rig_close(gr_rig *r);
/* Outputs and scratch poisoned, state as it was. */
gr_status gr_rig_reset(gr_rig *r, gr_error *e);
/* For ops of kind GR_OP_ALIAS, ALIAS_LAST or ALIAS_BOTH: resets, and puts each output that may be there in the place of its input; whether
 * there is one. */
gr_status gr_rig_alias(gr_rig *r, const gr_interp *it, const gr_node *node, bool *any, gr_error *e);
gr_status gr_rig_run(gr_rig *r, gr_error *e);
/* The whole buffer of output i as it is now, guards included, in fresh host memory; *view is the output within it. */
gr_status gr_rig_fetch(gr_rig *r, int i, void **bytes, gr_array *view, gr_error *e);
/* Whether everything around the live elements of a fetched output is as reset left it, and the guard after scratch too. */
gr_status gr_rig_intact(gr_rig *r, int i, const void *bytes, const gr_array *view, bool *intact, gr_error *e);

/* name without a type token between underscores: "matmul_q4k_f32__cpu" and "matmul_f32_f32__cpu" are one kernel to it. */
void gr_rig_family(const char *name, char *family, size_t size);

/* ---- compare.c ---- */

typedef struct gr_diff {
  double norm, max;  /* C4's two errors */
  int64_t elements;  /* compared */
  bool zero;         /* the truth is 0 everywhere */
  const char *fault; /* what rules `got` out whatever the tolerance: "NaN", ...; NULL */
  int64_t at[GR_DIMS];
  double got, want; /* at the fault, or where they differ most */
} gr_diff;

/* Of t, floor and share say what is compared; whether that is too much is for the caller to say. */
gr_diff gr_compare(const gr_array *got, const gr_array *want, const gr_tolerance *t);
/* The same for each slice of output `out` by itself: those that are farthest off, *number being the slice that has the largest norm or the
 * first fault. -1: there are no slices. */
gr_status gr_compare_slices(const gr_op_call *call, gr_case_slice *slice, int out, const gr_array *got, const gr_array *want,
                            const gr_tolerance *t, gr_diff *worst, int64_t *number, gr_error *e);

/* What a row may be off on a case: the case's tolerance, or that of bf16. */
gr_tolerance gr_optest_allowed(const gr_case *c, const gr_kernel_row *row);

/* ---- report.c ---- */

const gr_op *gr_optest_op(const gr_optest_swap *swap, gr_op_id id);
bool gr_optest_wanted(const gr_optest *o, gr_op_id id);
bool gr_optest_enough(const gr_optest *o); /* so many failures that there is no point in going on */
/* Counts a failure and tells it. row may be NULL. */
void gr_optest_fail(gr_optest *o, const char *row, gr_op_id op, const gr_case *c, const char *fmt, ...) GR_PRINTF(5, 6);
void gr_optest_note(const gr_optest *o, const char *kind, const char *fmt, ...) GR_PRINTF(3, 4);
void gr_optest_pass(gr_optest *o, const char *row, gr_op_id op, const gr_case *c, const gr_diff *d);
/* The last line: what was run. A run without checks is a failure. */
void gr_optest_summary(gr_optest *o, const char *mode);

/* The backends to go through: o->targets, or the registry. NULL past the end. */
gr_status gr_optest_open(const gr_optest *o, size_t i, gr_pool *pool, gr_backend **b, gr_error *e);
const char *gr_optest_target_name(const gr_optest *o, size_t i);

#endif
