/* Tiles whose columns are columns of W. Where codes are few, a block or sub-block has 16 or 32 values, which are computed once, and a code
 * is an index among them. GR_LANES rows of super-blocks are opened at once, a lane for each; the values are those of kernels/decode.c. */
#include "backend/cpu/kernels/blocks.h"
#include "backend/cpu/kernels/tiles.h"

enum { PART = GR_ACROSS };

#if GR_LANES == 16

/* 16 bytes of a row, or in pairs those of two rows: the first row's in the low half of each lane. */
GR_INLINE vi codes_of(bool words, const uint8_t *x, int64_t stride)
{
  vi even = (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)x));
  if (!words) return even;
  return even | (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(x + stride))) << 16;
}

/* The values of codes 0 to 31 as floats; in pairs those of two rows, in bf16. */
typedef struct values {
  vf low, high; /* in pairs of 16 codes: only low, one row behind the other */
} values;

GR_INLINE vf values_from(float code, float scale, float min)
{
  const vf step = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
  return madd(step + code, vset(scale), vset(min));
}

GR_INLINE values values_16(bool words, const float *scale, const float *min)
{
  values v = { values_from(0, scale[0], min[0]), { 0 } };
#if GR_WORDS
  if (words) v.low = vwords(v.low, values_from(0, scale[1], min[1]));
#endif
  (void)words;
  return v;
}

GR_INLINE values values_32(bool words, const float *scale, const float *min)
{
  values v = { values_from(0, scale[0], min[0]), values_from(16, scale[0], min[0]) };
#if GR_WORDS
  if (words) v.low = vwords(v.low, v.high), v.high = vwords(values_from(0, scale[1], min[1]), values_from(16, scale[1], min[1]));
#endif
  (void)words;
  return v;
}

/* Bits above the code are anything. */
GR_INLINE vf look_up_16(bool words, const values *v, vi codes)
{
  if (words) return (vf)_mm512_permutexvar_epi16((__m512i)((codes & 0x000f000f) | 0x00100000), (__m512i)v->low);
  return (vf)_mm512_permutexvar_ps((__m512i)codes, (__m512)v->low);
}

/* The fifth bit of a code stands in `fifth`. */
GR_INLINE vf look_up_32(bool words, const values *v, vi codes, vi fifth)
{
  vi index = (codes & 0x000f000f) | (fifth & 0x00100010);
  if (words) return (vf)_mm512_permutex2var_epi16((__m512i)v->low, (__m512i)(index | 0x00200000), (__m512i)v->high);
  return (vf)_mm512_permutex2var_ps((__m512)v->low, (__m512i)index, (__m512)v->high);
}

/* 32 elements whose 16 values are v, low halves of the 16 bytes at q first. */
GR_INLINE void put_nibbles(bool words, const values *v, const uint8_t *q, int64_t stride, float *dst)
{
  vi codes = codes_of(words, q, stride);
  vstore(dst, look_up_16(words, v, codes));
  vstore(dst + GR_LANES, look_up_16(words, v, codes >> 4));
}

/* An alphabet times the scale of a row, and of the next. */
GR_INLINE values scaled_values(bool words, vf alphabet, vf scale, vf next)
{
  values v = { alphabet * scale, { 0 } };
#if GR_WORDS
  if (words) v.low = vwords(v.low, alphabet * next);
#endif
  (void)words, (void)next;
  return v;
}

/* 16 signed bytes. */
GR_INLINE vf signed_floats(const int8_t *codes) { return to_float((vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)codes))); }

/* Scales and minima by sub-block and row. */
typedef struct opened {
  float scale[8][GR_LANES], min[8][GR_LANES];
} opened;

GR_INLINE void open_k(opened *o, const uint8_t *x, int64_t stride)
{
  gr_head_k h;
  q4_k_open(&h, x, stride); /* Q5_K's are the same */
  for (int s = 0; s < 8; s++) {
    vstore(o->scale[s], h.scale[s]);
    vstore(o->min[s], h.min[s]);
  }
}

/* Rows of a lane of the tile, and floats from one row to the next. */
GR_INLINE int each(bool words) { return words ? 2 : 1; }

