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
#elif defined(GR_NEON)
  GR_ROWS = 12, /* 24 + 2 of 32, and 3 with a's rows: a lane multiplies without a broadcast */
#else
  GR_ROWS = 4, /* 8 + 2 + 1 of 16 */
#endif
  GR_ROWS_UP = (GR_ROWS + GR_LANES - 1) / GR_LANES * GR_LANES,
  GR_COLS = 2 * GR_LANES
};

/* How a's element of row r and step s is found: PACKED a[s * a_step + r], BY_ROW a[r * a_step + s], BY_KEY a[r * GR_CPU_BACK_ROWS + s],
 * AT: element s of the row that begins a_at[r] bytes from a, for up to GR_ROWS_AT rows.
 * WORDS and KEY_WORDS, where the set has them: as PACKED and (with half the rows) BY_KEY, but elements of a and b are words of two bf16,
 * two steps of the contraction at once. */
enum { GR_A_PACKED, GR_A_BY_ROW, GR_A_BY_KEY, GR_A_AT, GR_A_WORDS, GR_A_KEY_WORDS, GR_A_LAYOUTS = GR_A_WORDS + 2 * GR_WORDS };
enum { GR_ROWS_AT = GR_ROWS < 8 ? GR_ROWS : 8 }; /* each has a register for its address */

/* What only groups have. */
typedef struct gr_scattered {
  const char *ahead; /* a line that is asked for at each step, what the next tile will be made of; NULL: nothing. Not of BY layouts. */
  int64_t ahead_step;
  const int64_t *a_at; /* AT: bytes */
  const int64_t *c_at; /* floats from c, and from base, to each row, in place of c_row and base_row; NULL: those hold */
} gr_scattered;

/* Rows are added to in order: of two that are the same row of c, and of base, the second adds to what the first made. g may be NULL. */
typedef void gr_micro_fn(const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t steps, float *c, int64_t c_row,
                         const float *base, int64_t base_row, const gr_scattered *g);

/* [layout][rows - 1][vectors - 1] */
extern gr_micro_fn *const GR_ISA_FN(micro)[GR_A_LAYOUTS][GR_ROWS][2];

/* `rows` rows of `lines` cache lines, `step` bytes apart: walked line by line down the rows, by as many as a block has steps. */
typedef struct gr_walk {
  const char *w;
  int64_t step, rows, lines;
  int64_t row; /* where it stands; what is left of lines is counted down */
} gr_walk;

enum { GR_LINE = 64 };

static inline void walk_on(gr_walk *w, int64_t steps, gr_scattered *g)
{
  g->ahead = w->w + w->row * w->step;
  g->ahead_step = w->lines > 0 ? w->step : 0;
  w->row += steps;
  if (w->lines > 0 && w->row >= w->rows) w->row = 0, w->w += GR_LINE, w->lines--;
}

/* A block of rows against any number of columns. Strips of GR_COLS columns of b begin b_strip floats apart, and can be read as whole
 * vectors; c and base are neither read nor written beyond cols. base NULL: nothing is added; it may be c. */
typedef struct gr_micro_block {
  const float *a, *b, *base;
  float *c;
  int64_t a_step, b_step, b_strip, c_row, base_row;
  int64_t rows, cols, steps;
  gr_walk *walk;              /* NULL: nothing is asked for meanwhile */
  const int64_t *a_at, *c_at; /* of gr_scattered */
} gr_micro_block;

void GR_ISA_FN(micro_edge)(int layout, const gr_micro_block *m, int64_t col);

static inline void micro_block(int layout, const gr_micro_block *m)
{
  gr_micro_fn *const *kernel = GR_ISA_FN(micro)[layout][m->rows - 1];
  const float *b = m->b;
  for (int64_t j = 0; j < m->cols; j += GR_COLS, b += m->b_strip) {
    int64_t live = m->cols - j;
    gr_scattered g = { .a_at = m->a_at, .c_at = m->c_at };
    if (m->walk) walk_on(m->walk, m->steps, &g);
    if (live >= GR_COLS || live == GR_LANES)
      kernel[live >= GR_COLS](m->a, m->a_step, b, m->b_step, m->steps, m->c + j, m->c_row, m->base ? m->base + j : NULL, m->base_row, &g);
    else if (!GR_MUTANT(matmul_last_partial_strip)) GR_ISA_FN(micro_edge)(layout, m, j);
  }
}

