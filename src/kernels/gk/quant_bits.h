/* Reading the block formats, as src/quant defines them: the same arithmetic in the same order, so the same bits (but for the payload of a
 * NaN). Layouts are described in src/quant, one file a format.
 *
 * Each format is a tag type gk_<format> and an overload of
 *   gk_decode8(tag, row, i, n, v)    v[0..7] = elements i..i+7 of a row of n that starts at byte address row; i is a multiple of 8
 * so that templates of products take any format. Elements from n on are 0; only the types without blocks can have such. */
#ifndef GK_QUANT_BITS_H
#define GK_QUANT_BITS_H
#include "kernels/gk/gk.h"

enum { GK_QK = 32, GK_QK_K = 256 }; /* elements of a block, of a super-block */

GK_FN uint32_t gk_load_u16(const GK_GLOBAL uint8_t *p) { return p[0] | (uint32_t)p[1] << 8; }

/* An IEEE half, exactly. */
GK_FN float gk_half(uint32_t h)
{
  const uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31u, fraction = h & 0x3ffu;
  if (exponent == 31u) return gk_bits_float(sign | 0x7f800000u | fraction << 13);
  if (exponent) return gk_bits_float(sign | (exponent + 112u) << 23 | fraction << 13);
  const float magnitude = (float)fraction * 5.9604644775390625e-8f; /* 2^-24: exact */
  return sign ? -magnitude : magnitude;
}

GK_FN float gk_load_half(const GK_GLOBAL uint8_t *p) { return gk_half(gk_load_u16(p)); }

/* Two's complement of a byte. */
GK_FN int32_t gk_signed(uint32_t byte) { return (int32_t)(byte ^ 0x80u) - 128; }

/* Four bits to the value they name: values holds 16 bytes, the first eight in `low`, lowest byte first. */
GK_FN float gk_nibble_value(uint64_t low, uint64_t high, uint32_t code)
{
  return (float)gk_signed((uint32_t)((code < 8u ? low : high) >> 8u * (code & 7u)) & 0xffu);
}

/* Codes 0..15 of a plain block of 32, elements i..i+7 of it: the first half of the block in low nibbles, the second in high ones. */
GK_FN uint32_t gk_plain_nibble(const GK_GLOBAL uint8_t *qs, uint32_t i, uint32_t e) { return qs[(i + e) & 15u] >> (i & 16u ? 4 : 0) & 15u; }

/* The code with its fifth bit: bit i of qh belongs to element i. */
GK_FN uint32_t gk_plain_five(const GK_GLOBAL uint8_t *qh, const GK_GLOBAL uint8_t *qs, uint32_t i, uint32_t e)
{
  return gk_plain_nibble(qs, i, e) | (qh[i % GK_QK / 8] >> e & 1u) << 4;
}

/* The alphabet of IQ4_NL and IQ4_XS: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113. */
GK_FN float gk_iq4_value(uint32_t code) { return gk_nibble_value(0xf6eaddcfbfad9881u, 0x7159453526190d01u, code); }

/* That of MXFP4, doubled: 0 1 2 3 4 6 8 12 and their negatives. */
GK_FN float gk_mxfp4_value(uint32_t code) { return gk_nibble_value(0xc08060403020100u, 0xf4f8fafcfdfeff00u, code); }

/* Scale (which 0) or minimum (which 1) of sub-block s of Q4_K and Q5_K, six bits: those of sub-blocks 4 to 7 have their two high bits on
 * top of the others'. */
GK_FN float gk_k_pair(const GK_GLOBAL uint8_t *packed, uint32_t s, uint32_t which)
{
  if (s < 4u) return (float)(packed[s + 4u * which] & 63u);
  return (float)((packed[s + 4u] >> 4u * which & 15u) | (uint32_t)(packed[s - 4u + 4u * which] >> 6) << 4);
}

#endif