GR_INLINE void q4_k_part(bool words, const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)
{
  opened o;
  open_k(&o, x, stride);
  for (int64_t s = first / 32; s < (first + PART) / 32; s += 2, dst += 2 * strip) {
    const uint8_t *q = x + 16 + 16 * s;
    float *to = dst;
    for (int r = 0; r < GR_LANES; r += each(words), q += each(words) * stride, to += GR_COLS) {
      const values low = values_16(words, &o.scale[s][r], &o.min[s][r]), high = values_16(words, &o.scale[s + 1][r], &o.min[s + 1][r]);
      GR_UNROLL
      for (int i = 0; i < 32; i += GR_LANES) {
        vi codes = codes_of(words, q + i, stride);
        vstore(to + i, look_up_16(words, &low, codes));
        vstore(to + strip + i, look_up_16(words, &high, codes >> 4));
      }
    }
  }
}

GR_INLINE void q5_k_part(bool words, const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)
{
  opened o;
  open_k(&o, x, stride);
  for (int s = (int)first / 32; s < (first + PART) / 32; s += 2, dst += 2 * strip) {
    const uint8_t *q = x;
    float *to = dst;
    for (int r = 0; r < GR_LANES; r += each(words), q += each(words) * stride, to += GR_COLS) {
      const values low = values_32(words, &o.scale[s][r], &o.min[s][r]), high = values_32(words, &o.scale[s + 1][r], &o.min[s + 1][r]);
      GR_UNROLL
      for (int i = 0; i < 32; i += GR_LANES) {
        vi codes = codes_of(words, q + 48 + 16 * s + i, stride), fifth = codes_of(words, q + 16 + i, stride) << 4 >> s;
        vstore(to + i, look_up_32(words, &low, codes, fifth));
        vstore(to + strip + i, look_up_32(words, &high, codes >> 4, fifth >> 1));
      }
    }
  }
}

/* 64 values of 16 elements each are not worth a table: codes are put together as bytes, 64 at once. The first and the second 64 of half a
 * block, from 64 bytes of low nibbles, then high ones, below pairs of bits of 32 bytes. */
GR_INLINE void q6_k_codes(const uint8_t *ql, const uint8_t *qh, __m512i codes[2])
{
  const __m512i nibble = _mm512_set1_epi8(15), pair = _mm512_set1_epi8(0x30), zero = _mm512_set1_epi8(32);
  const __m512i up = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
  const __m512i down = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1);
  const __m512i low = _mm512_loadu_si512(ql), top = _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)qh));
  codes[0] = _mm512_or_si512(_mm512_and_si512(low, nibble), _mm512_and_si512(_mm512_sllv_epi16(top, up), pair));
  codes[1] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(low, 4), nibble), _mm512_and_si512(_mm512_srlv_epi16(top, down), pair));
  for (int i = 0; i < 2; i++) codes[i] = _mm512_sub_epi8(codes[i], zero);
}

/* 128 codes of a row; in pairs of two rows, 8 columns of both beside each other: of a group of 16 columns the first 8, 64 bytes on the
 * others. */
GR_INLINE void q6_k_row(bool words, const uint8_t *ql, const uint8_t *qh, int64_t stride, int8_t *codes)
{
  __m512i even[2], odd[2];
  q6_k_codes(ql, qh, even);
  if (words) q6_k_codes(ql + stride, qh + stride, odd);
  for (int i = 0; i < 2; i++) {
    if (words) {
      _mm512_storeu_si512(codes + 128 * i, _mm512_unpacklo_epi8(even[i], odd[i]));
      _mm512_storeu_si512(codes + 128 * i + 64, _mm512_unpackhi_epi8(even[i], odd[i]));
    } else {
      _mm512_storeu_si512(codes + 64 * i, even[i]);
    }
  }
}

GR_INLINE void q6_k_part(bool words, const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)
{
  const int64_t half = first / PART;
  gr_head_q6 h;
  float scale[8][GR_LANES];
  int8_t codes[GR_LANES * PART];
  q6_k_open(&h, x, stride);
  for (int i = 0; i < 8; i++) vstore(scale[i], h.d * to_float(h.scales[2 * half + i / 4] << (24 - 8 * (i % 4)) >> 24));
  const uint8_t *ql = x + 64 * half, *qh = x + 128 + 32 * half;
  for (int r = 0; r < GR_LANES; r += each(words)) q6_k_row(words, ql + r * stride, qh + r * stride, stride, codes + r * PART);
  for (int r = 0; r < GR_LANES; r += each(words), dst += GR_COLS) {
    GR_UNROLL
    for (int i = 0; i < PART; i += GR_LANES) {
      float *to = dst + i / 32 * strip + i % 32;
#if GR_WORDS
      if (words) {
        const int8_t *q = codes + r * PART + i / 64 * 128 + i % 64;
        int64_t both;
        memcpy(&both, &scale[i / 16][r], sizeof both);
        const vf scales = (vf)_mm512_set1_epi64(both);
        vstore(to, vwords(scales * signed_floats(q), scales * signed_floats(q + 64)));
        continue;
      }
#endif
      vstore(to, vset(scale[i / 16][r]) * signed_floats(codes + r * PART + i));
    }
  }
}

