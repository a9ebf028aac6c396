/* Dialect: lint. Address spaces are real types here, so a pointer into the wrong one is a compile error, and what Metal's C++
 * lacks is poisoned. Nothing is generated (clang -fsyntax-only). */
#ifndef GK_LINT_H
#define GK_LINT_H
#include <stdint.h>

#define GK_FN static inline
#define GK_GLOBAL __attribute__((address_space(1)))
#define GK_CONST_AS __attribute__((address_space(2)))
#define GK_SHARED_AS __attribute__((address_space(3)))
#define GK_PRIVATE
#define GK_UNROLL
#define GK_KERNEL(name, args_t, ...)                                                                                                       \
  void name(gk_thread gk_self, const GK_CONST_AS args_t &a, __VA_ARGS__);                                                                  \
  void name(gk_thread gk_self, const GK_CONST_AS args_t &a, __VA_ARGS__)
#define GK_ENTER(t) const gk_thread t = gk_self
#define GK_SHARED(type, name, n) static GK_SHARED_AS type name[n]

struct gk_thread {
  uint32_t tid, group, size, lanes;
};

GK_FN uint32_t gk_tid(gk_thread t) { return t.tid; }
GK_FN uint32_t gk_group(gk_thread t) { return t.group; }
GK_FN uint32_t gk_size(gk_thread t) { return t.size; }
GK_FN uint32_t gk_lanes(gk_thread t) { return t.lanes; }
GK_FN void gk_barrier(gk_thread) {}
GK_FN float gk_lane_sum(gk_thread, float v) { return v; }

GK_FN float gk_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GK_FN float gk_sqrt(float x) { return __builtin_sqrtf(x); }
GK_FN float gk_exp(float x) { return __builtin_expf(x); }
GK_FN float gk_tanh(float x) { return __builtin_tanhf(x); }
GK_FN float gk_log(float x) { return __builtin_logf(x); }
GK_FN float gk_bits_float(uint32_t bits)
{
  float f = 0.0f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}
GK_FN uint32_t gk_float_bits(float f)
{
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &f, sizeof bits);
  return bits;
}

/* Not in Metal's C++, or not in its device code; `static` only as GK_FN and GK_SHARED write it, `long` only as int64_t does. */
#pragma GCC poison double long static virtual new delete goto try catch throw dynamic_cast typeid friend thread_local mutable union operator
#pragma GCC poison auto std printf malloc free memcpy memset assert __builtin_memcpy asm __asm__ inline private public protected

#endif
