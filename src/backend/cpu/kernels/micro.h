/* The micro-kernel that products and attention share: c = base + a b over a block of up to GR_ROWS rows and GR_COLS columns, all sums
 * in registers, each a chain of multiply-adds in ascending order of the contraction. */
#ifndef GR_CPU_MICRO_H
#define GR_CPU_MICRO_H
#include "backend/cpu/kernels/kernels.h"
#include "base/mutant.h"

enum {
#if GR_LANES == 16
  GR_ROWS = 14, /* 28 sums, 2 columns and a broadcast of the 32 registers */
#elif GR_LANES == 8
  GR_ROWS = 6, /* 12 + 2 + 1 of 16 */
#else
  GR_ROWS = 4, /* at most GR_LANES, which a packed store covers */
#endif
  GR_COLS = 2 * GR_LANES
};

/* How a's element of row r and step s is found: PACKED a[s * a_step + r], BY_ROW a[r * a_step + s], BY_KEY a[r * GR_CPU_QUERIES + s]. */
enum { GR_A_PACKED, GR_A_BY_ROW, GR_A_BY_KEY, GR_A_LAYOUTS };

typedef void gr_micro_fn(const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t steps, float *c, int64_t c_row,
                         const float *base, int64_t base_row);

/* [layout][rows - 1][vectors - 1] */
extern gr_micro_fn *const GR_ISA_FN(micro)[GR_A_LAYOUTS][GR_ROWS][2];

/* A block of rows against any number of columns. Strips of GR_COLS columns of b begin b_strip floats apart, and can be read as whole
 * vectors; c and base are neither read nor written beyond cols. base NULL: nothing is added; it may be c. */
typedef struct gr_micro_block {
  const float *a, *b, *base;
  float *c;
  int64_t a_step, b_step, b_strip, c_row, base_row;
  int64_t rows, cols, steps;
} gr_micro_block;

void GR_ISA_FN(micro_edge)(int layout, const gr_micro_block *m, int64_t col);

static inline void micro_block(int layout, const gr_micro_block *m)
{
  gr_micro_fn *const *kernel = GR_ISA_FN(micro)[layout][m->rows - 1];
  const float *b = m->b;
  for (int64_t j = 0; j < m->cols; j += GR_COLS, b += m->b_strip) {
    int64_t live = m->cols - j;
    if (live >= GR_COLS || live == GR_LANES)
      kernel[live >= GR_COLS](m->a, m->a_step, b, m->b_step, m->steps, m->c + j, m->c_row, m->base ? m->base + j : NULL, m->base_row);
    else if (!GR_MUTANT(matmul_last_partial_strip)) GR_ISA_FN(micro_edge)(layout, m, j);
  }
}

/* dst[i * step + r] = src[r][i] for r < GR_LANES, i < n: whole vectors, in ascending order of i. */
static inline void transpose_rows(float *dst, int64_t step, const float *const src[GR_LANES], int64_t n)
{
  int64_t i = 0;
  for (; i + GR_LANES <= n; i += GR_LANES, dst += GR_LANES * step) {
    vf v[GR_LANES];
    GR_UNROLL
    for (int r = 0; r < GR_LANES; r++) v[r] = vload(src[r] + i);
    vtranspose(v);
    GR_UNROLL
    for (int s = 0; s < GR_LANES; s++) vstore(dst + s * step, v[s]);
  }
  if (i == n) return;
  vf v[GR_LANES];
  for (int r = 0; r < GR_LANES; r++) v[r] = vload_part(src[r] + i, n - i);
  vtranspose(v);
  for (int s = 0; s < n - i; s++) vstore(dst + s * step, v[s]);
}

#endif
