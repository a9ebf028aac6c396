/* What GPUs have in common on the host's side: each op's launch (kernel, arguments, buffers, groups) is made here, and a driver only
 * carries it out. A driver's own struct starts with gr_gpu, its table of rows is gpu/rows.def, and its memory is its own. */
#ifndef GR_BACKEND_GPU_GPU_H
#define GR_BACKEND_GPU_GPU_H
#include "backend/backend.h"
#include "backend/gpu/kernels.h"

typedef struct gr_gpu {
  gr_backend head;
  /* Puts a launch into the queue. What goes wrong later is reported by sync, with the kernel's name. */
  gr_status (*launch)(struct gr_gpu *gpu, const gr_gpu_launch *launch, gr_error *e);
} gr_gpu;

/* The rows of gpu/rows.def: predicates and launches. */
#define GR_GPU_ROW(op, name, id)                                                                                                           \
  bool gr_gpu_admits_##id(const gr_op_call *call);                                                                                         \
  gr_status gr_gpu_run_##id(gr_backend *b, const gr_op_call *call, gr_error *e);
#define GR_GPU_ROW_SCRATCH(op, name, id)                                                                                                   \
  GR_GPU_ROW(op, name, id)                                                                                                                 \
  size_t gr_gpu_scratch_##id(const gr_op_call *call, int threads);
#include "backend/gpu/rows.def"
#undef GR_GPU_ROW_SCRATCH
#undef GR_GPU_ROW

#endif
