/* The kernels of src/kernels as the host knows them: numbers, what kernels.def says of each, and what it takes to launch one. C and C++. */
#ifndef GR_BACKEND_GPU_KERNELS_H
#define GR_BACKEND_GPU_KERNELS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/args.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gr_gpu_kernel {
#define GK_ENTRY(name, args, buffers, size, shared, sync) GR_GPU_##name,
#include "kernels/kernels.def"
#undef GK_ENTRY
  GR_GPU_KERNEL_COUNT
} gr_gpu_kernel;

enum { GR_GPU_BUFFERS_MAX = 8, GR_GPU_SIZE_MAX = 256, GR_GPU_SHARED_MAX = 32 << 10 };

typedef struct gr_gpu_kernel_info {
  const char *name;      /* of the entry point */
  const char *buffers;   /* a letter each: i read, o written */
  uint32_t args_bytes;   /* of its argument struct */
  uint32_t size;         /* threads of a group: a multiple of 64 */
  uint32_t shared_bytes; /* of a group */
  bool sync;             /* has barriers or collectives */
} gr_gpu_kernel_info;

const gr_gpu_kernel_info *gr_gpu_kernel_get(gr_gpu_kernel k);

typedef struct gr_gpu_buffer {
  void *address; /* of the device */
  size_t bytes;  /* from the first byte of the array to one past its last, strides included */
  bool gaps;     /* strides leave bytes between elements that are not the array's */
} gr_gpu_buffer;

typedef struct gr_gpu_launch {
  gr_gpu_kernel kernel;
  uint32_t groups;
  gr_gpu_buffer buffer[GR_GPU_BUFFERS_MAX]; /* as many as the kernel has, in its order; an output may be an input's array, and overlaps
                                               nothing else */
  uint64_t args[GK_ARGS_MAX / sizeof(uint64_t)];
} gr_gpu_launch;

#ifdef __cplusplus
}
#endif

#endif
