/* Decoders of rows, sixteen codes at a time: the arithmetic of src/quant, whose files say how each block is laid out, in vectors, and
 * bit-equal to it (tests/unit/test_cpu.c): codes are unpacked as bytes, then scaled by a product and a sum that are not contracted. */
#include "backend/cpu/kernels/kernels.h"
#include "quant/blocks.h"
#include "quant/kquant.h"

typedef uint8_t v16 __attribute__((vector_size(16)));
typedef int8_t s16 __attribute__((vector_size(16)));
typedef uint16_t v8 __attribute__((vector_size(16)));

static inline v16 bytes_at(const void *p)
{
  v16 v;
  memcpy(&v, p, sizeof v);
  return v;
}

/* The bits of each byte above the n lowest, and some of its neighbour's: to be masked. */
static inline v16 above(v16 b, int n) { return (v16)((v8)b >> n); }
static inline v16 low(v16 b) { return b & 15; }
static inline v16 high(v16 b) { return above(b, 4) & 15; }

/* Codes l to l + GR_LANES - 1 as floats. */
static inline vf floats(s16 code, int l)
{
#if GR_LANES == 16
  (void)l;
  return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)code));
#elif GR_LANES == 8
  return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(l ? _mm_srli_si128((__m128i)code, 8) : (__m128i)code));
#elif defined(GR_NEON)
  int16x8_t c = l < 8 ? vmovl_s8(vget_low_s8((int8x16_t)code)) : vmovl_high_s8((int8x16_t)code);
  return (vf)vcvtq_f32_s32(l % 8 == 0 ? vmovl_s16(vget_low_s16(c)) : vmovl_high_s16(c));
#else
  int8_t c[16];
  memcpy(c, &code, sizeof c);
  return (vf){ c[l], c[l + 1], c[l + 2], c[l + 3] };
#endif
}

/* y[16] = scale * code; scale * code + offset; scale * code - min. */
static inline void put(float *y, s16 code, float scale)
{
  GR_UNROLL
  for (int l = 0; l < 16; l += GR_LANES) vstore(y + l, scale * floats(code, l));
}

static inline void put_plus(float *y, s16 code, float scale, float offset)
{
  GR_UNROLL
  for (int l = 0; l < 16; l += GR_LANES) vstore(y + l, scale * floats(code, l) + offset);
}

static inline void put_minus(float *y, s16 code, float scale, float min)
{
  GR_UNROLL
  for (int l = 0; l < 16; l += GR_LANES) vstore(y + l, scale * floats(code, l) - min);
}

static inline float half_at(const uint8_t b[2])
{
#if defined(__F16C__)
  return _cvtsh_ss(gr_load_u16(b));
#elif defined(GR_NEON)
  __fp16 h;
  memcpy(&h, b, sizeof h);
  return (float)h;
#else
  return gr_load_f16(b);
#endif
}

/* 16 in byte i where bit i of the two bytes of bits is set, else 0. */
static inline v16 fifth_bits(const uint8_t bits[2])
{
  const v16 select = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
  const uint64_t ones = UINT64_C(0x0101010101010101), words[2] = { bits[0] * ones, bits[1] * ones };
  return (v16)((bytes_at(words) & select) == select) & 16;
}

/* Defines format_decode, a gr_decode_fn, from what follows: the decoder of one block of `elems`. */
#define DECODER(format, elems)                                                                                                             \
  static inline void format##_block(const gr_block_##format *b, float *y);                                                                 \
  static void format##_decode(const void *x, float *y, int64_t n)                                                                          \
  {                                                                                                                                        \
    const gr_block_##format *b = x;                                                                                                        \
    for (int64_t i = 0; i < n; i += (elems)) format##_block(b++, y + i);                                                                   \
  }                                                                                                                                        \
  static inline void format##_block(const gr_block_##format *b, float *y)

/* ---- blocks of 32 ---- */

