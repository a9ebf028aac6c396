/* Tiles of types that have a decoder of GR_LANES rows at once (blocks.h), in the order that the micro-kernel reads. */
#ifndef GR_CPU_TILES_H
#define GR_CPU_TILES_H
#include "backend/cpu/kernels/micro.h"

/* dst[i * GR_COLS + r] = element i of row r, for n elements (whole blocks) from block x of GR_LANES rows that are `stride` bytes apart.
 * In pairs: dst[i / 2 * GR_COLS + r], the words of elements i and i + 1. */
typedef void gr_tile_fn(const uint8_t *x, int64_t stride, int64_t n, float *dst);

/* As floats, then in pairs, by type; NULL: rows are decoded one by one, then transposed. */
extern gr_tile_fn *const GR_ISA_FN(tiles)[1 + GR_WORDS][GR_DTYPE_COUNT];

/* Columns of W: n elements from `first` of GR_LANES rows whose blocks begin at x, `stride` bytes apart, in the strips at dst, `strip`
 * floats apart: dst[j / GR_COLS * strip + r * GR_COLS + j % GR_COLS] = element first + j of row r. In pairs: of rows r and r + 1, r / 2 in
 * place of r. n is GR_ACROSS; of blocks of 32 it may be fewer of them, and `first` is 0. */
enum { GR_ACROSS = 128 }; /* half a super-block, of which all codes of four bits are used */
typedef void gr_across_fn(const uint8_t *x, int64_t stride, int64_t first, int64_t n, float *dst, int64_t strip);

/* As above; NULL: rows are decoded one by one. across.c */
extern gr_across_fn *const GR_ISA_FN(across)[1 + GR_WORDS][GR_DTYPE_COUNT];

/* Columns [col, end) of a product that is thin (product.h), as far as they are whole strips: returns the first that is left. thin.c */
int64_t GR_ISA_FN(thin)(const gr_cpu_product *p, int64_t col, int64_t end);

#endif
