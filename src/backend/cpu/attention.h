/* What the attention kernels of every instruction set are handed. Rows (dimension 0) of all arrays are dense floats. */
#ifndef GR_CPU_ATTENTION_H
#define GR_CPU_ATTENTION_H
#include "ops/params.h"
#include "tensor/array.h"

/* Keys [from, to) are visible to a query; `start` is the first key of its segment, from which blocks of keys are counted so that a
 * sample's bits do not depend on what it is packed with. */
typedef struct gr_cpu_visible {
  int32_t start, from, to;
} gr_cpu_visible;

typedef struct gr_cpu_attention {
  struct gr_attention_params params;
  gr_array q, k, v, out, lse, dout, dq, dk, dv; /* the gradients in attention_back only */
  const float *sinks;                           /* [H] or NULL */
  const gr_cpu_visible *visible;                /* [n] */
  int64_t group;                                /* query heads of a key head */
} gr_cpu_attention;

#endif