/* The first of `rows` numbers that stand side by side and will be broadcast one by one: as many as fill whole vectors, where an operation
 * takes a lane of one as its operand (simd.h), so that one load brings GR_LANES of them; else none. */
typedef struct gr_side {
  vf lanes[GR_ROWS_UP / GR_LANES];
  int rows;
} gr_side;

static inline __attribute__((always_inline)) gr_side load_side(const float *a, int rows)
{
  gr_side s;
  s.rows = GR_LANE_OPERANDS ? rows / GR_LANES * GR_LANES : 0;
  GR_UNROLL
  for (int i = 0; i < GR_ROWS_UP / GR_LANES; i++)
    if (i * GR_LANES < s.rows) s.lanes[i] = vload(a + i * GR_LANES);
  return s;
}

/* To bf16 and back: n floats, of which some more may be written, up to a whole vector. */
static inline void round_floats(float *v, int64_t n)
{
  for (int64_t i = 0; i < n; i += GR_LANES) vstore(v + i, vround_bf16(vload(v + i)));
}

#if GR_WORDS
/* dst[i] = the word of even[i] and odd[i] for i < n, then words of 0 up to `padded`, a multiple of GR_LANES. odd NULL: zeros. dst may be
 * even or odd. */
static inline void pair_words(float *dst, const float *even, const float *odd, int64_t n, int64_t padded)
{
  for (int64_t i = 0; i < padded; i += GR_LANES) {
    int64_t live = n - i;
    vf a = { 0 }, b = { 0 };
    if (live >= GR_LANES) a = vload(even + i), b = odd ? vload(odd + i) : b;
    else if (live > 0) a = vload_part(even + i, live), b = odd ? vload_part(odd + i, live) : b;
    vstore(dst + i, vpair(a, b));
  }
}

/* Lanes r of dst + i * step: the word of src[r][2 i] and src[r][2 i + 1], for n floats; an odd one stands beside 0. */
static inline void transpose_words(float *dst, int64_t step, const float *const src[GR_LANES], int64_t n)
{
  for (int64_t i = 0; i < n; i += 2 * GR_LANES, dst += GR_LANES * step) {
    int64_t live = n - i, read = live - (GR_MUTANT(bf16_last_odd) ? live % 2 : 0);
    vf v[GR_LANES];
    if (live >= 2 * GR_LANES) {
      GR_UNROLL
      for (int r = 0; r < GR_LANES; r++) v[r] = vwords(vload(src[r] + i), vload(src[r] + i + GR_LANES));
    } else {
      for (int r = 0; r < GR_LANES; r++) {
        vf low = vload_part(src[r] + i, read < GR_LANES ? read : GR_LANES);
        v[r] = vwords(low, read > GR_LANES ? vload_part(src[r] + i + GR_LANES, read - GR_LANES) : (vf){ 0 });
      }
    }
    vtranspose(v);
    if (live >= 2 * GR_LANES) {
      GR_UNROLL
      for (int s = 0; s < GR_LANES; s++) vstore(dst + s * step, v[s]);
    } else {
      for (int s = 0; s < (live + 1) / 2; s++) vstore(dst + s * step, v[s]);
    }
  }
}

/* Words of rows beside each other, as transpose_packed has floats of them. */
static inline void transpose_words_packed(float *dst, int64_t rows, const float *const src[GR_ROWS_UP], int64_t n)
{
  for (int64_t r = (rows - 1) / GR_LANES * GR_LANES; r >= 0; r -= GR_LANES) transpose_words(dst + r, rows, src + r, n);
}
#endif

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

/* dst[i * rows + r] = src[r][i] for r < rows, i < n; src[r] is read for r past the last row as well, up to whole vectors. What a vector
 * writes past its rows belongs to the next i, or to GR_CPU_SPARE: later vectors go first, so that the right floats come last. */
static inline void transpose_packed(float *dst, int64_t rows, const float *const src[GR_ROWS_UP], int64_t n)
{
  for (int64_t r = (rows - 1) / GR_LANES * GR_LANES; r >= 0; r -= GR_LANES) transpose_rows(dst + r, rows, src + r, n);
}

#endif