/* Codes of two and three bits are too few to fill a table: what is above them repeats. Sub-block t of 32 elements in half h: bits 2 t of
 * codes, bit 4 h + t of Q3_K's third bits. */
GR_INLINE vf few_from(vf codes, const float *scale, const float *min)
{
  return min ? madd(codes, vset(*scale), vset(*min)) : codes * vset(*scale);
}

GR_INLINE values few_values(bool words, vf codes, const float *scale, const float *min)
{
  values v = { few_from(codes, scale, min), { 0 } };
#if GR_WORDS
  if (words) v.low = vwords(v.low, few_from(codes, scale + 1, min ? min + 1 : NULL));
#endif
  (void)words;
  return v;
}

GR_INLINE void q2_k_part(bool words, const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)
{
  const vf codes = { 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3 };
  const int64_t half = first / PART;
  gr_head_q2 h;
  float scale[8][GR_LANES], min[8][GR_LANES];
  q2_k_open(&h, x, stride);
  for (int i = 0; i < 8; i++) {
    vstore(scale[i], half ? q2_k_scale(&h, 8 + i) : q2_k_scale(&h, i));
    vstore(min[i], half ? q2_k_min(&h, 8 + i) : q2_k_min(&h, i));
  }
  const uint8_t *q = x + 16 + 32 * half;
  for (int r = 0; r < GR_LANES; r += each(words), q += each(words) * stride, dst += GR_COLS) {
    GR_UNROLL
    for (int i = 0; i < 32; i += GR_LANES) {
      vi low = codes_of(words, q + i, stride);
      GR_UNROLL
      for (int t = 0; t < 4; t++) {
        const values v = few_values(words, codes, &scale[2 * t + i / 16][r], &min[2 * t + i / 16][r]);
        vstore(dst + t * strip + i, look_up_16(words, &v, low >> 2 * t));
      }
    }
  }
}

GR_INLINE void q3_k_part(bool words, const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)
{
  const vf codes = { -4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3 };
  const vi two = (vi){ 0 } + 0x00030003;
  const int64_t half = first / PART;
  gr_head_q3 h;
  float scale[8][GR_LANES];
  q3_k_open(&h, x, stride);
  for (int i = 0; i < 8; i++) vstore(scale[i], half ? q3_k_scale(&h, 8 + i) : q3_k_scale(&h, i));
  const uint8_t *q = x + 32 + 32 * half, *third = x;
  for (int r = 0; r < GR_LANES; r += each(words), q += each(words) * stride, third += each(words) * stride, dst += GR_COLS) {
    GR_UNROLL
    for (int i = 0; i < 32; i += GR_LANES) {
      vi low = codes_of(words, q + i, stride), top = codes_of(words, third + i, stride) << 2 >> 4 * half;
      GR_UNROLL
      for (int t = 0; t < 4; t++) {
        const values v = few_values(words, codes, &scale[2 * t + i / 16][r], NULL);
        vstore(dst + t * strip + i, look_up_16(words, &v, (low >> 2 * t & two) | (top >> t & ~two)));
      }
    }
  }
}

/* Four sub-blocks, each of the codes in 16 bytes of its own. */
GR_INLINE void iq4_xs_part(bool words, const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)
{
  const vf alphabet = signed_floats(gr_iq4_values);
  gr_head_iq4 h;
  float scale[4][GR_LANES];
  iq4_xs_open(&h, x, stride);
  for (int i = 0; i < 4; i++) vstore(scale[i], first ? iq4_xs_scale(&h, 4 + i) : iq4_xs_scale(&h, i));
  const uint8_t *q = x + 8 + first / 2;
  for (int r = 0; r < GR_LANES; r += each(words), q += each(words) * stride, dst += GR_COLS) {
    GR_UNROLL
    for (int t = 0; t < 4; t++) {
      const values v = scaled_values(words, alphabet, vset(scale[t][r]), vset(scale[t][r + each(words) - 1]));
      put_nibbles(words, &v, q + 16 * t, stride, dst + t * strip);
    }
  }
}

