/* The plan's insides, shared by rewrite.c, place.c, join.c, layout.c and run.c. */
#ifndef GR_GRAPH_PLAN_H
#define GR_GRAPH_PLAN_H
#include "graph/graph.h"

enum { GR_BACKENDS_MAX = 8 };

/* Where the storage of one root tensor (not a view) stands on one backend. */
typedef struct gr_place {
  const gr_tensor *root;
  size_t backend;
  size_t bytes, offset; /* in the backend's arena */
  size_t first, last;   /* launches between which it is alive */
  void *address;        /* set by allocate; external leaves on host backends: NULL, read from root->data at each run */
  bool external;
  int32_t shares; /* index of the place whose storage it takes over (in-place), or -1 */
} gr_place;

typedef struct gr_launch {
  gr_node *node; /* NULL: a copy */
  size_t backend;
  const gr_kernel_row *row;
  int32_t in[GR_IN_MAX], out[GR_OUT_MAX]; /* indices of places, -1: absent */
  int joined;                             /* launches behind it that run together with it */
  const gr_tensor *copied;                /* copy: root tensor; in[0] its place of origin, out[0] the new one */
  double seconds;
  size_t runs;
} gr_launch;

struct gr_plan {
  gr_graph *graph;
  gr_plan_options options;
  gr_backend *backends[GR_BACKENDS_MAX];
  size_t n_backends;
  gr_node **schedule; /* after dropping, recompute and fusion */
  size_t n_schedule;
  gr_tensor **outputs;
  size_t n_outputs;
  gr_launch *launches;
  size_t n_launches, launches_cap;
  gr_place *places;
  size_t n_places, places_cap;
  int32_t *place_of; /* [n_tensors * n_backends] place of a root tensor on a backend, -1: none */
  size_t n_tensors;
  size_t arena_bytes[GR_BACKENDS_MAX], scratch_bytes[GR_BACKENDS_MAX];
  void *arena[GR_BACKENDS_MAX], *scratch[GR_BACKENDS_MAX];
  void *staging; /* for copies between two device backends */
  size_t staging_bytes;
  int64_t live[GR_DIM_COUNT]; /* -1: at capacity */
  gr_plan_watch_fn *watch;
  void *watch_ctx;
  bool allocated, uploaded;
};

static inline const gr_tensor *gr_tensor_root(const gr_tensor *t) { return t->base ? t->base : t; }
static inline bool gr_leaf_external(const gr_tensor *t)
{
  return t->leaf == GR_LEAF_WEIGHT || t->leaf == GR_LEAF_PARAM || t->leaf == GR_LEAF_STATE;
}

/* rewrite.c: fills schedule. */
gr_status gr_plan_rewrite(gr_plan *p, gr_error *e);
/* names.c: names what in schedule has no name. */
gr_status gr_plan_name(gr_plan *p, gr_error *e);
/* place.c: fills launches and places (without offsets); which backend runs a node and by which row, false: none does. */
gr_status gr_plan_place(gr_plan *p, gr_error *e);
bool gr_plan_choose(const gr_plan *p, const gr_node *node, size_t *backend, const gr_kernel_row **row);
/* join.c: fills joined, and lets what these launches write live from the first of them on. */
void gr_plan_join(gr_plan *p);
/* layout.c: fills offsets, arena_bytes, scratch_bytes. */
gr_status gr_plan_layout(gr_plan *p, gr_error *e);

/* The array of t at capacity (live == NULL) or at live sizes; data is not set. */
gr_array gr_tensor_array(const gr_tensor *t, const int64_t *live);
/* The call of a node, without data. */
void gr_node_call(const gr_node *node, const int64_t *live, gr_op_call *call);
/* Bytes of a root tensor's storage at capacity. */
size_t gr_tensor_bytes(const gr_tensor *t);

#endif
