#include "backend/cpu/kernels/micro.h"

enum {
  AHEAD = 1024, /* floats of packed rows, which stream from a cache that is far: the next block's are cold */
  LONG = 64     /* steps of a block whose rows of c are worth asking for */
};

/* All loops over registers have constant bounds and must be unrolled: if gcc keeps sum[] in memory (it turns a rolled zeroing loop
 * into memset) the kernel is three times slower. tests/e2e/spills.sh looks at the assembly. */
static inline __attribute__((always_inline)) void micro(int layout, int rows, int vectors, const float *a, int64_t a_step, const float *b,
                                                        int64_t b_step, int64_t steps, float *c, int64_t c_row, const float *base,
                                                        int64_t base_row, const gr_scattered *g)
{
  vf sum[GR_ROWS][2];
  const bool packed = layout == GR_A_PACKED || layout == GR_A_WORDS, words = layout == GR_A_WORDS || layout == GR_A_KEY_WORDS;
  const int64_t row = packed ? 1 : layout == GR_A_BY_ROW ? a_step : words ? GR_CPU_BACK_ROWS / 2 : GR_CPU_BACK_ROWS;
  const int64_t step = packed ? a_step : 1, next = g && g->ahead ? g->ahead_step : 0;
  const char *w = g && g->ahead ? g->ahead : (const char *)a;
  const int64_t *c_at = g ? g->c_at : NULL;
  const float *from[GR_ROWS_AT];
  GR_UNROLL
  for (int r = 0; r < GR_ROWS_AT; r++) from[r] = layout == GR_A_AT ? (const float *)((const char *)a + g->a_at[r < rows ? r : 0]) : a;
  GR_UNROLL
  for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vf){ 0 };
  for (int r = 0; r < rows && base && c_at && steps >= LONG; r++)
    __builtin_prefetch(c + c_at[r]), __builtin_prefetch(c + c_at[r] + GR_LANES);
  for (int64_t s = 0; s < steps; s++, a += step, b += b_step) {
    vf left = vload(b), right = vectors == 2 ? vload(b + GR_LANES) : left;
    if (packed) __builtin_prefetch(a + AHEAD);
    if (packed || layout == GR_A_AT) __builtin_prefetch(w, 0, 2), w += next;
    __builtin_prefetch(b + 16 * b_step);
    const gr_side side = load_side(a, packed ? rows : 0);
    GR_UNROLL
    for (int r = 0; r < rows; r++) {
#if GR_WORDS
      if (words) {
        if (r < side.rows) {
          const vf lanes = side.lanes[r / GR_LANES];
          sum[r][0] = vdot_lane(lanes, r % GR_LANES, left, sum[r][0]);
          if (vectors == 2) sum[r][1] = vdot_lane(lanes, r % GR_LANES, right, sum[r][1]);
          continue;
        }
        vf word = vword(a + r * row);
        sum[r][0] = vdot_words(word, left, sum[r][0]);
        if (vectors == 2) sum[r][1] = vdot_words(word, right, sum[r][1]);
        continue;
      }
#endif
      if (layout == GR_A_AT) {
        vf x = vset(from[r % GR_ROWS_AT][s]);
        sum[r][0] = madd(x, left, sum[r][0]);
        if (vectors == 2) sum[r][1] = madd(x, right, sum[r][1]);
        continue;
      }
      vf x = vset(r < side.rows ? side.lanes[r / GR_LANES][r % GR_LANES] : a[r * row]);
      sum[r][0] = madd(x, left, sum[r][0]);
      if (vectors == 2) sum[r][1] = madd(x, right, sum[r][1]);
    }
  }
  GR_UNROLL
  for (int r = 0; r < rows; r++) {
    const int64_t to = c_at ? c_at[r] : r * c_row, on = c_at ? to : r * base_row;
    GR_UNROLL
    for (int v = 0; v < vectors; v++) vstore(c + to + v * GR_LANES, base ? vload(base + on + v * GR_LANES) + sum[r][v] : sum[r][v]);
  }
}