/* ---- blocks of 32: each is a row of a strip; in pairs with that of the next row, whose bytes stand `stride` further on ---- */

GR_INLINE vf half_of(const uint8_t *x) { return (vf)_mm512_cvtph_ps(_mm256_set1_epi16((int16_t)gr_load_u16(x))); }
GR_INLINE const uint8_t *second(bool words, const uint8_t *x, int64_t stride) { return words ? x + stride : x; }

GR_INLINE void q4_0_block(bool words, const uint8_t *x, int64_t stride, float *dst)
{
  const vf codes = { -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7 };
  const values v = scaled_values(words, codes, half_of(x), half_of(second(words, x, stride)));
  put_nibbles(words, &v, x + 2, stride, dst);
}

GR_INLINE void iq4_nl_block(bool words, const uint8_t *x, int64_t stride, float *dst)
{
  const values v = scaled_values(words, signed_floats(gr_iq4_values), half_of(x), half_of(second(words, x, stride)));
  put_nibbles(words, &v, x + 2, stride, dst);
}

/* Halved powers of two, by their exponents (quant/mxfp4.c). */
#define POWER(e) ((e) < 2 ? 0x00200000u << ((e)&1) : ((uint32_t)(e)-1) << 23)
#define POWERS_4(e) POWER(e), POWER(e + 1), POWER(e + 2), POWER(e + 3)
#define POWERS_16(e) POWERS_4(e), POWERS_4(e + 4), POWERS_4(e + 8), POWERS_4(e + 12)
#define POWERS_64(e) POWERS_16(e), POWERS_16(e + 16), POWERS_16(e + 32), POWERS_16(e + 48)
static const uint32_t powers[256] = { POWERS_64(0), POWERS_64(64), POWERS_64(128), POWERS_64(192) };

GR_INLINE vf power_of(const uint8_t *x) { return (vf)vseti((int32_t)powers[*x]); }

GR_INLINE void mxfp4_block(bool words, const uint8_t *x, int64_t stride, float *dst)
{
  const values v = scaled_values(words, signed_floats(gr_mxfp4_values), power_of(x), power_of(second(words, x, stride)));
  put_nibbles(words, &v, x + 1, stride, dst);
}

GR_INLINE void q4_1_block(bool words, const uint8_t *x, int64_t stride, float *dst)
{
  const uint8_t *y = second(words, x, stride);
  const vf codes = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
  values v = { madd(codes, half_of(x), half_of(x + 2)), { 0 } };
#if GR_WORDS
  if (words) v.low = vwords(v.low, madd(codes, half_of(y), half_of(y + 2)));
#endif
  (void)y;
  put_nibbles(words, &v, x + 4, stride, dst);
}

/* 16 in the lanes, or halves of lanes, whose bits are set in the two bytes. */
GR_INLINE vi fifth_of(bool words, const uint8_t *bits, int64_t stride)
{
  __m512i v = _mm512_maskz_set1_epi32((__mmask16)gr_load_u16(bits), 16);
  if (words) v = _mm512_or_si512(v, _mm512_maskz_set1_epi32((__mmask16)gr_load_u16(bits + stride), 16 << 16));
  return (vi)v;
}

/* Codes 0 to 31 below the fifth bits, `low` and `high` being the values of both halves of them. */
GR_INLINE void put_fives(bool words, const values *v, const uint8_t *qh, const uint8_t *q, int64_t stride, float *dst)
{
  vi codes = codes_of(words, q, stride);
  vstore(dst, look_up_32(words, v, codes, fifth_of(words, qh, stride)));
  vstore(dst + GR_LANES, look_up_32(words, v, codes >> 4, fifth_of(words, qh + 2, stride)));
}

GR_INLINE void q5_0_block(bool words, const uint8_t *x, int64_t stride, float *dst)
{
  const vf codes = { -16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1 };
  const vf scale = half_of(x);
  values v = { codes * scale, (codes + 16) * scale };
#if GR_WORDS
  if (words) {
    const vf next = half_of(x + stride);
    v.low = vwords(v.low, v.high), v.high = vwords(codes * next, (codes + 16) * next);
  }
#endif
  put_fives(words, &v, x + 2, x + 6, stride, dst);
}

