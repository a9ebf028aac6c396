#include "backend/cpu/kernels/micro.h"

static inline __attribute__((always_inline)) double peak(int64_t loops, bool words)
{
  enum { SUMS = GR_ROWS > 8 ? 24 : 12 }; /* of 32 registers or 16 */
  vf sum[SUMS], one = vset(1);
  GR_UNROLL
  for (int i = 0; i < SUMS; i++) sum[i] = (vf){ 0 };
  for (int64_t n = 0; n < loops; n++) {
    GR_UNROLL
    for (int i = 0; i < SUMS; i++) {
#if GR_WORDS
      sum[i] = words ? vdot_words(one, one, sum[i]) : madd(one, one, sum[i]);
#else
      sum[i] = madd(one, one, sum[i]);
#endif
#if GR_LANES > 4
      __asm__ volatile("" : "+v"(sum[i])); /* the sums are wanted, one by one */
#elif defined(__aarch64__)
      __asm__ volatile("" : "+w"(sum[i]));
#elif defined(__x86_64__)
      __asm__ volatile("" : "+x"(sum[i]));
#else
      __asm__ volatile("" : "+m"(sum[i]));
#endif
    }
  }
  return (words ? 4.0 : 2.0) * GR_LANES * SUMS * (double)loops;
}

double GR_ISA_FN(peak)(int64_t loops, bool bf16) { return bf16 && GR_WORDS ? peak(loops, true) : peak(loops, false); }