/* One function for each layout, number of rows, and one or two vectors of columns. */
#if GR_LANES == 16
#define BLOCKS(X, L) X(L, 1) X(L, 2) X(L, 3) X(L, 4) X(L, 5) X(L, 6) X(L, 7) X(L, 8) X(L, 9) X(L, 10) X(L, 11) X(L, 12) X(L, 13) X(L, 14)
#elif GR_LANES == 8
#define BLOCKS(X, L) X(L, 1) X(L, 2) X(L, 3) X(L, 4) X(L, 5) X(L, 6)
#elif defined(GR_NEON)
#define BLOCKS(X, L) X(L, 1) X(L, 2) X(L, 3) X(L, 4) X(L, 5) X(L, 6) X(L, 7) X(L, 8) X(L, 9) X(L, 10) X(L, 11) X(L, 12)
#else
#define BLOCKS(X, L) X(L, 1) X(L, 2) X(L, 3) X(L, 4)
#endif
#if GR_LANES == 16 || defined(GR_NEON)
#define BLOCKS_AT(X, L) X(L, 1) X(L, 2) X(L, 3) X(L, 4) X(L, 5) X(L, 6) X(L, 7) X(L, 8)
#else
#define BLOCKS_AT BLOCKS
#endif
#define KERNEL(L, R, V)                                                                                                                    \
  static void micro_##L##_##R##_##V(const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t steps, float *c,               \
                                    int64_t c_row, const float *base, int64_t base_row, const gr_scattered *g)                             \
  {                                                                                                                                        \
    micro(GR_A_##L, R, V, a, a_step, b, b_step, steps, c, c_row, base, base_row, g);                                                       \
  }
#define KERNELS(L, R) KERNEL(L, R, 1) KERNEL(L, R, 2)
#define ENTRY(L, R) { micro_##L##_##R##_1, micro_##L##_##R##_2 },
BLOCKS(KERNELS, PACKED)
BLOCKS(KERNELS, BY_ROW)
BLOCKS(KERNELS, BY_KEY)
BLOCKS_AT(KERNELS, AT)
#if GR_WORDS
BLOCKS(KERNELS, WORDS)
BLOCKS(KERNELS, KEY_WORDS)
#endif

gr_micro_fn *const GR_ISA_FN(micro)[GR_A_LAYOUTS][GR_ROWS][2] = {
  [GR_A_PACKED] = { BLOCKS(ENTRY, PACKED) }, [GR_A_BY_ROW] = { BLOCKS(ENTRY, BY_ROW) },
  [GR_A_BY_KEY] = { BLOCKS(ENTRY, BY_KEY) }, [GR_A_AT] = { BLOCKS_AT(ENTRY, AT) },
#if GR_WORDS
  [GR_A_WORDS] = { BLOCKS(ENTRY, WORDS) },   [GR_A_KEY_WORDS] = { BLOCKS(ENTRY, KEY_WORDS) },
#endif
};

/* Columns [col, cols), fewer than a strip: computed aside, then the live ones are stored. */
void GR_ISA_FN(micro_edge)(int layout, const gr_micro_block *m, int64_t col)
{
  float aside[GR_ROWS * GR_COLS];
  int64_t live = m->cols - col;
  gr_scattered g = { .a_at = m->a_at };
  GR_ISA_FN(micro)
  [layout][m->rows - 1][live > GR_LANES](m->a, m->a_step, m->b + col / GR_COLS * m->b_strip, m->b_step, m->steps, aside, GR_COLS, NULL, 0,
                                         &g);
  for (int64_t r = 0; r < m->rows; r++) {
    float *c = m->c + (m->c_at ? m->c_at[r] : r * m->c_row) + col;
    const float *base = m->base ? m->base + (m->c_at ? m->c_at[r] : r * m->base_row) + col : NULL;
    for (int64_t i = 0; i < live; i++) c[i] = base ? base[i] + aside[r * GR_COLS + i] : aside[r * GR_COLS + i];
  }
}
