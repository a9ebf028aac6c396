/* Packing, tiles and the micro-kernel of the product engine (backend/cpu/product.h). */
#include "backend/cpu/isa.h"
#include "backend/cpu/kernels/kernels.h"

enum {
#if GR_LANES == 16
  ROWS = 14, /* 28 sums, 2 columns and a broadcast of the 32 registers */
#elif GR_LANES == 8
  ROWS = 6, /* 12 + 2 + 1 of 16 */
#else
  ROWS = 4, /* at most GR_LANES, which a packed store covers */
#endif
  COLS = 2 * GR_LANES,
  PIECE = 256, /* elements of a row decoded at a time: a super-block */
  PITCH = PIECE + 16
};

/* dst[i * step + r] = src[r][i] for r < GR_LANES: whole vectors, in ascending order. */
static inline void transpose_rows(float *dst, int64_t step, const float *const src[GR_LANES], int64_t n)
{
  for (int64_t i = 0; i < n; i += GR_LANES) {
    int64_t live = gr_min(n - i, GR_LANES);
    vf v[GR_LANES];
    if (live == GR_LANES) {
      GR_UNROLL
      for (int r = 0; r < GR_LANES; r++) v[r] = vload(src[r] + i);
    } else {
      for (int r = 0; r < GR_LANES; r++) v[r] = vload_part(src[r] + i, live);
    }
    vtranspose(v);
    if (live == GR_LANES) {
      GR_UNROLL
      for (int s = 0; s < GR_LANES; s++) vstore(dst + s * step, v[s]);
    } else {
      for (int s = 0; s < live; s++) vstore(dst + s * step, v[s]);
    }
    dst += GR_LANES * step;
  }
}

/* ---- activations ---- */

static inline const char *row_of_x(const gr_cpu_product *p, int64_t row) { return p->x + (p->gather ? p->gather[row] : row) * p->x_row; }

static void pack_strided(const gr_cpu_product *p, int64_t first, int64_t rows, int64_t k, int64_t deep, float *dst)
{
  for (int64_t i = 0; i < deep; i++)
    for (int64_t r = 0; r < rows; r++) memcpy(dst++, row_of_x(p, first + r) + (k + i) * p->x_step, sizeof *dst);
}

void GR_ISA_FN(pack)(const gr_cpu_product *p, int64_t block)
{
  int64_t first = gr_block_begin(p->rows, p->blocks, block), rows = gr_block_begin(p->rows, p->blocks, block + 1) - first;
  for (int64_t k = 0; k < p->depth; k += p->chunk) {
    int64_t deep = gr_min(p->chunk, p->depth - k);
    float *dst = gr_packed_at(p, block, k);
    if (p->x_step == sizeof(float)) {
      const float *src[GR_LANES];
      for (int64_t r = 0; r < GR_LANES; r++) src[r] = (const float *)row_of_x(p, first + gr_min(r, rows - 1)) + k;
      transpose_rows(dst, rows, src, deep);
    } else if (p->x_row == sizeof(float) && !p->gather) {
      const char *src = row_of_x(p, first) + k * p->x_step;
      for (int64_t i = 0; i < deep; i++, src += p->x_step, dst += rows)
        for (int64_t r = 0; r < rows; r += GR_LANES) vstore(dst + r, vload_part((const float *)src + r, gr_min(rows - r, GR_LANES)));
    } else {
      pack_strided(p, first, rows, k, deep, dst);
    }
  }
}

/* ---- tiles: strips of COLS columns, each k by k ---- */

/* n elements of row `row` of W from element `at` (a multiple of the block) as floats: decoded into buffer, or where they are. */
static inline const float *weights(const gr_cpu_product *p, int64_t row, int64_t at, int64_t n, float *buffer)
{
  const char *src = p->w + row * p->w_row;
  if (p->dtype == GR_F32) {
    if (p->w_step == sizeof(float)) return (const float *)src + at;
    for (int64_t i = 0; i < n; i++) memcpy(&buffer[i], src + (at + i) * p->w_step, sizeof *buffer);
    return buffer;
  }
  const gr_dtype_info *d = gr_dtype_get(p->dtype);
  p->isa->decode[p->dtype](src + at / d->block_elems * d->block_bytes, buffer, n);
  return buffer;
}

/* Columns of the tile are rows of W. Columns past the last repeat it; their sums are dropped. */
static void tile_along(const gr_cpu_product *p, int64_t col, int64_t cols, int64_t k, int64_t deep, float *tile)
{
  float buffer[GR_LANES][PITCH];
  for (int64_t c = 0; c < cols; c += GR_LANES)
    for (int64_t i = 0; i < deep; i += PIECE) {
      int64_t n = gr_min(deep - i, PIECE);
      const float *src[GR_LANES];
      for (int64_t r = 0; r < GR_LANES; r++) src[r] = c + r < cols ? weights(p, col + c + r, k + i, n, buffer[r]) : src[r - 1];
      transpose_rows(tile + (c / COLS * deep + i) * COLS + c % COLS, COLS, src, n);
    }
}

