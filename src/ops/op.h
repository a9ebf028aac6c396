/* What an op is. One op, one file, one line of ops.def (ADR 0002).
 *
 * A graph is made of nodes (an op applied to tensors) and tensors (leaves, or outputs of nodes). Tensors are F32 unless an op
 * says otherwise; weights keep the type they have in the file. Building never computes: it infers shapes and appends nodes.
 * Builders return NULL after an error and accept NULL inputs, so model code reads straight; gr_graph_status has the sentence. */
#ifndef GR_OPS_OP_H
#define GR_OPS_OP_H
#include "base/arena.h"
#include "base/error.h"
#include "base/pool.h"
#include "tensor/array.h"

enum { GR_IN_MAX = 12, GR_OUT_MAX = 4, GR_PARAMS_BYTES = 64 };

typedef struct gr_graph gr_graph;
typedef struct gr_node gr_node;
typedef struct gr_tensor gr_tensor;

typedef enum gr_op_id {
  GR_OP_NONE, /* no op: a leaf */
#define GR_OP(name, ggml, args, doc) GR_OP_##name,
#include "ops/ops.def"
#undef GR_OP
  GR_OP_COUNT
} gr_op_id;

/* Which run-time scalar a dimension follows. A tensor is planned with its capacity; a run says how much of it is live, and
 * what lies beyond is neither computed nor read. */
typedef enum gr_dim {
  GR_DIM_STATIC,
  GR_DIM_TOKENS,  /* n: query tokens of this run */
  GR_DIM_KEYS,    /* m: keys that attention may see, cached ones included */
  GR_DIM_OUTPUTS, /* rows of logits asked for */
  GR_DIM_COUNT
} gr_dim;

typedef enum gr_leaf {
  GR_LEAF_NONE,   /* the output of a node */
  GR_LEAF_WEIGHT, /* frozen and external: mapped from the model file, never written */
  GR_LEAF_PARAM,  /* trainable and external: A and B of adapters */
  GR_LEAF_INPUT,  /* written by the caller before each run */
  GR_LEAF_STATE   /* external and kept from run to run: the KV cache */
} gr_leaf;

struct gr_tensor {
  gr_graph *graph;
  const char *name; /* for errors and reports; "" when it has none */
  gr_dtype dtype;
  int64_t ne[GR_DIMS]; /* capacity */
  int64_t nb[GR_DIMS];
  uint8_t dim[GR_DIMS]; /* gr_dim of each dimension */
  uint8_t leaf;         /* gr_leaf */
  uint8_t output;       /* which output of node */
  gr_node *node;        /* NULL for a leaf */
  gr_tensor *base;      /* for a view: the tensor (never itself a view) whose storage this one is part of */
  int64_t offset;       /* bytes from base's storage */
  void *data;           /* external leaves: host address, set before a plan is made or bound later */
  uint32_t id;          /* index in the graph */
};

typedef enum gr_phase { GR_PHASE_FORWARD, GR_PHASE_BACKWARD, GR_PHASE_RECOMPUTE } gr_phase;

struct gr_node {
  gr_op_id op;
  uint8_t n_in, n_out;
  uint8_t phase;            /* gr_phase */
  int32_t layer;            /* of the model, -1: none; a backward node carries its forward node's */
  gr_tensor *in[GR_IN_MAX]; /* optional inputs may be NULL */
  gr_tensor *out[GR_OUT_MAX];
  _Alignas(8) unsigned char params[GR_PARAMS_BYTES];
  const char *name;
  uint32_t id;
};

struct gr_graph {
  gr_arena arena;
  gr_node **nodes; /* in an order that can be run */
  gr_tensor **tensors;
  size_t n_nodes, n_tensors, nodes_cap, tensors_cap;
  int32_t layer; /* tag of nodes added from now on */
  uint8_t phase;
  gr_error error; /* the first error; sticky */
};

/* ---- an op's own functions ---- */

