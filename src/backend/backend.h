/* What a backend is: memory, a queue, and rows of kernels. It knows ops and arrays, nothing of graphs.
 *
 * Supported means that a row matches; there is no second list. Rows of one op are tried in descending priority, and the first
 * whose predicate admits the call (shapes, dtypes, strides; data NULL) runs it. The harness forces every row in turn on every
 * case its predicate admits, so a faster variant costs a row and a file, and no test edit.
 *
 * A row is chosen once, when a plan is made, at the planned capacities; it must then run every smaller live size too. */
#ifndef GR_BACKEND_BACKEND_H
#define GR_BACKEND_BACKEND_H
#include "ops/op.h"

typedef struct gr_backend gr_backend;

enum { GR_TOGETHER_MAX = 4 };

typedef struct gr_kernel_row {
  gr_op_id op;
  bool bf16;        /* rounds both operands of products to bf16: taken only where that was asked for (gr_backend_use_precision) */
  const char *name; /* grammar: <op>[_<dtypes>][_<variant>]__<target>, unique within a backend */
  int priority;
  bool (*admits)(const gr_op_call *call);                 /* NULL: every call that infer accepts */
  size_t (*scratch)(const gr_op_call *call, int threads); /* bytes wanted at these (capacity) sizes; NULL: none. Monotone in sizes */
  gr_status (*run)(gr_backend *b, const gr_op_call *call, gr_error *e);
  /* Runs n calls, at most GR_TOGETHER_MAX, of rows with this function, none of which reads what another writes: the bits of one after the
   * other. The scratch of the first call has room for all, each a multiple of 64 bytes. NULL: none may be run with others. */
  gr_status (*together)(gr_backend *b, const struct gr_kernel_row *const *rows, const gr_op_call *calls, int n, gr_error *e);
} gr_kernel_row;

typedef struct gr_backend_ops {
  const char *name;          /* "cpu", "ref", "emu": what -b takes */
  const gr_kernel_row *rows; /* grouped in any order; ends with op GR_OP_NONE */
  bool host_memory;          /* its addresses are host addresses: no copies to and from the host */
  /* Storage, 64-byte aligned. A device address is an opaque void * that allows pointer arithmetic. */
  gr_status (*alloc)(gr_backend *b, size_t bytes, void **address, gr_error *e);
  void (*free)(gr_backend *b, void *address);
  /* Ordered with the queue. Not called when host_memory. */
  gr_status (*write)(gr_backend *b, void *device, const void *host, size_t bytes, gr_error *e);
  gr_status (*read)(gr_backend *b, void *host, const void *device, size_t bytes, gr_error *e);
  gr_status (*sync)(gr_backend *b,
                    gr_error *e); /* waits for the queue; reports errors latched since the last sync. NULL: nothing to wait for */
  void (*close)(gr_backend *b);
} gr_backend_ops;

/* The head of every backend's own struct. */
struct gr_backend {
  const gr_backend_ops *ops;
  gr_pool *pool; /* the caller's, not owned; NULL: one thread */
  bool bf16;
};

/* What the operands of large products are rounded to. Sums are F32 in both, and so is everything else: adapters, their gradients, norms,
 * softmax, loss. */
typedef enum gr_precision { GR_PRECISION_F32, GR_PRECISION_BF16 } gr_precision;

/* By name: "f32", "bf16". NULL: the default, f32. */
gr_status gr_precision_parse(const char *name, gr_precision *p, gr_error *e);
/* Before plans are made; a new backend computes in F32. Refused where no row of the backend has that precision. */
gr_status gr_backend_use_precision(gr_backend *b, gr_precision p, gr_error *e);

/* The best row for a call, or NULL. Calls need shapes, dtypes, strides and params; data is not looked at. */
const gr_kernel_row *gr_backend_find(const gr_backend *b, const gr_op_call *call);

/* Opens a backend by name ("cpu", "ref", "emu"); an unknown name is refused with the list. pool may be NULL. */
gr_status gr_backend_open(gr_backend **b, const char *name, gr_pool *pool, gr_error *e);
void gr_backend_close(gr_backend *b); /* NULL is fine */

/* Every backend of this build, in order of registration; NULL past the end. */
const char *gr_backend_name(size_t i);

#endif
