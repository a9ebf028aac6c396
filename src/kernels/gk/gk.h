/* The kernel dialect: one text for CUDA, HIP, Metal, the emulator and the lint. docs/kernels.md has the rules.
 *
 * A dialect header names the address spaces (GK_GLOBAL, GK_SHARED_AS, GK_CONST_AS, GK_PRIVATE), declares entry points
 * (GK_KERNEL, GK_ENTER, GK_SHARED) and gives the thread's own functions, each taking the thread value t:
 *   gk_tid, gk_group, gk_size, gk_lanes   index in the group, index of the group, threads of a group, threads of a lane group
 *   gk_barrier                            every thread of the group arrives, and sees what the others wrote
 *   gk_lane_sum(t, v)                     sum of v over the lane group, the same bits in each of its threads
 * and the arithmetic whose spelling differs: gk_fma (one rounding; nothing else is ever contracted), gk_sqrt, gk_exp, gk_log,
 * gk_tanh, gk_bits_float (the float with these bits), gk_float_bits (its inverse). What follows the dialect here is common to all. */
#ifndef GK_GK_H
#define GK_GK_H

#if defined(GK_DIALECT_LINT)
#include "kernels/gk/gk_lint.h"
#elif defined(GK_DIALECT_EMU)
#include "kernels/gk/gk_emu.h"
#elif defined(__METAL_VERSION__)
#include "kernels/gk/gk_metal.h"
#else
#include "kernels/gk/gk_cuda.h"
#endif

#include "kernels/args.h"

/* A breakage that the harness switches on (base/mutant.h). Only the emulator's reading knows any. */
#if !defined(GK_MUTANT)
#define GK_MUTANT(name) false
#define GK_MUTANT_HALF(name, v) (v)
#endif

/* Floats of scratch that gk_group_sum needs: one a lane group, for the largest group and the narrowest lanes. */
#define GK_SUM_SCRATCH 64

/* Sum of v over the group, the same bits in every thread: butterflies within lane groups, then their sums in ascending order. */
GK_FN float gk_group_sum(gk_thread t, float v, GK_SHARED_AS float *scratch)
{
  v = gk_lane_sum(t, v);
  if (gk_tid(t) % gk_lanes(t) == 0) scratch[gk_tid(t) / gk_lanes(t)] = v;
  gk_barrier(t);
  float sum = 0.0f;
  for (uint32_t i = 0; i < (gk_size(t) + gk_lanes(t) - 1) / gk_lanes(t); i++) sum += scratch[i];
  gk_barrier(t); /* scratch may be reused */
  return sum;
}

#endif
