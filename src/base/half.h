/* IEEE half and bfloat16 against float: exact decodes, round-to-nearest-even encodes, in integer arithmetic so that every
 * compiler and device gives the same bits. NaN stays NaN (quiet, payload truncated), infinities stay, denormals are kept. */
#ifndef GR_BASE_HALF_H
#define GR_BASE_HALF_H
#include <stdint.h>
#include <string.h>

static inline float gr_bits_float(uint32_t bits)
{
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static inline uint32_t gr_float_bits(float f)
{
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return bits;
}

/* Selects by mask, not by branch, so that loops over it vectorise. */
static inline float gr_f16_to_f32(uint16_t h)
{
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
  uint32_t denormal = -(uint32_t)(mag < 0x400), special = -(uint32_t)(mag > 0x7bff);
  uint32_t small = gr_float_bits((float)(int32_t)mag * 0x1p-24f);       /* exact where it is used */
  uint32_t large = (mag << 13) + (112u << 23) + (special & 112u << 23); /* rebiased; infinity and NaN to the top exponent */
  return gr_bits_float(sign | (small & denormal) | (large & ~denormal));
}

static inline uint16_t gr_f32_to_f16(float f)
{
  uint32_t bits = gr_float_bits(f), sign = bits >> 16 & 0x8000, mag = bits & 0x7fffffff;
  if (mag > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
  if (mag >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* rounds to 65536 or is larger */
  if (mag < 0x38800000) {                                  /* below 2^-14: a multiple of 2^-24 */
    float scaled = gr_bits_float(mag) * 0x1p24f;           /* exact; less than 1024 */
    uint32_t q = (uint32_t)scaled;
    float rest = scaled - (float)q;
    if (rest > 0.5f || (rest == 0.5f && (q & 1))) q++;
    return (uint16_t)(sign | q);
  }
  uint32_t rounded = mag + 0xfff + (mag >> 13 & 1);
  return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}

static inline float gr_bf16_to_f32(uint16_t h) { return gr_bits_float((uint32_t)h << 16); }

static inline uint16_t gr_f32_to_bf16(float f)
{
  uint32_t bits = gr_float_bits(f);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#endif
