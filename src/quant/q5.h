/* How Q5_0 and Q5_1 store 32 codes of five bits. */
#ifndef GR_QUANT_Q5_H
#define GR_QUANT_Q5_H
#include <stdint.h>
#include <string.h>

/* code[32], 0..31: the low four bits of code j are lo(qs[j]), of code 16 + j hi(qs[j]), and the fifth of code i is bit i of qh.
 * Eight codes at a time, as the bytes of a word (hosts are little-endian): each byte keeps its own bit of the copied byte of qh, and adding
 * 0x7f carries into a byte's top bit exactly when that bit was there. */
static inline void gr_q5_unpack(const uint8_t qh[4], const uint8_t qs[16], uint8_t code[32])
{
  const uint64_t ones = UINT64_C(0x0101010101010101);
  for (int b = 0; b < 4; b++) {
    uint64_t four;
    memcpy(&four, qs + 8 * (b & 1), sizeof four);
    uint64_t fifth = (qh[b] * ones & UINT64_C(0x8040201008040201)) + 0x7f * ones;
    uint64_t word = (four >> 4 * (b >> 1) & 15 * ones) | (fifth >> 3 & 16 * ones);
    memcpy(code + 8 * b, &word, sizeof word);
  }
}

/* The inverse, of code + bias. */
static inline void gr_q5_pack(const int8_t code[32], int bias, uint8_t qh[4], uint8_t qs[16])
{
  for (int j = 0; j < 16; j++) qs[j] = (uint8_t)(((code[j] + bias) & 15) | ((code[j + 16] + bias) & 15) << 4);
  for (int b = 0; b < 4; b++) {
    int bits = 0;
    for (int k = 0; k < 8; k++) bits |= (code[8 * b + k] + bias) >> 4 << k;
    qh[b] = (uint8_t)bits;
  }
}

#endif
