/* Decoding GR_LANES rows of W at once, a lane for each row, into the order that the micro-kernel reads: packed words are transposed
 * before they are unpacked, so that one shuffle serves many weights, and each lane keeps its own row's scales.
 * The values are those of kernels/decode.c, bit by bit: where a product of scale and code is written as a fused multiply-add, it is exact
 * (a half has 11 bits, scales and codes have the rest of at most 24), and so rounds once either way. */
#ifndef GR_CPU_TILES_H
#define GR_CPU_TILES_H
#include "backend/cpu/kernels/micro.h"

/* dst[i * GR_COLS + r] = element i of row r, for n elements (whole blocks) from block x of GR_LANES rows that are `stride` bytes apart.
 * In pairs: dst[i / 2 * GR_COLS + r], the words of elements i and i + 1. */
typedef void gr_tile_fn(const uint8_t *x, int64_t stride, int64_t n, float *dst);

/* As floats, then in pairs, by type; NULL: rows are decoded one by one, then transposed. */
extern gr_tile_fn *const GR_ISA_FN(tiles)[1 + GR_WORDS][GR_DTYPE_COUNT];

#endif
