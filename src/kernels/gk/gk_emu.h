/* Dialect: the emulator. A GPU thread is a fiber of the host, and a barrier gives way to the next one. */
#ifndef GK_EMU_H
#define GK_EMU_H
#include <math.h>
#include <string.h>

#include "kernels/gk/gk_emu_host.h"

#define GK_FN static inline
#define GK_GLOBAL
#define GK_SHARED_AS
#define GK_CONST_AS
#define GK_PRIVATE
#define GK_UNROLL
#define GK_KERNEL(name, args_t, ...) static void name(gk_thread gk_self, const args_t &a, __VA_ARGS__)
#define GK_ENTER(t) const gk_thread t = gk_self
#define GK_SHARED(type, name, n) type(&name)[n] = *static_cast<type(*)[n]>(gr_emu_shared(gk_self, sizeof(type) * (n), __FILE__, __LINE__))

typedef gr_emu_thread *gk_thread;

GK_FN uint32_t gk_tid(gk_thread t) { return t->tid; }
GK_FN uint32_t gk_group(gk_thread t) { return t->group; }
GK_FN uint32_t gk_size(gk_thread t) { return t->size; }
GK_FN uint32_t gk_lanes(gk_thread t) { return t->lanes; }
/* Macros, so that a report names the kernel's line. */
#define gk_barrier(t) gr_emu_barrier(t, __FILE__, __LINE__)
#define gk_lane_sum(t, v) gr_emu_lane_sum(t, v, __FILE__, __LINE__)

GK_FN float gk_fma(float a, float b, float c) { return fmaf(a, b, c); }
GK_FN float gk_sqrt(float x) { return sqrtf(x); }
GK_FN float gk_exp(float x) { return expf(x); }
GK_FN float gk_tanh(float x) { return tanhf(x); }
GK_FN float gk_log(float x) { return logf(x); }
GK_FN float gk_bits_float(uint32_t bits)
{
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
GK_FN uint32_t gk_float_bits(float f)
{
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

#endif
