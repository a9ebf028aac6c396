/* Sums of outer products of rows that stand anywhere: the gradient of an expert's factor, whose pairs are gathered where they are read. */
#include "backend/cpu/kernels/micro.h"

/* Like micro() of micro.c: every sum is a chain in ascending order of the pairs. */
static inline __attribute__((always_inline)) void micro(int rows, int vectors, const gr_cpu_outer *o, const float *a, const float *b,
                                                        float *y, bool add)
{
  vf sum[GR_ROWS][2];
  GR_UNROLL
  for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vf){ 0 };
  for (int64_t s = 0; s < o->pairs; s++) {
    const float *as = a + o->a_at[s], *bs = b + o->b_at[s];
    vf left = vload(bs), right = vectors == 2 ? vload(bs + GR_LANES) : left;
    __builtin_prefetch(b + o->b_at[s + GR_CPU_AHEAD]);
    __builtin_prefetch(bs + 2 * GR_COLS); /* the strip after the next: rows come from memory, a piece of each at a time */
    __builtin_prefetch(bs + 2 * GR_COLS + 16);
    const gr_side side = load_side(as, rows);
    GR_UNROLL
    for (int r = 0; r < rows; r++) {
      vf x = vset(r < side.rows ? side.lanes[r / GR_LANES][r % GR_LANES] : as[r]);
      sum[r][0] = madd(x, left, sum[r][0]);
      if (vectors == 2) sum[r][1] = madd(x, right, sum[r][1]);
    }
  }
  GR_UNROLL
  for (int r = 0; r < rows; r++) {
    GR_UNROLL
    for (int v = 0; v < vectors; v++) {
      float *to = y + r * o->y_row + v * GR_LANES;
      vstore(to, add ? vload(to) + sum[r][v] : sum[r][v]);
    }
  }
}

#if GR_LANES == 16
#define BLOCKS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif GR_LANES == 8
#define BLOCKS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#elif defined(GR_NEON)
#define BLOCKS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#else
#define BLOCKS(X) X(1) X(2) X(3) X(4)
#endif
#define KERNEL(R, V)                                                                                                                       \
  static void micro_pairs_##R##_##V(const gr_cpu_outer *o, const float *a, const float *b, float *y, bool add)                             \
  {                                                                                                                                        \
    micro(R, V, o, a, b, y, add);                                                                                                          \
  }
#define KERNELS(R) KERNEL(R, 1) KERNEL(R, 2)
#define ENTRY(R) { micro_pairs_##R##_1, micro_pairs_##R##_2 },
BLOCKS(KERNELS)

typedef void pairs_fn(const gr_cpu_outer *o, const float *a, const float *b, float *y, bool add);
static pairs_fn *const kernels[GR_ROWS][2] = { BLOCKS(ENTRY) };

/* Columns [col, o->cols), fewer than a strip: b's are copied aside, and so are the results. */
static void edge(const gr_cpu_outer *o, int64_t col, float *y, bool add)
{
  float b[GR_CPU_PAIRS * GR_COLS], z[GR_ROWS * GR_COLS];
  gr_cpu_outer q = *o;
  int64_t live = o->cols - col, blocks = gr_ceil_div(o->rows, GR_ROWS);
  memset(b, 0, (size_t)(o->pairs * GR_COLS) * sizeof *b);
  for (int64_t s = 0; s < o->pairs; s++) {
    q.b_at[s] = s * GR_COLS;
    memcpy(b + s * GR_COLS, o->b + o->b_at[s] + col, (size_t)live * sizeof *b);
  }
  for (int64_t s = o->pairs; s < o->pairs + GR_CPU_AHEAD; s++) q.b_at[s] = 0;
  q.y_row = GR_COLS;
  for (int64_t i = 0; i < blocks; i++) {
    int64_t first = gr_block_begin(o->rows, blocks, i), rows = gr_block_begin(o->rows, blocks, i + 1) - first;
    kernels[rows - 1][0](&q, o->a + first, b, z, false);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t c = 0; c < live; c++) {
        float *to = y + (first + r) * o->y_row + col + c;
        *to = add ? *to + z[r * GR_COLS + c] : z[r * GR_COLS + c];
      }
  }
}

void GR_ISA_FN(outer)(const gr_cpu_outer *o, float *y, bool add)
{
  int64_t col = 0, blocks = gr_ceil_div(o->rows, GR_ROWS);
  for (int64_t wide; o->cols - col >= GR_LANES; col += wide) {
    wide = o->cols - col >= GR_COLS ? GR_COLS : GR_LANES;
    for (int64_t i = 0; i < blocks; i++) {
      int64_t first = gr_block_begin(o->rows, blocks, i), rows = gr_block_begin(o->rows, blocks, i + 1) - first;
      kernels[rows - 1][wide > GR_LANES](o, o->a + first, o->b + col, y + first * o->y_row + col, add);
    }
  }
  if (col < o->cols) edge(o, col, y, add);
}