/* The arrays of one application of an op, at the live sizes. Outputs are contiguous unless the op is in place. */
typedef struct gr_op_call {
  gr_op_id op;
  const void *params;
  int n_in, n_out;
  gr_array in[GR_IN_MAX]; /* an absent optional input has data NULL and ne[0] 0 */
  gr_array out[GR_OUT_MAX];
  gr_pool *pool; /* kernels only */
  void *scratch; /* kernels only: as many bytes as their row asked for, 64-byte aligned */
} gr_op_call;

/* What infer fills in for each output. nb and base/offset matter for views only; other outputs are contiguous. */
typedef struct gr_infer_out {
  gr_dtype dtype;
  int64_t ne[GR_DIMS];
  uint8_t dim[GR_DIMS];
  gr_tensor *view_of; /* shares storage with this input (or its base) */
  int64_t nb[GR_DIMS], offset;
} gr_infer_out;

typedef struct gr_infer {
  const void *params;
  int n_in, n_out;              /* n_out: preset to the op's; infer may lower it (optional outputs come last) */
  gr_tensor *const *in;         /* absent optional inputs are NULL; the first inputs_min never are */
  gr_infer_out out[GR_OUT_MAX]; /* preset: F32, ne all 1, static, no view */
} gr_infer;

/* Backward builds nodes for the wanted inputs only and computes nothing. dout[i] is NULL where no gradient arrives. */
typedef struct gr_backward {
  gr_graph *graph;
  gr_node *node;
  gr_tensor *dout[GR_OUT_MAX];
  bool wants[GR_IN_MAX];
  gr_tensor *din[GR_IN_MAX]; /* to fill: din[i] has the shape of in[i]; left NULL where the gradient is zero whatever the data */
} gr_backward;

typedef struct gr_cost {
  double flops, bytes_read, bytes_written;
} gr_cost;

struct gr_case_sink; /* ops/cases.h */

enum {
  GR_OP_VIEW = 1,         /* moves no data: outputs are views, there is no kernel */
  GR_OP_INPLACE = 2,      /* output 0 is input 0, written in place (a leaf of kind STATE) */
  GR_OP_KEEP = 4,         /* never recomputed: its outputs are kept (routing, random choices) */
  GR_OP_FUSED = 8,        /* made by the fusion pass only; has no backward */
  GR_OP_ALIAS = 32,       /* output 0 may take the storage of a contiguous input 0 of the same size: every kernel allows it */
  GR_OP_ALIAS_LAST = 64,  /* the same of the last of inputs_max, where it is there */
  GR_OP_ALIAS_BOTH = 128, /* outputs 0 and 1 may take that of inputs 0 and 1 */
  GR_OP_NO_BACKWARD = 16  /* a gradient through it is refused in words (it is itself a backward op, or moves integers) */
};

typedef struct gr_op {
  uint8_t inputs_min, inputs_max, outputs;
  uint32_t flags;
  uint16_t saves_in, saves_out; /* bit i: backward may read input / output i. Everything else may be freed before it runs */
  uint16_t shapes_in;           /* bit i: only the shape of input i is read, never its data; it has no gradient and asks for none */
  size_t params_bytes;
  gr_status (*infer)(gr_infer *, gr_error *);
  gr_status (*backward)(gr_backward *, gr_error *);
  void (*reference)(const gr_op_call *); /* scalar, plain, in double; F32 and F64 tensors alike: the definition */
  void (*cost)(const gr_op_call *, gr_cost *);
  void (*cases)(struct gr_case_sink *);
} gr_op;

const gr_op *gr_op_get(gr_op_id id);
/* Which input an output may take the storage of, -1: none. It may be absent. */
static inline int gr_op_alias(const gr_op *op, int output)
{
  if (op->flags & GR_OP_ALIAS_BOTH && output < 2) return output;
  if (output > 0) return -1;
  return op->flags & GR_OP_ALIAS ? 0 : op->flags & GR_OP_ALIAS_LAST ? op->inputs_max - 1 : -1;
}
const char *gr_op_name(gr_op_id id); /* Graft's name */
const char *gr_op_ggml(gr_op_id id); /* ggml's name of the same op */
const char *gr_op_doc(gr_op_id id);  /* one sentence */
/* By Graft's or ggml's name; GR_OP_NONE when there is none. */
gr_op_id gr_op_find(const char *name);