DECODER(q4_0, GR_QK)
{
  float d = half_at(b->d);
  v16 q = bytes_at(b->qs);
  put(y, (s16)low(q) - 8, d);
  put(y + 16, (s16)high(q) - 8, d);
}

DECODER(q4_1, GR_QK)
{
  float d = half_at(b->d), m = half_at(b->m);
  v16 q = bytes_at(b->qs);
  put_plus(y, (s16)low(q), d, m);
  put_plus(y + 16, (s16)high(q), d, m);
}

DECODER(q5_0, GR_QK)
{
  float d = half_at(b->d);
  v16 q = bytes_at(b->qs), first = fifth_bits(b->qh), second = fifth_bits(b->qh + 2);
  put(y, (s16)(low(q) | first) - 16, d);
  put(y + 16, (s16)(high(q) | second) - 16, d);
}

DECODER(q5_1, GR_QK)
{
  float d = half_at(b->d), m = half_at(b->m);
  v16 q = bytes_at(b->qs), first = fifth_bits(b->qh), second = fifth_bits(b->qh + 2);
  put_plus(y, (s16)(low(q) | first), d, m);
  put_plus(y + 16, (s16)(high(q) | second), d, m);
}

DECODER(q8_0, GR_QK)
{
  float d = half_at(b->d);
  s16 first = (s16)bytes_at(b->qs), second = (s16)bytes_at(b->qs + 16);
  put(y, first, d);
  put(y + 16, second, d);
}

/* Codes of four bits as indices of a table of sixteen. */
static inline s16 look_up(const int8_t table[16], v16 index)
{
#if defined(__SSSE3__)
  return (s16)_mm_shuffle_epi8((__m128i)bytes_at(table), (__m128i)index);
#elif defined(GR_NEON)
  return (s16)vqtbl1q_s8((int8x16_t)bytes_at(table), (uint8x16_t)index);
#else
  int8_t found[16];
  for (int i = 0; i < 16; i++) found[i] = table[index[i]];
  return (s16)bytes_at(found);
#endif
}

DECODER(iq4_nl, GR_QK)
{
  float d = half_at(b->d);
  v16 q = bytes_at(b->qs);
  put(y, look_up(gr_iq4_values, low(q)), d);
  put(y + 16, look_up(gr_iq4_values, high(q)), d);
}

/* The exponent's power of two, halved because the table is doubled: exact, denormal for the two smallest (quant/mxfp4.c). */
DECODER(mxfp4, GR_QK)
{
  float d = gr_bits_float(b->e < 2 ? 0x00200000u << b->e : (uint32_t)(b->e - 1) << 23);
  v16 q = bytes_at(b->qs);
  put(y, look_up(gr_mxfp4_values, low(q)), d);
  put(y + 16, look_up(gr_mxfp4_values, high(q)), d);
}

/* ---- super-blocks of 256 ---- */

DECODER(q2_k, GR_QK_K)
{
  float d = half_at(b->d), dmin = half_at(b->dmin);
  for (int s = 0; s < 16; s++, y += 16) {
    v16 q = above(bytes_at(b->qs + 32 * (s >> 3) + 16 * (s & 1)), s & 6) & 3;
    put_minus(y, (s16)q, d * (float)(b->scales[s] & 15), dmin * (float)(b->scales[s] >> 4));
  }
}

DECODER(q3_k, GR_QK_K)
{
  float d = half_at(b->d);
  int8_t scales[16];
  gr_k_unpack_q3_scales(b->scales, scales);
  for (int s = 0; s < 16; s++, y += 16) {
    v16 q = above(bytes_at(b->qs + 32 * (s >> 3) + 16 * (s & 1)), s & 6) & 3;
    v16 third = above(bytes_at(b->hmask + 16 * (s & 1)), s >> 1) & 1;
    put(y, (s16)(q | third << 2) - 4, d * (float)scales[s]);
  }
}

