/* exp and tanh of vectors. Errors over all finite arguments, measured by tests/unit/test_cpu.c against double: below 2 units in the last
 * place for exp, 3 for tanh. Coefficients are minimax fits of relative error (tools/fit-vmath.py). */
#ifndef GR_CPU_VMATH_H
#define GR_CPU_VMATH_H
#include "backend/cpu/kernels/simd.h"

/* x 2^n, rounded once, for whole n from -252 to 254. */
static inline vf vscale2(vf x, vf n)
{
#if defined(__AVX512F__)
  return (vf)_mm512_scalef_ps((__m512)x, (__m512)n);
#else
  vi whole = __builtin_convertvector(n, vi), half = whole >> 1;
  return x * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
#endif
}

/* exp(x) = 2^n exp(r), |r| <= ln 2 / 2; ln 2 is split so that n times its high part is exact. */
static inline vf vexp(vf x)
{
  const vf round = vset(0x1.8p23f);
  x = vmin(vset(89), vmax(vset(-104), x)); /* NaN stays */
  vf n = madd(x, vset(0x1.715476p0f), round) - round;
  vf r = madd(n, vset(-0x1.62e4p-1f), x);
  r = madd(n, vset(-0x1.7f7d1cp-20f), r);
  vf p = madd(vset(0x1.6a23d0p-10f), r, vset(0x1.123a20p-7f));
  p = madd(p, r, vset(0x1.5558f2p-5f));
  p = madd(p, r, vset(0x1.555492p-3f));
  p = madd(p, r, vset(0x1.fffffcp-2f));
  p = madd(p * r, r, r) + 1.0f;
  return vscale2(p, n);
}

/* Near 0 an odd polynomial, so that the relative error stays small; elsewhere by exp. */
static inline vf vtanh(vf x)
{
  vf a = (vf)((vi)x & 0x7fffffff), s = x * x;
  vf p = madd(vset(-0x1.75e140p-8f), s, vset(0x1.52267ep-6f));
  p = madd(p, s, vset(-0x1.b83c56p-5f));
  p = madd(p, s, vset(0x1.110726p-3f));
  p = madd(p, s, vset(-0x1.555532p-2f));
  vf near = madd(p * s, a, a);
  vf far = 1.0f - 2.0f / (vexp(a + a) + 1.0f);
  return (vf)((vi)vif_less(a, vset(0.625f), near, far) | ((vi)x & INT32_MIN));
}

#endif
