/* From arrays to launches: what the makers of launches share. */
#ifndef GR_BACKEND_GPU_PACK_H
#define GR_BACKEND_GPU_PACK_H
#include "backend/gpu/gpu.h"

/* F32 with strides of whole elements, and sizes that 32-bit indices can walk. */
bool gr_gpu_plain_f32(const gr_array *a);
/* That, and one group a row, or one thread an element, is a launch that a device takes. */
bool gr_gpu_launchable(const gr_array *a);

/* Joins dimensions that all of the arrays walk evenly, so that a contiguous operation becomes one long row. array[0] has the full shape,
 * the others repeat to it; what they address stays the same. */
void gr_gpu_collapse(gr_array *const *array, int n);

/* I32 with strides of whole elements. */
bool gr_gpu_plain_i32(const gr_array *a);

void gr_gpu_shape(const gr_array *a, uint32_t ne[GR_DIMS]);
void gr_gpu_strides(const gr_array *a, int64_t stride[GR_DIMS]); /* in elements of F32 */
void gr_gpu_bind(gr_gpu_launch *l, int i, const gr_array *a);    /* buffer i is all that a reaches */

/* A launch of k with args (args_bytes of them) and no buffer bound. */
gr_gpu_launch gr_gpu_launch_make(gr_gpu_kernel k, uint64_t groups, const void *args, size_t args_bytes);
/* Puts it into b's queue; nothing when it has no group. */
gr_status gr_gpu_submit(gr_backend *b, const gr_gpu_launch *l, gr_error *e);

/* y = s x, of one shape; y may be x. */
gr_status gr_gpu_scale(gr_backend *b, const gr_array *x, float s, const gr_array *y, gr_error *e);

/* Groups of one row, one thread an element. */
static inline uint32_t gr_gpu_blocks(gr_gpu_kernel k, int64_t elements)
{
  int64_t size = (int64_t)gr_gpu_kernel_get(k)->size;
  return (uint32_t)((elements + size - 1) / size);
}

#endif
