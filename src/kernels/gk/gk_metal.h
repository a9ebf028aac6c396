/* Dialect: Metal. Indices are parameters of the entry point there, so GK_KERNEL appends them and GK_ENTER gathers them.
 * Compiled with fast math off. Checked here against stand-ins for Apple's headers only (tools/lint-kernels). */
#ifndef GK_METAL_H
#define GK_METAL_H
#include <metal_stdlib>

using namespace metal;

#define GK_FN static inline
#define GK_GLOBAL device
#define GK_SHARED_AS threadgroup
#define GK_CONST_AS constant
#define GK_PRIVATE thread
#define GK_UNROLL _Pragma("unroll")
#define GK_KERNEL(name, args_t, ...)                                                                                                       \
  kernel void name(constant args_t &a, __VA_ARGS__, uint gk_tid_ [[thread_index_in_threadgroup]],                                          \
                   uint3 gk_group_ [[threadgroup_position_in_grid]], uint3 gk_size_ [[threads_per_threadgroup]],                           \
                   uint gk_lanes_ [[threads_per_simdgroup]])
#define GK_ENTER(t) const gk_thread t = { gk_tid_, gk_group_.x, gk_size_.x, gk_lanes_ }
#define GK_SHARED(type, name, n) threadgroup type name[n]

struct gk_thread {
  uint32_t tid, group, size, lanes;
};

GK_FN uint32_t gk_tid(gk_thread t) { return t.tid; }
GK_FN uint32_t gk_group(gk_thread t) { return t.group; }
GK_FN uint32_t gk_size(gk_thread t) { return t.size; }
GK_FN uint32_t gk_lanes(gk_thread t) { return t.lanes; }
GK_FN void gk_barrier(gk_thread) { threadgroup_barrier(mem_flags::mem_threadgroup); }
/* simd_sum's order is not specified; a butterfly's is. */
GK_FN float gk_lane_sum(gk_thread t, float v)
{
  for (uint32_t mask = t.lanes / 2; mask > 0; mask /= 2) v += simd_shuffle_xor(v, ushort(mask));
  return v;
}

GK_FN float gk_fma(float a, float b, float c) { return fma(a, b, c); }
GK_FN float gk_sqrt(float x) { return precise::sqrt(x); }
GK_FN float gk_exp(float x) { return precise::exp(x); }
GK_FN float gk_tanh(float x) { return precise::tanh(x); }
GK_FN float gk_log(float x) { return precise::log(x); }
GK_FN float gk_bits_float(uint32_t bits) { return as_type<float>(bits); }
GK_FN uint32_t gk_float_bits(float f) { return as_type<uint32_t>(f); }

#endif
