/* Dialect: CUDA, and HIP, which speaks the same surface. Compiled without contraction (nvcc -fmad=false, hipcc -ffp-contract=off) and
 * without fast math. */
#ifndef GK_CUDA_H
#define GK_CUDA_H
#include <stdint.h>

#define GK_FN static __device__ __forceinline__
#define GK_GLOBAL
#define GK_SHARED_AS
#define GK_CONST_AS
#define GK_PRIVATE
#define GK_UNROLL _Pragma("unroll")
#define GK_KERNEL(name, args_t, ...) extern "C" __global__ void name(const args_t a, __VA_ARGS__)
#define GK_ENTER(t) const gk_thread t = {}
#define GK_SHARED(type, name, n) __shared__ type name[n]

struct gk_thread {
}; /* everything is a builtin */

GK_FN uint32_t gk_tid(gk_thread) { return threadIdx.x; }
GK_FN uint32_t gk_group(gk_thread) { return blockIdx.x; }
GK_FN uint32_t gk_size(gk_thread) { return blockDim.x; }
GK_FN void gk_barrier(gk_thread) { __syncthreads(); }
#if defined(__HIP__)
GK_FN uint32_t gk_lanes(gk_thread) { return warpSize; }
GK_FN float gk_lane_exchange(float v, uint32_t mask) { return __shfl_xor(v, mask); }
#else
GK_FN uint32_t gk_lanes(gk_thread) { return 32; }
GK_FN float gk_lane_exchange(float v, uint32_t mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
#endif
GK_FN float gk_lane_sum(gk_thread t, float v)
{
  for (uint32_t mask = gk_lanes(t) / 2; mask > 0; mask /= 2) v += gk_lane_exchange(v, mask);
  return v;
}

GK_FN float gk_fma(float a, float b, float c) { return fmaf(a, b, c); }
GK_FN float gk_sqrt(float x) { return sqrtf(x); }
GK_FN float gk_exp(float x) { return expf(x); }
GK_FN float gk_tanh(float x) { return tanhf(x); }
GK_FN float gk_log(float x) { return logf(x); }
GK_FN float gk_bits_float(uint32_t bits) { return __uint_as_float(bits); }
GK_FN uint32_t gk_float_bits(float f) { return __float_as_uint(f); }

#endif