GR_INLINE void q5_1_block(bool words, const uint8_t *x, int64_t stride, float *dst)
{
  const vf codes = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
  const vf scale = half_of(x), min = half_of(x + 2);
  values v = { madd(codes, scale, min), madd(codes + 16, scale, min) };
#if GR_WORDS
  if (words) {
    const vf next = half_of(x + stride), least = half_of(x + stride + 2);
    v.low = vwords(v.low, v.high), v.high = vwords(madd(codes, next, least), madd(codes + 16, next, least));
  }
#endif
  put_fives(words, &v, x + 4, x + 8, stride, dst);
}

GR_INLINE void q8_0_block(bool words, const uint8_t *x, int64_t stride, float *dst)
{
  const uint8_t *y = second(words, x, stride);
  const vf scale = half_of(x), next = half_of(y);
  GR_UNROLL
  for (int i = 0; i < 32; i += GR_LANES) {
    vf v = scale * signed_floats((const int8_t *)x + 2 + i);
#if GR_WORDS
    if (words) v = vpair(v, next * signed_floats((const int8_t *)y + 2 + i));
#endif
    vstore(dst + i, v);
  }
  (void)next;
}

#define ACROSS_32(type, variant, words)                                                                                                    \
  static void type##_##variant(const uint8_t *x, int64_t stride, int64_t first, int64_t n, float *dst, int64_t strip)                      \
  {                                                                                                                                        \
    (void)first;                                                                                                                           \
    for (int r = 0; r < GR_LANES; r += each(words), x += each(words) * stride, dst += GR_COLS)                                             \
      for (int64_t b = 0; b < n / GR_QK; b++) type##_block(words, x + b * (int64_t)sizeof(gr_block_##type), stride, dst + b * strip);      \
  }
#define ACROSS(type, variant, words)                                                                                                       \
  static void type##_##variant(const uint8_t *x, int64_t stride, int64_t first, int64_t n, float *dst, int64_t strip)                      \
  {                                                                                                                                        \
    (void)n;                                                                                                                               \
    type##_part(words, x, stride, first, dst, strip);                                                                                      \
  }
#define VARIANT(variant, words)                                                                                                            \
  ACROSS_32(q4_0, variant, words)                                                                                                          \
  ACROSS_32(q4_1, variant, words)                                                                                                          \
  ACROSS_32(q5_0, variant, words)                                                                                                          \
  ACROSS_32(q5_1, variant, words)                                                                                                          \
  ACROSS_32(q8_0, variant, words)                                                                                                          \
  ACROSS_32(iq4_nl, variant, words)                                                                                                        \
  ACROSS_32(mxfp4, variant, words)                                                                                                         \
  ACROSS(iq4_xs, variant, words)                                                                                                           \
  ACROSS(q2_k, variant, words)                                                                                                             \
  ACROSS(q3_k, variant, words) ACROSS(q4_k, variant, words) ACROSS(q5_k, variant, words) ACROSS(q6_k, variant, words)
#define ENTRIES(variant)                                                                                                                   \
  {                                                                                                                                        \
    [GR_Q4_0] = q4_0_##variant, [GR_Q4_1] = q4_1_##variant, [GR_Q5_0] = q5_0_##variant, [GR_Q5_1] = q5_1_##variant,                        \
    [GR_Q8_0] = q8_0_##variant, [GR_IQ4_NL] = iq4_nl_##variant, [GR_IQ4_XS] = iq4_xs_##variant, [GR_MXFP4] = mxfp4_##variant,              \
    [GR_Q2_K] = q2_k_##variant, [GR_Q3_K] = q3_k_##variant, [GR_Q4_K] = q4_k_##variant, [GR_Q5_K] = q5_k_##variant,                        \
    [GR_Q6_K] = q6_k_##variant                                                                                                             \
  }

VARIANT(floats, false)
#if GR_WORDS
VARIANT(words, true)
#endif

gr_across_fn *const GR_ISA_FN(across)[1 + GR_WORDS][GR_DTYPE_COUNT] = { ENTRIES(floats),
#if GR_WORDS
                                                                        ENTRIES(words)
#endif
};

#else
gr_across_fn *const GR_ISA_FN(across)[1 + GR_WORDS][GR_DTYPE_COUNT] = { { NULL } };
#endif

int64_t GR_ISA_FN(across_unit)(gr_dtype type)
{
  const int64_t block = gr_dtype_get(type)->block_elems;
  return GR_ISA_FN(across)[0][type] && block > PART ? PART : block;
}