/* ---- building ---- */

gr_graph *gr_graph_create(void); /* NULL when out of memory */
void gr_graph_free(gr_graph *g);
/* The first error of any builder since creation, copied into e. */
gr_status gr_graph_status(const gr_graph *g, gr_error *e);
gr_status gr_graph_fail(gr_graph *g, gr_status status, const char *fmt, ...) GR_PRINTF(3, 4);

/* A leaf. name is copied. ne beyond n_dims are 1. Contiguous. dims: gr_dim of each dimension, or NULL for static. */
gr_tensor *gr_graph_leaf(gr_graph *g, gr_leaf leaf, gr_dtype dtype, const int64_t ne[GR_DIMS], const uint8_t *dims, void *data,
                         const char *name);

/* Applies op; returns output 0 (the others are in ->node->out). params are op->params_bytes long, NULL when 0. */
gr_tensor *gr_graph_node(gr_graph *g, gr_op_id op, gr_tensor *const *in, int n_in, const void *params);

/* Names a tensor for errors and reports; returns it. */
gr_tensor *gr_tensor_name(gr_tensor *t, const char *fmt, ...) GR_PRINTF(2, 3);
/* "name (F32 [64, 3])", into a small static-free buffer of the caller's. */
const char *gr_tensor_describe(const gr_tensor *t, char *text, size_t size);

static inline bool gr_tensor_contiguous(const gr_tensor *t)
{
  gr_array a = { .dtype = t->dtype, .ne = { t->ne[0], t->ne[1], t->ne[2], t->ne[3] }, .nb = { t->nb[0], t->nb[1], t->nb[2], t->nb[3] } };
  return gr_array_contiguous(&a);
}

/* Help for infer: copies dimension `from` of t to dimension `to` of o; copies all of them. */
void gr_infer_dim(gr_infer_out *o, int to, const gr_tensor *t, int from);
void gr_infer_like(gr_infer_out *o, const gr_tensor *t);
/* GR_OK when every present input i with bit i of mask is F32; else a refusal that names the op and the tensor. */
gr_status gr_infer_need_f32(const gr_infer *c, const char *op, unsigned mask, gr_error *e);

/* Shapes and tags alike; part can be repeated to whole's shape (a dimension that varies from run to run is met by the same one or by 1). */
bool gr_tensor_same_shape(const gr_tensor *a, const gr_tensor *b);
bool gr_tensor_repeats(const gr_tensor *part, const gr_tensor *whole);
/* "OP: A and B differ in shape" unless they are the same. */
gr_status gr_infer_need_same(const char *op, const gr_tensor *a, const gr_tensor *b, gr_error *e);
/* "OP: W is not one weight for each channel of X" unless w is [n] where x is [n, ...]. */
gr_status gr_infer_need_channels(const char *op, const gr_tensor *w, const gr_tensor *x, gr_error *e);
/* "OP: input i ("what") has no gradient" when one is wanted of any input in mask. */
gr_status gr_backward_refuse(const gr_backward *b, unsigned mask, const char *what, gr_error *e);

/* References: row (i1,i2,i3) of a (any float or quantized type, rows dense for quantized) decoded into y[ne[0]], as double. */
void gr_reference_row(const gr_array *a, int64_t i1, int64_t i2, int64_t i3, double *y);

/* Builders of all ops; the structs are in ops/params.h. */
struct gr_attention_inputs;
struct gr_attention_params;
struct gr_head_inputs;
struct gr_head_params;
struct gr_route_params;
struct gr_slots_lora_params;
#define GR_OP(name, ggml, args, doc) gr_tensor *gr_##name args;
#include "ops/ops.def"
#undef GR_OP

#endif
