/* Packing and tiles of the product engine (backend/cpu/product.h). */
#include "backend/cpu/kernels/micro.h"

enum {
  PIECE = 256, /* elements of a row decoded at a time: a super-block */
  PITCH = PIECE + 16
};

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

/* ---- tiles: strips of GR_COLS columns, each k by k ---- */

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
      transpose_rows(tile + (c / GR_COLS * deep + i) * GR_COLS + c % GR_COLS, GR_COLS, src, n);
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
        float *dst = tile + ((c + j) / GR_COLS * deep + i) * GR_COLS + j % GR_COLS;
        vstore(dst, n - j >= GR_LANES ? vload(src + j) : vload_part(src + j, n - j));
      }
    }
  }
}

static void multiply(const gr_cpu_product *p, int64_t col, int64_t cols, int64_t block, int64_t k, int64_t deep, const float *tile)
{
  const int64_t f = sizeof(float), first = gr_block_begin(p->rows, p->blocks, block);
  const float *base = k ? p->y : p->base;
  gr_micro_block m = { .b = tile,
                       .b_step = GR_COLS,
                       .b_strip = GR_COLS * deep,
                       .c = p->y + first * p->y_row + col,
                       .c_row = p->y_row,
                       .base_row = k ? p->y_row : p->base_row,
                       .rows = gr_block_begin(p->rows, p->blocks, block + 1) - first,
                       .cols = cols,
                       .steps = deep };
  if (base) m.base = base + first * m.base_row + col;
  if (p->w_read) {
    m.b = (const float *)(p->w + k * p->w_row) + col;
    m.b_step = p->w_row / f;
    m.b_strip = GR_COLS;
  }
  switch (p->x_read) {
  case GR_CPU_X_PACK:
    m.a = gr_packed_at(p, block, k);
    m.a_step = m.rows;
    micro_block(GR_A_PACKED, &m);
    break;
  case GR_CPU_X_BY_STEP:
    m.a = (const float *)(p->x + k * p->x_step) + first;
    m.a_step = p->x_step / f;
    micro_block(GR_A_PACKED, &m);
    break;
  case GR_CPU_X_BY_ROW:
    m.a = (const float *)(p->x + first * p->x_row) + k;
    m.a_step = p->x_row / f;
    micro_block(GR_A_BY_ROW, &m);
    break;
  }
}

/* Columns [col, end) of the blocks [block, last) of rows. */
void GR_ISA_FN(panel)(const gr_cpu_product *p, int64_t col, int64_t end, int64_t block, int64_t last, float *tile)
{
  int64_t cols = end - col, k = 0;
  do { /* a contraction over nothing still gives base, or zeros */
    int64_t deep = gr_min(p->chunk, p->depth - k);
    if (!p->w_read) (p->across ? tile_across : tile_along)(p, col, cols, k, deep, tile);
    for (int64_t i = block; i < last; i++) multiply(p, col, cols, i, k, deep, tile);
    k += deep;
  } while (k < p->depth);
}