/* Columns of the tile are columns of W. */
static void tile_across(const gr_cpu_product *p, int64_t col, int64_t cols, int64_t k, int64_t deep, float *tile)
{
  float buffer[PITCH];
  for (int64_t c = 0; c < cols; c += PIECE) {
    int64_t n = gr_min(cols - c, PIECE);
    for (int64_t i = 0; i < deep; i++) {
      const float *src = weights(p, k + i, col + c, n, buffer);
      for (int64_t j = 0; j < n; j += GR_LANES) {
        float *dst = tile + ((c + j) / COLS * deep + i) * COLS + j % COLS;
        vstore(dst, n - j >= GR_LANES ? vload(src + j) : vload_part(src + j, n - j));
      }
    }
  }
}

/* ---- micro-kernel ---- */

/* c[rows, vectors] = base + a b, base NULL: 0. All loops over registers have constant bounds and must be unrolled: if gcc keeps sum[]
 * in memory (it turns a rolled zeroing loop into memset) the kernel is three times slower. bench/check-spills looks at the assembly. */
static inline __attribute__((always_inline)) void micro_kernel(int rows, int vectors, const float *a, const float *b, int64_t steps,
                                                               float *c, int64_t c_row, const float *base, int64_t base_row)
{
  vf sum[ROWS][2];
  GR_UNROLL
  for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vf){ 0 };
  for (int64_t s = 0; s < steps; s++, a += rows, b += COLS) {
    vf left = vload(b), right = vectors == 2 ? vload(b + GR_LANES) : left;
    GR_UNROLL
    for (int r = 0; r < rows; r++) {
      vf x = vset(a[r]);
      sum[r][0] = madd(x, left, sum[r][0]);
      if (vectors == 2) sum[r][1] = madd(x, right, sum[r][1]);
    }
  }
  GR_UNROLL
  for (int r = 0; r < rows; r++) GR_UNROLL
  for (int v = 0; v < vectors; v++) {
    vf total = base ? vload(base + r * base_row + v * GR_LANES) + sum[r][v] : sum[r][v];
    vstore(c + r * c_row + v * GR_LANES, total);
  }
}

typedef void kernel_fn(const float *a, const float *b, int64_t steps, float *c, int64_t c_row, const float *base, int64_t base_row);

/* One function for each number of rows, and one or two vectors of columns. */
#if GR_LANES == 16
#define BLOCKS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#elif GR_LANES == 8
#define BLOCKS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#define BLOCKS(X) X(1) X(2) X(3) X(4)
#endif
#define KERNEL(R, V)                                                                                                                       \
  static void kernel_##V##_##R(const float *a, const float *b, int64_t steps, float *c, int64_t c_row, const float *base,                  \
                               int64_t base_row)                                                                                           \
  {                                                                                                                                        \
    micro_kernel(R, V, a, b, steps, c, c_row, base, base_row);                                                                             \
  }
#define KERNELS(R) KERNEL(R, 1) KERNEL(R, 2)
#define ENTRY(R) { kernel_1_##R, kernel_2_##R },
BLOCKS(KERNELS)
static kernel_fn *const kernels[ROWS][2] = { BLOCKS(ENTRY) };

/* A strip of fewer than COLS columns: computed aside, then its live columns are stored. */
static void edge(int64_t rows, int64_t cols, const float *a, const float *b, int64_t steps, float *c, int64_t c_row, const float *base,
                 int64_t base_row)
{
  float aside[ROWS * COLS];
  kernels[rows - 1][cols > GR_LANES](a, b, steps, aside, COLS, NULL, 0);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < cols; i++) c[r * c_row + i] = base ? base[r * base_row + i] + aside[r * COLS + i] : aside[r * COLS + i];
}

static void multiply(const gr_cpu_product *p, int64_t col, int64_t cols, int64_t block, int64_t k, int64_t deep, const float *tile)
{
  int64_t first = gr_block_begin(p->rows, p->blocks, block), rows = gr_block_begin(p->rows, p->blocks, block + 1) - first;
  const float *a = gr_packed_at(p, block, k), *from = k ? p->y : p->base;
  int64_t from_row = k ? p->y_row : p->base_row;
  for (int64_t j = 0; j < cols; j += COLS) {
    float *c = p->y + first * p->y_row + col + j;
    const float *base = from ? from + first * from_row + col + j : NULL, *b = tile + j * deep;
    int64_t live = gr_min(cols - j, COLS);
    if (live == COLS || live == GR_LANES) kernels[rows - 1][live == COLS](a, b, deep, c, p->y_row, base, from_row);
    else edge(rows, live, a, b, deep, c, p->y_row, base, from_row);
  }
}

/* Columns [col, end) of the blocks [block, last) of rows. */
void GR_ISA_FN(panel)(const gr_cpu_product *p, int64_t col, int64_t end, int64_t block, int64_t last, float *tile)
{
  int64_t cols = end - col, k = 0;
  do { /* a contraction over nothing still gives base, or zeros */
    int64_t deep = gr_min(p->chunk, p->depth - k);
    (p->across ? tile_across : tile_along)(p, col, cols, k, deep, tile);
    for (int64_t i = block; i < last; i++) multiply(p, col, cols, i, k, deep, tile);
    k += deep;
  } while (k < p->depth);
}
