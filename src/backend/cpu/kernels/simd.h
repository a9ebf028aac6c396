/* Vectors: all that depends on the instruction set. vf holds GR_LANES floats; operators of the vector extension work on it.
 * A fused multiply-add is always written (madd): contraction is off. The generic set has no fused one: it is the same on every machine. */
#ifndef GR_CPU_SIMD_H
#define GR_CPU_SIMD_H
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/mutant.h"
#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(GR_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
#define GR_LANES 16
#elif defined(__AVX2__)
#define GR_LANES 8
#else
#define GR_LANES 4
#endif

/* Whether an operation can take a lane of a vector as its operand, for nothing: then one load brings GR_LANES numbers to broadcast. */
#if defined(GR_NEON)
#define GR_LANE_OPERANDS 1
#else
#define GR_LANE_OPERANDS 0
#endif

/* Whether the set multiplies pairs of bf16 and adds to F32: a word of four bytes then holds two neighbours of a contraction. */
#if defined(__AVX512BF16__) || (defined(GR_NEON) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC))
#define GR_WORDS 1
#else
#define GR_WORDS 0
#endif

typedef float vf __attribute__((vector_size(4 * GR_LANES)));
typedef int32_t vi __attribute__((vector_size(4 * GR_LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * GR_LANES)));
typedef float vhalf __attribute__((vector_size(2 * GR_LANES)));    /* half as many floats, */
typedef double vdouble __attribute__((vector_size(4 * GR_LANES))); /* as these are doubles */

#define GR_PASTE_(a, b, c) a##b##_##c
#define GR_PASTE(a, b, c) GR_PASTE_(a, b, c)
#define GR_ISA_FN(name) GR_PASTE(gr_cpu_, name, GR_ISA)

#if defined(__clang__)
#define GR_UNROLL _Pragma("clang loop unroll(full)")
#else
#define GR_UNROLL _Pragma("GCC unroll 32")
#endif

static inline vf vload(const float *p)
{
#if defined(GR_NEON)
  return (vf)vld1q_f32(p); /* gcc 12 takes lanes of a copied vector by way of whole registers */
#else
  vf v;
  memcpy(&v, p, sizeof v);
  return v;
#endif
}
static inline void vstore(float *p, vf v) { memcpy(p, &v, sizeof v); }
/* x - 0 and not x + 0, which would turn -0 to 0 and so costs an addition. */
static inline vf vset(float x) { return x - (vf){ 0 }; }
static inline vi vseti(int32_t x) { return (vi){ 0 } + x; }

/* a < b ? yes : no, lane by lane; false where either is NaN. */
static inline vf vif_less(vf a, vf b, vf yes, vf no)
{
#if defined(__AVX512F__)
  return (vf)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ), (__m512)no, (__m512)yes);
#elif defined(__AVX2__)
  return (vf)_mm256_blendv_ps((__m256)no, (__m256)yes, _mm256_cmp_ps((__m256)a, (__m256)b, _CMP_LT_OQ));
#else
  vi mask = a < b;
  return (vf)((mask & (vi)yes) | (~mask & (vi)no));
#endif
}

/* The larger, the smaller; b where either is NaN. */
static inline vf vmax(vf a, vf b)
{
#if defined(__AVX512F__)
  return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return vif_less(b, a, a, b);
#endif
}
static inline vf vmin(vf a, vf b)
{
#if defined(__AVX512F__)
  return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return vif_less(a, b, a, b);
#endif
}

/* x where from <= i < to, else `other`. */
static inline vf vif_within(int32_t i, vi from, vi to, vf x, vf other)
{
#if defined(__AVX512F__)
  __m512i at = _mm512_set1_epi32(i);
  __mmask16 in = _mm512_mask_cmplt_epi32_mask(_mm512_cmple_epi32_mask((__m512i)from, at), at, (__m512i)to);
  return (vf)_mm512_mask_blend_ps(in, (__m512)other, (__m512)x);
#else
  vi at = vseti(i), in = (from <= at) & (at < to);
  return (vf)((in & (vi)x) | (~in & (vi)other));
#endif
}

static inline vf madd(vf a, vf b, vf sum)
{
#if defined(__AVX512F__)
  return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(__AVX2__)
  return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(GR_NEON)
  return (vf)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + sum;
#endif
}

/* Rounded to bf16, ties to even, NaN staying one. */
static inline vf vround_bf16(vf x)
{
  if (GR_MUTANT(bf16_truncates)) x = (vf)((vu)x & 0xffff0000u);
  vu bits = (vu)x, even = bits + 0x7fff + (bits >> 16 & 1), nan = (vu)(x != x);
  return (vf)(((nan & (bits | 0x400000)) | (~nan & even)) & 0xffff0000u);
}

