/* The gradient of matmul_id to x, for every weight type: a row for each pair (the transposed product), and then, where slots share a row of
 * x, their sum in ascending order of slots. */
#include "kernels/gk/experts.h"

#define GK_FORMAT(format, dtype) GK_EXPERTS_KERNEL(matmul_id_back, format, true)
#include "kernels/formats.def"
#undef GK_FORMAT

/* y[:,l,t] = sum of pairs[:,i,t] over the slots i with i mod slots = l: a thread has an element. */
GK_KERNEL(matmul_id_back_sum, gk_slots_args, const GK_GLOBAL float *pairs, GK_GLOBAL float *y)
{
  GK_ENTER(t);
  const uint32_t c = gk_group(t) % a.blocks * gk_size(t) + gk_tid(t), l = gk_group(t) / a.blocks % a.slots;
  const uint32_t token = gk_group(t) / a.blocks / a.slots;
  if (c >= a.length) return;
  float sum = 0.0f;
  for (uint32_t i = l; i < a.used; i += a.slots) {
    const float v = pairs[c + (int64_t)(i + token * a.used) * a.length];
    sum = GK_MUTANT(emu_matmul_id_back_last_slot) ? v : sum + v;
  }
  y[c + l * a.y_stride[0] + token * a.y_stride[1]] = sum;
}
