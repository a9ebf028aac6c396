/* Stand-ins for what kernels use of the HIP runtime's headers, so that clang can parse the HIP dialect without ROCm. */
#pragma once
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __HIP__ 1

struct gk_stub_index {
  unsigned x, y, z;
};
extern const __device__ __attribute__((weak)) gk_stub_index threadIdx, blockIdx, blockDim;
extern const __device__ __attribute__((weak)) int warpSize;
__device__ void __syncthreads();
__device__ float __shfl_xor(float v, int mask);
__device__ float fmaf(float, float, float);
__device__ float sqrtf(float);
__device__ float expf(float);
__device__ float logf(float);
__device__ float tanhf(float);
__device__ float __uint_as_float(unsigned);
__device__ unsigned __float_as_uint(float);
