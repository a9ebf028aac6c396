/* The block layouts of GGUF's quantized types, byte for byte as a file holds them. Every member is a byte or an array of bytes:
 * a block may start at any address, and the layout is the same under every compiler.
 *
 * A row of ne0 elements is ne0 / GR_Q*_ELEMS consecutive blocks. `d`, `m`, `dmin` are little-endian IEEE halves. lo and hi
 * are the low and high four bits of a byte. Which element a code belongs to is said in the format's own .c file, next to the
 * decoder. Sizes and field order: ggml's block formats (ggml-org/ggml, ggml-common.h), summarised in docs/formats.md. */
#ifndef GR_QUANT_BLOCKS_H
#define GR_QUANT_BLOCKS_H
#include <stdint.h>

#include "base/half.h"

enum {
  GR_QK = 32,   /* elements of a plain block */
  GR_QK_K = 256 /* elements of a super-block, which holds 8 or 16 sub-blocks with integer scales of their own */
};

typedef struct gr_block_q4_0 {
  uint8_t d[2];
  uint8_t qs[16];
} gr_block_q4_0;

typedef struct gr_block_q4_1 {
  uint8_t d[2], m[2];
  uint8_t qs[16];
} gr_block_q4_1;

typedef struct gr_block_q5_0 {
  uint8_t d[2];
  uint8_t qh[4]; /* bit i: the fifth bit of element i */
  uint8_t qs[16];
} gr_block_q5_0;

typedef struct gr_block_q5_1 {
  uint8_t d[2], m[2];
  uint8_t qh[4];
  uint8_t qs[16];
} gr_block_q5_1;

typedef struct gr_block_q8_0 {
  uint8_t d[2];
  uint8_t qs[32]; /* two's complement */
} gr_block_q8_0;

typedef struct gr_block_q2_k {
  uint8_t scales[16]; /* lo: scale, hi: minimum, one a sub-block of 16 */
  uint8_t qs[64];
  uint8_t d[2], dmin[2];
} gr_block_q2_k;

typedef struct gr_block_q3_k {
  uint8_t hmask[32]; /* the third bit of each element */
  uint8_t qs[64];
  uint8_t scales[12]; /* 16 scales of 6 bits */
  uint8_t d[2];
} gr_block_q3_k;

typedef struct gr_block_q4_k {
  uint8_t d[2], dmin[2];
  uint8_t scales[12]; /* 8 pairs (scale, minimum) of 6 bits: see kquant.h */
  uint8_t qs[128];
} gr_block_q4_k;

typedef struct gr_block_q5_k {
  uint8_t d[2], dmin[2];
  uint8_t scales[12];
  uint8_t qh[32];
  uint8_t qs[128];
} gr_block_q5_k;

typedef struct gr_block_q6_k {
  uint8_t ql[128];
  uint8_t qh[64];
  uint8_t scales[16]; /* two's complement */
  uint8_t d[2];
} gr_block_q6_k;

typedef struct gr_block_iq4_nl {
  uint8_t d[2];
  uint8_t qs[16];
} gr_block_iq4_nl;

typedef struct gr_block_iq4_xs {
  uint8_t d[2];
  uint8_t scales_h[2]; /* two high bits of each of 8 scales */
  uint8_t scales_l[4]; /* four low bits */
  uint8_t qs[128];
} gr_block_iq4_xs;

typedef struct gr_block_mxfp4 {
  uint8_t e; /* power of two, biased */
  uint8_t qs[16];
} gr_block_mxfp4;

_Static_assert(sizeof(gr_block_q4_0) == 18, "Q4_0");
_Static_assert(sizeof(gr_block_q4_1) == 20, "Q4_1");
_Static_assert(sizeof(gr_block_q5_0) == 22, "Q5_0");
_Static_assert(sizeof(gr_block_q5_1) == 24, "Q5_1");
_Static_assert(sizeof(gr_block_q8_0) == 34, "Q8_0");
_Static_assert(sizeof(gr_block_q2_k) == 84, "Q2_K");
_Static_assert(sizeof(gr_block_q3_k) == 110, "Q3_K");
_Static_assert(sizeof(gr_block_q4_k) == 144, "Q4_K");
_Static_assert(sizeof(gr_block_q5_k) == 176, "Q5_K");
_Static_assert(sizeof(gr_block_q6_k) == 210, "Q6_K");
_Static_assert(sizeof(gr_block_iq4_nl) == 18, "IQ4_NL");
_Static_assert(sizeof(gr_block_iq4_xs) == 136, "IQ4_XS");
_Static_assert(sizeof(gr_block_mxfp4) == 17, "MXFP4");

static inline uint16_t gr_load_u16(const uint8_t b[2]) { return (uint16_t)(b[0] | b[1] << 8); }
static inline float gr_load_f16(const uint8_t b[2]) { return gr_f16_to_f32(gr_load_u16(b)); }
static inline void gr_store_u16(uint8_t b[2], uint16_t v)
{
  b[0] = (uint8_t)v;
  b[1] = (uint8_t)(v >> 8);
}

/* The four-bit alphabets of the non-linear types. */
extern const int8_t gr_iq4_values[16];   /* IQ4_NL, IQ4_XS */
extern const int8_t gr_mxfp4_values[16]; /* E2M1, doubled so that it is whole */

#endif