DECODER(q4_k, GR_QK_K)
{
  float d = half_at(b->d), dmin = half_at(b->dmin);
  uint8_t scales[8], mins[8];
  gr_k_unpack_pairs(b->scales, scales, mins);
  for (int s = 0; s < 8; s += 2, y += 64) {
    v16 first = bytes_at(b->qs + 16 * s), second = bytes_at(b->qs + 16 * s + 16);
    float scale = d * (float)scales[s], min = dmin * (float)mins[s];
    put_minus(y, (s16)low(first), scale, min);
    put_minus(y + 16, (s16)low(second), scale, min);
    scale = d * (float)scales[s + 1], min = dmin * (float)mins[s + 1];
    put_minus(y + 32, (s16)high(first), scale, min);
    put_minus(y + 48, (s16)high(second), scale, min);
  }
}

DECODER(q5_k, GR_QK_K)
{
  float d = half_at(b->d), dmin = half_at(b->dmin);
  uint8_t scales[8], mins[8];
  gr_k_unpack_pairs(b->scales, scales, mins);
  for (int s = 0; s < 8; s++, y += 32) {
    float scale = d * (float)scales[s], min = dmin * (float)mins[s];
    for (int half = 0; half < 32; half += 16) {
      v16 q = above(bytes_at(b->qs + 32 * (s >> 1) + half), 4 * (s & 1)) & 15;
      v16 fifth = above(bytes_at(b->qh + half), s) & 1;
      put_minus(y + half, (s16)(q | fifth << 4), scale, min);
    }
  }
}

DECODER(q6_k, GR_QK_K)
{
  float d = half_at(b->d);
  for (int s = 0; s < 16; s++, y += 16) {
    int h = s >> 3, t = s >> 1 & 3, side = 16 * (s & 1);
    v16 q = above(bytes_at(b->ql + 64 * h + 32 * (t & 1) + side), 4 * (t >> 1)) & 15;
    v16 top = above(bytes_at(b->qh + 32 * h + side), 2 * t) & 3;
    put(y, (s16)(q | top << 4) - 32, d * (float)(int8_t)b->scales[s]);
  }
}

DECODER(iq4_xs, GR_QK_K)
{
  float d = half_at(b->d);
  int tops = gr_load_u16(b->scales_h);
  for (int s = 0; s < 8; s++, y += 32) {
    int scale = (b->scales_l[s >> 1] >> 4 * (s & 1) & 15) | (tops >> 2 * s & 3) << 4;
    v16 q = bytes_at(b->qs + 16 * s);
    put(y, look_up(gr_iq4_values, low(q)), d * (float)(scale - 32));
    put(y + 16, look_up(gr_iq4_values, high(q)), d * (float)(scale - 32));
  }
}

/* ---- halves ---- */

static void f16_decode(const void *x, float *y, int64_t n)
{
  const uint8_t *p = x;
  int64_t i = 0;
#if GR_LANES == 16
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(y + i, _mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p + 2 * i))));
#elif GR_LANES == 8
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 2 * i))));
#elif defined(GR_NEON)
  for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p + 2 * i))));
#endif
  for (; i < n; i++) y[i] = half_at(p + 2 * i);
}

static void bf16_decode(const void *x, float *y, int64_t n)
{
  const uint8_t *p = x;
  for (int64_t i = 0; i < n; i++) y[i] = gr_bf16_to_f32(gr_load_u16(p + 2 * i));
}

static void f32_decode(const void *x, float *y, int64_t n) { memcpy(y, x, (size_t)n * sizeof *y); }

static void f64_decode(const void *x, float *y, int64_t n)
{
  for (int64_t i = 0; i < n; i++) {
    double v;
    memcpy(&v, (const char *)x + 8 * i, sizeof v);
    y[i] = (float)v;
  }
}

gr_decode_fn *const GR_ISA_FN(decoders)[GR_DTYPE_COUNT] = {
#define GR_FORMAT(dtype, prefix) [GR_##dtype] = prefix##_decode,
#define GR_FORMAT_DECODE GR_FORMAT
#include "quant/formats.def"
#undef GR_FORMAT_DECODE
#undef GR_FORMAT
};
