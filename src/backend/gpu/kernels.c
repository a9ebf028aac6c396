#include "backend/gpu/kernels.h"

#define GK_ENTRY(name, args, buffers, size, shared, sync)                                                                                  \
  _Static_assert(sizeof(buffers) - 1 <= GR_GPU_BUFFERS_MAX && sizeof(args) <= GK_ARGS_MAX, #name);                                         \
  _Static_assert((size) % 64 == 0 && (size) <= GR_GPU_SIZE_MAX && (shared) <= GR_GPU_SHARED_MAX, #name);
#include "kernels/kernels.def"
#undef GK_ENTRY

static const gr_gpu_kernel_info kernels[GR_GPU_KERNEL_COUNT] = {
#define GK_ENTRY(name, args, buffers, size, shared, sync) [GR_GPU_##name] = { #name, buffers, sizeof(args), size, shared, sync },
#include "kernels/kernels.def"
#undef GK_ENTRY
};

const gr_gpu_kernel_info *gr_gpu_kernel_get(gr_gpu_kernel k) { return &kernels[k]; }
