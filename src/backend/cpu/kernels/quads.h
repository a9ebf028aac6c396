/* Weights as words of two bf16 for thin products, where 128-bit parts of a vector can be shuffled by bytes (AVX-512). A vector of
 * floats holds elements e and e + 1 of eight rows side by side and not element e of sixteen, so that rounding two such vectors gives words
 * in the order that a dot product wants, with nothing to interleave: one byte shuffle takes the codes of a pair from the words they stand
 * in and replaces the shift and the mask that a code alone would take. The values are those of blocks.h, bit by bit.
 *
 * A type adds two functions: <type>_codes gives elements 4 j to 4 j + 3 of each row, a byte each, and <type>_scales what they are
 * multiplied with. Signed codes become the top bytes of lanes, 2^24 times what they are, and their scales so much smaller. */
#ifndef GR_CPU_QUADS_H
#define GR_CPU_QUADS_H
#include "backend/cpu/kernels/blocks.h"

#if GR_WORDS && GR_LANES == 16
#define GR_QUADS 1

typedef int8_t vbytes __attribute__((vector_size(4 * GR_LANES)));

enum { LOW_NIBBLES = 0x0f0f0f0f, LOW_TWOS = 0x03030303, LOW_ONES = 0x01010101 };

static inline vi less(vi codes, int8_t by) { return (vi)((vbytes)codes - by); }

GR_INLINE vi q4_1_codes(const gr_part_32 *p, int j) { return p->w[j % 4] >> 4 * (j / 4) & LOW_NIBBLES; }
GR_INLINE vi q4_0_codes(const gr_part_32 *p, int j) { return less(q4_1_codes(p, j), 8); }
GR_INLINE vi q8_0_codes(const gr_part_32 *p, int j) { return p->w[j]; }
GR_INLINE vi q5_0_codes(const gr_part_32 *p, int j) { return less(p->w[j], 16); }
GR_INLINE vi q5_1_codes(const gr_part_32 *p, int j) { return p->w[j]; }
GR_INLINE vi q4_k_codes(const gr_part_k *p, int j) { return p->w[j % 8] >> 4 * (j / 8) & LOW_NIBBLES; }
GR_INLINE vi q5_k_codes(const gr_part_k *p, int j) { return q4_k_codes(p, j) | (p->fifth[j % 8] >> j / 8 & LOW_ONES) << 4; }
GR_INLINE vi q6_k_codes(const gr_part_q6 *p, int j) { return q6_k_word(p, j); }
GR_INLINE vi q2_k_codes(const gr_part_q2 *p, int j) { return p->w[j % 8] >> 2 * (j / 8) & LOW_TWOS; }
GR_INLINE vi q3_k_codes(const gr_part_q3 *p, int j)
{
  return less((p->w[j % 8] >> 2 * (j / 8) & LOW_TWOS) | (p->third[j % 8] >> j / 8 & LOW_ONES) << 2, 4);
}

typedef struct gr_quad_scales {
  bool sign; /* codes have one, and offset is not used */
  vf scale, offset;
} gr_quad_scales;

#define SCALES(type, part, has_sign, by, plus)                                                                                             \
  GR_INLINE gr_quad_scales type##_scales(const part *p, int e)                                                                             \
  {                                                                                                                                        \
    (void)e;                                                                                                                               \
    return (gr_quad_scales){ .sign = has_sign, .scale = by, .offset = plus };                                                              \
  }
#define SIGNED(type, part, by) SCALES(type, part, true, (by)*vset(0x1p-24f), vset(0))
#define UNSIGNED(type, part, by, plus) SCALES(type, part, false, by, plus)
SIGNED(q4_0, gr_part_32, p->scale)
UNSIGNED(q4_1, gr_part_32, p->scale, p->offset)
SCALES(q8_0, gr_part_32, true, p->scale, vset(0))
SIGNED(q5_0, gr_part_32, p->scale)
UNSIGNED(q5_1, gr_part_32, p->scale, p->offset)
UNSIGNED(q4_k, gr_part_k, p->scale[e / 32], p->min[e / 32])
UNSIGNED(q5_k, gr_part_k, p->scale[e / 32], p->min[e / 32])
SCALES(q6_k, gr_part_q6, true, p->scale[e / 16], vset(0))
UNSIGNED(q2_k, gr_part_q2, p->scale[e / 16], p->min[e / 16])
SIGNED(q3_k, gr_part_q3, p->scale[e / 16])
#undef SIGNED
#undef UNSIGNED
#undef SCALES

/* Bytes 2 * pair and 2 * pair + 1 of two rows of each four, the first two or the last, each in a lane of its own: at its top or at its
 * bottom, zeros beside it. */
GR_INLINE vi quad_pick(vi codes, bool top, int pair, int half)
{
  const int at = 8 * half + 2 * pair, none = top ? 0x00808080 : (int)0x80808000, shift = top ? 24 : 0;
  const int r0 = none | at << shift, r1 = none | (at + 1) << shift, r2 = none | (at + 4) << shift, r3 = none | (at + 5) << shift;
  return (vi)_mm512_shuffle_epi8((__m512i)codes, _mm512_set4_epi32(r3, r2, r1, r0));
}

/* Each row's value for both lanes of its pair. */
GR_INLINE vf quad_spread(vf v, int half)
{
  return half ? (vf)_mm512_unpackhi_ps((__m512)v, (__m512)v) : (vf)_mm512_unpacklo_ps((__m512)v, (__m512)v);
}

/* Words of one pair of all rows. */
GR_INLINE vf quad_words(vi codes, const gr_quad_scales *s, int pair)
{
  vf v[2];
  GR_UNROLL
  for (int half = 0; half < 2; half++) {
    const vf code = to_float(quad_pick(codes, s->sign, pair, half)), scale = quad_spread(s->scale, half);
    v[half] = s->sign ? code * scale : madd(code, scale, quad_spread(s->offset, half));
  }
  return vwords(v[0], v[1]);
}

/* Lanes in the order of words as rows in their own. */
static inline vf quad_rows(vf v)
{
  return (vf)_mm512_permutexvar_ps(_mm512_set_epi32(15, 14, 7, 6, 13, 12, 5, 4, 11, 10, 3, 2, 9, 8, 1, 0), (__m512)v);
}
#else
#define GR_QUADS 0
#endif

#endif
