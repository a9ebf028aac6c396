#include "backend/cpu/kernels/tiles.h"

#include "backend/cpu/kernels/blocks.h"

/* Elements e and e + 1, e even, of every row. */
GR_INLINE void put(bool words, float *dst, int e, vf even, vf odd)
{
#if GR_WORDS
  if (words) {
    vstore(dst + e / 2 * GR_COLS, vpair(even, odd));
    return;
  }
#endif
  (void)words;
  vstore(dst + e * GR_COLS, even);
  vstore(dst + (e + 1) * GR_COLS, odd);
}

/* Floats that n elements of a strip take. */
GR_INLINE int64_t strip_of(bool words, int64_t n) { return (words ? n / 2 : n) * GR_COLS; }

#define STORE(type, elems)                                                                                                                 \
  GR_UNROLL                                                                                                                                \
  for (int q = 0; q < (elems); q += 32, dst += strip_of(words, 32)) {                                                                      \
    GR_UNROLL                                                                                                                              \
    for (int e = 0; e < 32; e += 2) put(words, dst, e, type##_at(&p, q + e), type##_at(&p, q + e + 1));                                    \
  }

#define TILE(type, part)                                                                                                                   \
  GR_INLINE void type##_rows(bool words, const uint8_t *x, int64_t stride, int64_t n, float *dst)                                          \
  {                                                                                                                                        \
    for (int64_t i = 0; i < n; i += GR_QK, x += sizeof(gr_block_##type)) {                                                                 \
      part p;                                                                                                                              \
      type##_load(&p, x, stride);                                                                                                          \
      STORE(type, GR_QK)                                                                                                                   \
    }                                                                                                                                      \
  }                                                                                                                                        \
  VARIANTS(type)

#define TILE_K(type, head, part, part_elems)                                                                                               \
  GR_INLINE void type##_rows(bool words, const uint8_t *x, int64_t stride, int64_t n, float *dst)                                          \
  {                                                                                                                                        \
    for (int64_t i = 0; i < n; i += GR_QK_K, x += sizeof(gr_block_##type)) {                                                               \
      head h;                                                                                                                              \
      type##_open(&h, x, stride);                                                                                                          \
      for (int k = 0; k < GR_QK_K / (part_elems); k++) {                                                                                   \
        part p;                                                                                                                            \
        type##_load(&p, &h, x, stride, k);                                                                                                 \
        STORE(type, part_elems)                                                                                                            \
      }                                                                                                                                    \
    }                                                                                                                                      \
  }                                                                                                                                        \
  VARIANTS(type)

/* type_tile, and type_words where there are such words. */
#define VARIANTS(type)                                                                                                                     \
  static void type##_tile(const uint8_t *x, int64_t stride, int64_t n, float *dst) { type##_rows(false, x, stride, n, dst); }              \
  WORDS(type)
#if GR_WORDS
#define WORDS(type)                                                                                                                        \
  static void type##_words(const uint8_t *x, int64_t stride, int64_t n, float *dst) { type##_rows(true, x, stride, n, dst); }
#else
#define WORDS(type)
#endif

TILE(q4_0, gr_part_32)
TILE(q4_1, gr_part_32)
TILE(q5_0, gr_part_32)
TILE(q5_1, gr_part_32)
TILE(q8_0, gr_part_32)
TILE(iq4_nl, gr_part_named)
TILE(mxfp4, gr_part_named)
TILE_K(q2_k, gr_head_q2, gr_part_q2, GR_Q2_K_PART)
TILE_K(q3_k, gr_head_q3, gr_part_q3, GR_Q3_K_PART)
TILE_K(q4_k, gr_head_k, gr_part_k, GR_Q4_K_PART)
TILE_K(q5_k, gr_head_k, gr_part_k, GR_Q5_K_PART)
TILE_K(q6_k, gr_head_q6, gr_part_q6, GR_Q6_K_PART)
TILE_K(iq4_xs, gr_head_iq4, gr_part_iq4, GR_IQ4_XS_PART)

gr_tile_fn *const GR_ISA_FN(tiles)[1 + GR_WORDS][GR_DTYPE_COUNT] = {
#define TILES(variant)                                                                                                                     \
  { [GR_Q4_0] = q4_0_##variant,  [GR_Q4_1] = q4_1_##variant, [GR_Q5_0] = q5_0_##variant,     [GR_Q5_1] = q5_1_##variant,                   \
    [GR_Q8_0] = q8_0_##variant,  [GR_Q2_K] = q2_k_##variant, [GR_Q3_K] = q3_k_##variant,     [GR_Q4_K] = q4_k_##variant,                   \
    [GR_Q5_K] = q5_k_##variant,  [GR_Q6_K] = q6_k_##variant, [GR_IQ4_NL] = iq4_nl_##variant, [GR_IQ4_XS] = iq4_xs_##variant,               \
    [GR_MXFP4] = mxfp4_##variant },
  TILES(tile)
#if GR_WORDS
      TILES(words)
#endif
};
