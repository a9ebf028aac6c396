/* Tiles whose columns are columns of W, for types whose codes are few: a sub-block has 16 or 32 values, which are computed once, and a code
 * is an index among them. GR_LANES rows of blocks are opened at once, a lane for each; the values are those of kernels/decode.c. */
#include "backend/cpu/kernels/blocks.h"
#include "backend/cpu/kernels/tiles.h"

enum { PART = 128 }; /* columns: half a super-block, of which all codes of four bits are used */

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

/* 64 values of 16 elements each are not worth a table. Sub-block t of 32 elements in half h: bits 4 (t / 2) of ql, 2 t of qh. */
GR_INLINE vf q6_k_values(const uint8_t *ql, const uint8_t *qh, int t, float scale)
{
  vi q = (codes_of(false, ql, 0) >> 4 * (t >> 1) & 15) | (codes_of(false, qh, 0) >> 2 * t & 3) << 4;
  return vset(scale) * to_float(q - 32);
}

GR_INLINE void q6_k_part(bool words, const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)
{
  const int64_t half = first / PART;
  gr_head_q6 h;
  float scale[8][GR_LANES];
  q6_k_open(&h, x, stride);
  for (int i = 0; i < 8; i++) vstore(scale[i], h.d * to_float(h.scales[2 * half + i / 4] << (24 - 8 * (i % 4)) >> 24));
  GR_UNROLL
  for (int t = 0; t < 4; t++, dst += strip) {
    const uint8_t *ql = x + 64 * half + 32 * (t & 1), *qh = x + 128 + 32 * half;
    float *to = dst;
    for (int r = 0; r < GR_LANES; r += each(words), ql += each(words) * stride, qh += each(words) * stride, to += GR_COLS) {
      GR_UNROLL
      for (int i = 0; i < 32; i += GR_LANES) {
        vf v = q6_k_values(ql + i, qh + i, t, scale[2 * t + i / 16][r]);
#if GR_WORDS
        if (words) v = vpair(v, q6_k_values(ql + stride + i, qh + stride + i, t, scale[2 * t + i / 16][r + 1]));
#endif
        vstore(to + i, v);
      }
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

/* Blocks of 32 that have a half for a scale, and maybe one for a minimum, before their codes. */
typedef struct opened_32 {
  float scale[GR_LANES], min[GR_LANES];
} opened_32;

GR_INLINE void nibbles_part(bool words, const opened_32 *o, const uint8_t *q, int64_t stride, float *dst)
{
  for (int r = 0; r < GR_LANES; r += each(words), q += each(words) * stride, dst += GR_COLS) {
    const values v = values_16(words, &o->scale[r], &o->min[r]);
    vi codes = codes_of(words, q, stride);
    vstore(dst, look_up_16(words, &v, codes));
    vstore(dst + GR_LANES, look_up_16(words, &v, codes >> 4));
  }
}

GR_INLINE void q4_1_part(bool words, const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)
{
  opened_32 o;
  vi head = load_word(x, stride);
  (void)first, (void)strip;
  vstore(o.scale, half_floats(head)), vstore(o.min, half_floats((vi)((vu)head >> 16)));
  nibbles_part(words, &o, x + 4, stride, dst);
}

/* (code - 8) scale: 8 scale is exact, and so is the difference before it rounds. */
GR_INLINE void q4_0_part(bool words, const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)
{
  opened_32 o;
  vf scale = half_floats(load_halves(x, stride));
  (void)first, (void)strip;
  vstore(o.scale, scale), vstore(o.min, scale * -8.0f);
  nibbles_part(words, &o, x + 2, stride, dst);
}

GR_INLINE vf q8_0_values(const uint8_t *q, float scale)
{
  return to_float((vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)q))) * scale;
}

GR_INLINE void q8_0_part(bool words, const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)
{
  float scale[GR_LANES];
  const uint8_t *q = x + 2;
  (void)first, (void)strip;
  vstore(scale, half_floats(load_halves(x, stride)));
  for (int r = 0; r < GR_LANES; r += each(words), q += each(words) * stride, dst += GR_COLS) {
    GR_UNROLL
    for (int i = 0; i < 32; i += GR_LANES) {
      vf v = q8_0_values(q + i, scale[r]);
#if GR_WORDS
      if (words) v = vpair(v, q8_0_values(q + stride + i, scale[r + 1]));
#endif
      vstore(dst + i, v);
    }
  }
}

#define ACROSS(type, variant, words)                                                                                                       \
  static void type##_##variant(const uint8_t *x, int64_t stride, int64_t first, float *dst, int64_t strip)                                 \
  {                                                                                                                                        \
    type##_part(words, x, stride, first, dst, strip);                                                                                      \
  }
#define VARIANT(variant, words)                                                                                                            \
  ACROSS(q4_0, variant, words)                                                                                                             \
  ACROSS(q4_1, variant, words)                                                                                                             \
  ACROSS(q8_0, variant, words)                                                                                                             \
  ACROSS(q2_k, variant, words)                                                                                                             \
  ACROSS(q3_k, variant, words) ACROSS(q4_k, variant, words) ACROSS(q5_k, variant, words) ACROSS(q6_k, variant, words)
#define ENTRIES(variant)                                                                                                                   \
  {                                                                                                                                        \
    [GR_Q4_0] = q4_0_##variant, [GR_Q4_1] = q4_1_##variant, [GR_Q8_0] = q8_0_##variant, [GR_Q2_K] = q2_k_##variant,                        \
    [GR_Q3_K] = q3_k_##variant, [GR_Q4_K] = q4_k_##variant, [GR_Q5_K] = q5_k_##variant, [GR_Q6_K] = q6_k_##variant                         \
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
  int64_t block = gr_dtype_get(type)->block_elems;
  return GR_ISA_FN(across)[0][type] ? gr_min(block, PART) : block;
}
