/* What the K-quants share: the packing of six-bit scales. */
#ifndef GR_QUANT_KQUANT_H
#define GR_QUANT_KQUANT_H
#include <stdint.h>

/* Q4_K and Q5_K: eight pairs of six bits in twelve bytes. Bytes 0..3 hold scales 0..3 and bytes 4..7 minima 0..3 in their low six
 * bits; bytes 8..11 hold the low four bits of scale (lo) and minimum (hi) 4..7, whose two high bits lie on top of bytes 0..7. */
static inline void gr_k_unpack_pairs(const uint8_t packed[12], uint8_t scale[8], uint8_t min[8])
{
  for (int i = 0; i < 4; i++) {
    scale[i] = packed[i] & 63;
    min[i] = packed[i + 4] & 63;
    scale[i + 4] = (uint8_t)((packed[i + 8] & 15) | (packed[i] >> 6) << 4);
    min[i + 4] = (uint8_t)((packed[i + 8] >> 4) | (packed[i + 4] >> 6) << 4);
  }
}

static inline void gr_k_pack_pairs(const int16_t scale[8], const int16_t min[8], uint8_t packed[12])
{
  for (int i = 0; i < 4; i++) {
    packed[i] = (uint8_t)(scale[i] | (scale[i + 4] >> 4) << 6);
    packed[i + 4] = (uint8_t)(min[i] | (min[i + 4] >> 4) << 6);
    packed[i + 8] = (uint8_t)((scale[i + 4] & 15) | (min[i + 4] & 15) << 4);
  }
}

/* Q3_K: sixteen six-bit scales, stored with 32 added. Bytes 0..7: the low four bits of scales 0..7 (lo) and 8..15 (hi); byte 8 + i:
 * the two high bits of scales i, i + 4, i + 8, i + 12, lowest first. */
static inline void gr_k_unpack_q3_scales(const uint8_t packed[12], int8_t scale[16])
{
  for (int s = 0; s < 16; s++) {
    int low = s < 8 ? packed[s] & 15 : packed[s - 8] >> 4;
    int high = packed[8 + (s & 3)] >> 2 * (s >> 2) & 3;
    scale[s] = (int8_t)((low | high << 4) - 32);
  }
}

static inline void gr_k_pack_q3_scales(const int16_t scale[16], uint8_t packed[12])
{
  for (int i = 0; i < 12; i++) packed[i] = 0;
  for (int s = 0; s < 16; s++) {
    int v = scale[s] + 32;
    packed[s & 7] |= (uint8_t)((v & 15) << (s < 8 ? 0 : 4));
    packed[8 + (s & 3)] |= (uint8_t)(v >> 4 << 2 * (s >> 2));
  }
}

#endif