#if GR_WORDS
/* Words of pairs travel as vf, moved and never computed with. */
static inline vf vword(const float *p)
{
  int32_t word;
  memcpy(&word, p, sizeof word);
  return (vf)vseti(word);
}
#if defined(GR_NEON)
static inline bfloat16x8_t vpairs(vf words) { return vreinterpretq_bf16_f32((float32x4_t)words); }
static inline vf vdot_words(vf a, vf b, vf sum) { return (vf)vbfdotq_f32((float32x4_t)sum, vpairs(a), vpairs(b)); }
/* The word in one lane of a with every word of b; a switch, because the instruction takes a constant also where nothing is unrolled. */
static inline vf vdot_lane(vf a, int lane, vf b, vf sum)
{
  switch (lane) {
  case 0: return (vf)vbfdotq_laneq_f32((float32x4_t)sum, vpairs(b), vpairs(a), 0);
  case 1: return (vf)vbfdotq_laneq_f32((float32x4_t)sum, vpairs(b), vpairs(a), 1);
  case 2: return (vf)vbfdotq_laneq_f32((float32x4_t)sum, vpairs(b), vpairs(a), 2);
  default: return (vf)vbfdotq_laneq_f32((float32x4_t)sum, vpairs(b), vpairs(a), 3);
  }
}
/* Floats 0 to 2 GR_LANES - 1, rounded, as words in their order. */
static inline vf vwords(vf low, vf high)
{
  return (vf)vreinterpretq_f32_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)low), (float32x4_t)high));
}
/* Lane by lane the word of even and odd, rounded. */
static inline vf vpair(vf even, vf odd)
{
  uint16x8_t low = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32((float32x4_t)even));
  uint16x8_t high = vreinterpretq_u16_bf16(vcvtq_low_bf16_f32((float32x4_t)odd));
  return (vf)vreinterpretq_f32_u16(vzip1q_u16(low, high));
}
#else
static inline vf vdot_words(vf a, vf b, vf sum) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b); }
static inline vf vdot_lane(vf a, int lane, vf b, vf sum) { return vdot_words((vf)vseti(((vi)a)[lane]), b, sum); }
/* Floats 0 to 2 GR_LANES - 1, rounded, as words in their order. */
static inline vf vwords(vf low, vf high)
{
  if (GR_MUTANT(bf16_truncates)) low = (vf)((vu)low & 0xffff0000u), high = (vf)((vu)high & 0xffff0000u);
  return (vf)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
/* Lane by lane the word of even and odd, rounded. */
static inline vf vpair(vf even, vf odd)
{
  const __m512i zip = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18,
                                       2, 17, 1, 16, 0);
  return (vf)_mm512_permutexvar_epi16(zip, (__m512i)vwords(even, odd));
}
#endif
#endif

/* The first n floats (0 < n <= GR_LANES) at p, zeros beyond; and storing only those. */
static inline vf vload_part(const float *p, int64_t n)
{
#if defined(__AVX512F__)
  return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
  vf v = { 0 };
  memcpy(&v, p, (size_t)n * sizeof *p);
  return v;
#endif
}
static inline void vstore_part(float *p, vf v, int64_t n)
{
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
  memcpy(p, &v, (size_t)n * sizeof *p);
#endif
}

/* Sums in double, in an order fixed by the vector width: low and high halves widened, lanes added in pairs at the end. */
#if defined(__AVX512F__) /* compilers take the halves by way of the stack */
static inline vdouble vwiden_low(vf v) { return (vdouble)_mm512_cvtps_pd(_mm512_castps512_ps256((__m512)v)); }
static inline vdouble vwiden_high(vf v) { return (vdouble)_mm512_cvtps_pd(_mm512_extractf32x8_ps((__m512)v, 1)); }
#elif defined(__AVX2__)
static inline vdouble vwiden_low(vf v) { return (vdouble)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)v)); }
static inline vdouble vwiden_high(vf v) { return (vdouble)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)v, 1)); }
#else
static inline vdouble vwiden_low(vf v)
{
  vhalf h;
  memcpy(&h, &v, sizeof h);
  return __builtin_convertvector(h, vdouble);
}
static inline vdouble vwiden_high(vf v)
{
  vhalf h;
  memcpy(&h, (const char *)&v + sizeof h, sizeof h);
  return __builtin_convertvector(h, vdouble);
}
#endif
static inline double vsum(vdouble v)
{
  double s[GR_LANES / 2];
  memcpy(s, &v, sizeof s);
  for (int n = GR_LANES / 4; n > 0; n /= 2)
    for (int i = 0; i < n; i++) s[i] += s[i + n];
  return s[0];
}
static inline float vmax_lanes(vf v)
{
  float s[GR_LANES];
  memcpy(s, &v, sizeof s);
  for (int n = GR_LANES / 2; n > 0; n /= 2)
    for (int i = 0; i < n; i++) s[i] = s[i] > s[i + n] ? s[i] : s[i + n];
  return s[0];
}

/* log2(GR_LANES) perfect shuffles of the rows transpose a square. */
#if GR_LANES == 16
#define GR_ZIP_LO 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define GR_ZIP_HI 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif GR_LANES == 8
#define GR_ZIP_LO 0, 8, 1, 9, 2, 10, 3, 11
#define GR_ZIP_HI 4, 12, 5, 13, 6, 14, 7, 15
#else
#define GR_ZIP_LO 0, 4, 1, 5
#define GR_ZIP_HI 2, 6, 3, 7
#endif
static inline __attribute__((always_inline)) void vtranspose(vf v[GR_LANES])
{
  GR_UNROLL
  for (int round = 1; round < GR_LANES; round *= 2) {
    vf t[GR_LANES];
    GR_UNROLL
    for (int i = 0; i < GR_LANES / 2; i++) {
      t[2 * i] = __builtin_shufflevector(v[i], v[i + GR_LANES / 2], GR_ZIP_LO);
      t[2 * i + 1] = __builtin_shufflevector(v[i], v[i + GR_LANES / 2], GR_ZIP_HI);
    }
    GR_UNROLL
    for (int i = 0; i < GR_LANES; i++) v[i] = t[i];
  }
}

#endif
