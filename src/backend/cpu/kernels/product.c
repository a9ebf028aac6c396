/* Packing and tiles of the product engine (backend/cpu/product.h). */
#include "backend/cpu/kernels/tiles.h"
#include "base/mutant.h"

enum {
  PIECE = 256, /* elements of a row decoded at a time: a super-block */
  PITCH = PIECE + 16,
  AHEAD = 8,               /* rows that are fetched while one is decoded */
  AHEAD_BYTES = 256 * 1024 /* of whole rows that are asked for while the tile before is multiplied */
};

/* ---- activations ---- */

static inline const char *x_at(const gr_cpu_term *t, int64_t row) { return t->x + (t->x_at ? t->x_at[row] : row * t->x_row); }

static void pack_strided(const gr_cpu_term *t, int64_t first, int64_t rows, int64_t k, int64_t deep, float *dst)
{
  for (int64_t i = 0; i < deep; i++)
    for (int64_t r = 0; r < rows; r++) memcpy(dst++, x_at(t, first + r) + (k + i) * t->x_step, sizeof *dst);
}

#if GR_WORDS
static void pack_words(const gr_cpu_term *t, int64_t first, int64_t rows, int64_t k, int64_t deep, float *dst)
{
  if (t->x_step == sizeof(float) && rows == 1) {
    const float *src = (const float *)x_at(t, first) + k;
    for (; deep >= 2 * GR_LANES; deep -= 2 * GR_LANES, src += 2 * GR_LANES, dst += GR_LANES)
      vstore(dst, vwords(vload(src), vload(src + GR_LANES)));
    if (deep > GR_LANES) vstore(dst, vwords(vload(src), vload_part(src + GR_LANES, deep - GR_LANES)));
    else if (deep > 0) vstore(dst, vwords(vload_part(src, deep), (vf){ 0 }));
    return;
  }
  if (t->x_step == sizeof(float)) {
    const float *src[GR_ROWS_UP];
    for (int64_t r = 0; r < GR_ROWS_UP; r++) src[r] = (const float *)x_at(t, first + gr_min(r, rows - 1)) + k;
    transpose_words_packed(dst, rows, src, deep);
    return;
  }
  for (int64_t i = 0; i < deep; i += 2, dst += rows) {
    float pair[2][GR_ROWS_UP] = { { 0 } };
    for (int64_t h = 0; h < 2 && i + h < deep; h++)
      for (int64_t r = 0; r < rows; r++) memcpy(&pair[h][r], x_at(t, first + r) + (k + i + h) * t->x_step, sizeof **pair);
    for (int64_t r = 0; r < rows; r += GR_LANES) vstore(dst + r, vpair(vload(pair[0] + r), vload(pair[1] + r)));
  }
}
#endif

/* One chunk of a block of rows. */
static void pack_chunk(const gr_cpu_term *t, int64_t first, int64_t rows, int64_t k, int64_t deep, float *dst)
{
  float *packed = dst;
#if GR_WORDS
  if (t->words) {
    pack_words(t, first, rows, k, deep, dst);
    return;
  }
#endif
  if (t->x_step == sizeof(float)) {
    const float *src[GR_ROWS_UP];
    for (int64_t r = 0; r < GR_ROWS_UP; r++) src[r] = (const float *)x_at(t, first + gr_min(r, rows - 1)) + k;
    transpose_packed(dst, rows, src, deep);
  } else if (!t->x_at && t->x_row == sizeof(float)) {
    const char *src = t->x + first * t->x_row + k * t->x_step;
    for (int64_t i = 0; i < deep; i++, src += t->x_step, dst += rows)
      for (int64_t r = 0; r < rows; r += GR_LANES) vstore(dst + r, vload_part((const float *)src + r, gr_min(rows - r, GR_LANES)));
  } else {
    pack_strided(t, first, rows, k, deep, dst);
  }
  for (float *v = packed, *end = v + rows * deep; GR_MUTANT(out_prod_half) && v < end; v++) *v = GR_MUTANT_HALF(out_prod_half, *v);
  for (float *v = packed, *end = v + rows * deep; GR_MUTANT(matmul_id_back_half) && v < end; v++)
    *v = GR_MUTANT_HALF(matmul_id_back_half, *v);
  if (t->bf16) round_floats(packed, rows * deep);
}

void GR_ISA_FN(pack)(const gr_cpu_product *p, const gr_cpu_term *t, int64_t block)
{
  int64_t first = gr_block_begin(p->rows, p->blocks, block), rows = gr_block_begin(p->rows, p->blocks, block + 1) - first;
  for (int64_t k = 0; k < t->depth; k += t->chunk)
    pack_chunk(t, first, rows, k, gr_min(t->chunk, t->depth - k), gr_packed_at(p, t, block, k));
}

void GR_ISA_FN(transpose)(float *dst, int64_t dst_row, const float *src, int64_t src_row, int64_t rows, int64_t n)
{
  for (int64_t r = 0; r < rows; r += GR_LANES) {
    const float *from[GR_LANES];
    for (int64_t i = 0; i < GR_LANES; i++) from[i] = src + (r + i) * src_row;
    transpose_rows(dst + r, dst_row, from, n);
  }
}

/* ---- tiles: strips of GR_COLS columns, each k by k ---- */

/* Where element `at` of row `row` of W begins: at is a multiple of the block. */
static inline const char *weight_at(const gr_cpu_term *t, int64_t row, int64_t at)
{
  const gr_dtype_info *d = gr_dtype_get(t->dtype);
  return t->w + row * t->w_row + at / d->block_elems * d->block_bytes;
}

/* n elements of row `row` of W from element `at` (a multiple of the block) as floats: decoded into buffer, or where they are. */
static inline const float *weights(const gr_cpu_product *p, const gr_cpu_term *t, int64_t row, int64_t at, int64_t n, float *buffer)
{
  const char *src = t->w + row * t->w_row;
  if (t->dtype == GR_F32) {
    if (t->w_step == sizeof(float)) return (const float *)src + at;
    for (int64_t i = 0; i < n; i++) memcpy(&buffer[i], src + (at + i) * t->w_step, sizeof *buffer);
    return buffer;
  }
  p->isa->decode[t->dtype](weight_at(t, row, at), buffer, n);
  return buffer;
}

/* Asks for weights that are decoded next: matrices come from memory, and no processor foresees rows of a few blocks that lie apart. */
static inline void fetch(const char *w, int64_t bytes)
{
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(w + i);
  __builtin_prefetch(w + bytes - 1);
}

/* The same rows, in the strip's order at dst: floats, or words. */
static inline void strip_rows(const gr_cpu_term *t, float *dst, const float *const src[GR_LANES], int64_t n)
{
#if GR_WORDS
  if (t->words) {
    transpose_words(dst, GR_COLS, src, n);
    return;
  }
#endif
  (void)t;
  transpose_rows(dst, GR_COLS, src, n);
}

/* BF16 is words already: moved, not decoded. */
static inline bool words_already(const gr_cpu_term *t, int64_t n) { return t->words && t->dtype == GR_BF16 && n % 2 == 0; }

/* Columns of the tile are rows of W. Columns past the last repeat it; their sums are dropped. */
static void tile_along(const gr_cpu_product *p, const gr_cpu_term *t, int64_t col, int64_t cols, int64_t k, int64_t deep, float *tile)
{
  float buffer[GR_LANES][PITCH];
  gr_tile_fn *decode = GR_ISA_FN(tiles)[t->words][t->dtype];
  const int64_t strip = gr_words(t, deep) * GR_COLS, bytes = (int64_t)gr_row_bytes(t->dtype, gr_min(PIECE, deep));
  if (GR_MUTANT(matmul_no_tile_offset)) col = 0;
  for (int64_t c = 0; c < cols; c += GR_LANES) {
    float *dst = tile + c / GR_COLS * strip + c % GR_COLS;
    for (int64_t i = 0; decode && c + GR_LANES <= cols && i < deep; i += PIECE) {
      int64_t n = gr_min(deep - i, PIECE), next = i + PIECE < deep ? i + PIECE : 0, beside = next ? c : c + GR_LANES;
      const char *w = weight_at(t, col + c, k + i), *ahead = weight_at(t, col + beside, k + next);
      for (int64_t r = beside; r < gr_min(beside + GR_LANES, cols); r++, ahead += t->w_row) fetch(ahead, bytes);
      decode((const uint8_t *)w, t->w_row, n, dst + gr_words(t, i) * GR_COLS);
    }
    if (decode && c + GR_LANES <= cols) continue;
    for (int64_t i = 0; i < deep; i += PIECE) {
      int64_t n = gr_min(deep - i, PIECE);
      const float *src[GR_LANES];
      for (int64_t r = 0; i + PIECE < deep && t->dtype != GR_F32 && r < gr_min(GR_LANES, cols - c); r++)
        fetch(weight_at(t, col + c + r, k + i + PIECE), (int64_t)gr_row_bytes(t->dtype, gr_min(PIECE, deep - i - PIECE)));
      if (words_already(t, n)) {
        for (int64_t r = 0; r < GR_LANES; r++)
          src[r] = (const float *)(t->w + (col + gr_min(c + r, cols - 1)) * t->w_row + (k + i) * (int64_t)sizeof(uint16_t));
        transpose_rows(dst + i / 2 * GR_COLS, GR_COLS, src, n / 2);
        continue;
      }
      for (int64_t r = 0; r < GR_LANES; r++) src[r] = c + r < cols ? weights(p, t, col + c + r, k + i, n, buffer[r]) : src[r - 1];
      strip_rows(t, dst + gr_words(t, i) * GR_COLS, src, n);
    }
  }
}

/* Rows of W are decoded GR_LANES at a time, as many as there are whole groups of in [k, k + deep); returns how many rows were. */
static int64_t across_groups(const gr_cpu_term *t, int64_t col, int64_t cols, int64_t k, int64_t deep, float *tile)
{
  gr_across_fn *decode = GR_ISA_FN(across)[t->words][t->dtype];
  const int64_t strip = gr_words(t, deep) * GR_COLS, whole = decode ? deep - deep % GR_LANES : 0;
  const int64_t block = gr_dtype_get(t->dtype)->block_elems,
                bytes = weight_at(t, k, col + cols - 1) - weight_at(t, k, col) + gr_dtype_get(t->dtype)->block_bytes;
  const char *w = weight_at(t, k, col);
  for (int64_t i = 0; i < whole; i += GR_LANES, w += GR_LANES * t->w_row) {
    for (int64_t r = GR_LANES; i + r < gr_min(whole, i + 2 * GR_LANES); r++) fetch(w + r * t->w_row, bytes);
    for (int64_t c = 0, n; c < cols; c += n) {
      n = gr_min(cols - c, GR_ACROSS);
      decode((const uint8_t *)weight_at(t, k + i, col + c), t->w_row, (col + c) % block, n,
             tile + c / GR_COLS * strip + gr_words(t, i) * GR_COLS, strip);
    }
  }
  return whole;
}

/* Elements [at, at + n) of one row, n at most a piece and within one: at need not be a multiple of the block. */
static inline const float *piece(const gr_cpu_product *p, const gr_cpu_term *t, int64_t row, int64_t at, int64_t n, float *buffer)
{
  int64_t before = at % gr_dtype_get(t->dtype)->block_elems;
  return weights(p, t, row, at - before, before + n, buffer) + before;
}

#if GR_WORDS
/* n elements of two rows as words. odd NULL: zeros. */
static inline void across_words(const float *even, const float *odd, int64_t n, float *dst, int64_t strip)
{
  for (int64_t j = 0; j < n; j += GR_LANES) {
    float *to = dst + j / GR_COLS * strip + j % GR_COLS;
    if (GR_MUTANT(bf16_pair_second)) odd = NULL;
    if (n - j >= GR_LANES) vstore(to, vpair(vload(even + j), odd ? vload(odd + j) : (vf){ 0 }));
    else vstore(to, vpair(vload_part(even + j, n - j), odd ? vload_part(odd + j, n - j) : (vf){ 0 }));
  }
}

static void tile_across_words(const gr_cpu_product *p, const gr_cpu_term *t, int64_t col, int64_t cols, int64_t k, int64_t deep,
                              float *tile)
{
  float buffer[2][PITCH];
  const int64_t strip = gr_words(t, deep) * GR_COLS, done = across_groups(t, col, cols, k, deep, tile);
  for (int64_t c = 0, n; c < cols; c += n) {
    n = gr_min(cols - c, PIECE - (col + c) % PIECE);
    int64_t bytes = (int64_t)gr_row_bytes(t->dtype, n);
    const char *ahead = weight_at(t, k + done + AHEAD - 2, col + c);
    for (int64_t i = done; i < deep; i += 2) {
      ahead += 2 * t->w_row;
      if (i + AHEAD + 1 < deep) fetch(ahead, bytes), fetch(ahead + t->w_row, bytes);
      const float *even = piece(p, t, k + i, col + c, n, buffer[0]);
      const float *odd = i + 1 < deep ? piece(p, t, k + i + 1, col + c, n, buffer[1]) : NULL;
      across_words(even, odd, n, tile + c / GR_COLS * strip + i / 2 * GR_COLS, strip);
    }
  }
}
#endif

/* Columns of the tile are columns of W. */
static void tile_across(const gr_cpu_product *p, const gr_cpu_term *t, int64_t col, int64_t cols, int64_t k, int64_t deep, float *tile)
{
  float buffer[PITCH];
  if (GR_MUTANT(out_prod_no_tile_offset)) col = 0;
#if GR_WORDS
  if (t->words) {
    tile_across_words(p, t, col, cols, k, deep, tile);
    return;
  }
#endif
  const int64_t done = across_groups(t, col, cols, k, deep, tile);
  const bool blocks = gr_dtype_get(t->dtype)->block_elems > 1;
  for (int64_t c = 0, n; c < cols; c += n) {
    n = gr_min(cols - c, blocks ? PIECE - (col + c) % PIECE : PIECE);
    int64_t bytes = (int64_t)gr_row_bytes(t->dtype, n);
    const char *ahead = weight_at(t, k + done + AHEAD - 1, col + c);
    for (int64_t i = done; i < deep; i++) {
      if (i + AHEAD < deep) fetch(ahead += t->w_row, bytes);
      const float *src = piece(p, t, k + i, col + c, n, buffer);
      for (int64_t j = 0; j < n; j += GR_LANES) {
        float *dst = tile + ((c + j) / GR_COLS * deep + i) * GR_COLS + j % GR_COLS;
        vstore(dst, n - j >= GR_LANES ? vload(src + j) : vload_part(src + j, n - j));
      }
    }
  }
}

static void make_tile(const gr_cpu_product *p, const gr_cpu_term *t, int64_t col, int64_t cols, int64_t k, int64_t deep, float *tile)
{
  (t->across ? tile_across : tile_along)(p, t, col, cols, k, deep, tile);
  if (t->bf16 && !t->words) round_floats(tile, gr_ceil_div(cols, GR_COLS) * GR_COLS * deep);
}

/* ---- products ---- */

/* Where results of a tile go: z holds rows of the product from `first` on. */
typedef struct target {
  float *z;
  int64_t row, first;
} target;

static inline float *target_at(const target *to, int64_t row) { return to->z + (row - to->first) * to->row; }

static inline int packed_layout(const gr_cpu_term *t) { return t->words ? GR_A_WORDS : GR_A_PACKED; }

/* What a tile of these columns and of the chunk at k is made of, as lines to ask for while the one before is multiplied. */
static gr_walk walk_of(const gr_cpu_term *t, int64_t col, int64_t cols, int64_t k)
{
  const gr_dtype_info *d = gr_dtype_get(t->dtype);
  if (!t->w || GR_LANES < 16 || cols <= 0) return (gr_walk){ 0 };
  if (t->across) {
    const char *w = weight_at(t, k, col), *last = weight_at(t, k, col + cols - 1) + d->block_bytes;
    return (gr_walk){
      .w = w, .step = t->w_row, .rows = gr_min(t->chunk, t->depth - k), .lines = (last - w + GR_LINE - 1) / GR_LINE + (d->block_elems > 1)
    };
  }
  if (k > 0 || cols * t->w_row > AHEAD_BYTES) return (gr_walk){ 0 }; /* asked for with the first chunk; or more than a cache can keep */
  return (gr_walk){ .w = weight_at(t, col, 0), .step = GR_LINE, .rows = gr_ceil_div(cols * t->w_row, GR_LINE), .lines = 1 };
}

/* One block of rows through one tile, on top of base (NULL: nothing). */
static void multiply(const gr_cpu_product *p, const gr_cpu_term *t, int64_t col, int64_t cols, int64_t block, int64_t k, const float *tile,
                     const target *to, const float *base, int64_t base_row, gr_walk *walk)
{
  const int64_t f = sizeof(float), first = gr_block_begin(p->rows, p->blocks, block), deep = gr_words(t, gr_min(t->chunk, t->depth - k));
  gr_micro_block m = { .b = tile,
                       .b_step = GR_COLS,
                       .b_strip = GR_COLS * deep,
                       .c = target_at(to, first),
                       .c_row = to->row,
                       .base = base,
                       .base_row = base_row,
                       .rows = gr_block_begin(p->rows, p->blocks, block + 1) - first,
                       .cols = cols,
                       .steps = deep,
                       .walk = walk->w ? walk : NULL };
  if (t->w_read) {
    m.b = (const float *)(t->w + k * t->w_row) + col;
    m.b_step = t->w_row / f;
    m.b_strip = GR_COLS;
  }
  switch (t->x_read) {
  case GR_CPU_X_PACK:
    m.a = gr_packed_at(p, t, block, k);
    m.a_step = m.rows;
    micro_block(packed_layout(t), &m);
    break;
  case GR_CPU_X_BY_STEP:
    m.a = (const float *)(t->x + k * t->x_step) + first;
    m.a_step = t->x_step / f;
    micro_block(GR_A_PACKED, &m);
    break;
  case GR_CPU_X_BY_ROW:
    m.a = (const float *)(t->x + first * t->x_row) + k;
    m.a_step = t->x_row / f;
    micro_block(GR_A_BY_ROW, &m);
    break;
  }
}

/* Results that are not kept stand in the thread's scratch: all rows of the tile, or, when one chunk finishes them, a block at a time. */
static target target_of(const gr_cpu_product *p, int64_t col, float *scratch)
{
  if (p->y) return (target){ p->y + col, p->y_row, 0 };
  return (target){ scratch + p->thread_floats - p->widest * p->rows, p->widest, 0 };
}

/* What is asked for while the tile at (col, k) is multiplied. Across rows only what is read where it stands: of many tokens it came too
 * early, and what it pushed out of the L2 was the tile. */
static gr_walk ahead_of(const gr_cpu_term *t, int64_t col, int64_t cols, int64_t end, int64_t k, int64_t deep)
{
  if (t->w_read && k + deep < t->depth) return walk_of(t, col, cols, k + deep);
  if (t->w_read || (!t->across && k + deep >= t->depth)) return walk_of(t, col + cols, gr_min(cols, end - col - cols), 0);
  return (gr_walk){ 0 };
}

/* Columns [col, col + cols), at most a tile's, of the blocks [block, last) of rows; up to `end` others follow. */
static void one_tile(const gr_cpu_product *p, int64_t col, int64_t cols, int64_t end, int64_t block, int64_t last, float *tile)
{
  target to = target_of(p, col, tile);
  bool at_once = !p->y && p->terms == 1 && p->term[0].depth <= p->term[0].chunk;
  for (const gr_cpu_term *t = p->term, *past = p->term + (p->beside ? 1 : p->terms); t < past; t++) {
    int64_t k = 0;
    do { /* a contraction over nothing still gives base, or zeros */
      int64_t deep = gr_min(t->chunk, t->depth - k);
      bool begun = (k > 0 && !GR_MUTANT(matmul_chunk_overwrites)) || t > p->term, ends = k + deep >= t->depth;
      const gr_cpu_term *second = p->beside && ends ? &p->term[1] : NULL;
      gr_walk walk = ahead_of(t, col, cols, end, k, deep), none = { 0 };
      if (!t->w_read) make_tile(p, t, col, cols, k, deep, tile);
      if (second && !second->w_read) make_tile(p, second, col, cols, 0, second->depth, tile + p->beside);
      for (int64_t b = block; b < last; b++) {
        int64_t first = gr_block_begin(p->rows, p->blocks, b), rows = gr_block_begin(p->rows, p->blocks, b + 1) - first;
        if (at_once) to.first = first;
        float *z = target_at(&to, first);
        const float *base = begun ? z : p->base ? p->base + first * p->base_row + col : NULL;
        multiply(p, t, col, cols, b, k, tile, &to, base, begun ? to.row : p->base_row, &walk);
        if (second) multiply(p, second, col, cols, b, 0, tile + p->beside, &to, z, to.row, &none);
        if (ends && t + 1 == past && p->finish) p->finish(p, first, rows, col, cols, z, to.row);
      }
      k += deep;
    } while (k < t->depth);
  }
}

/* Columns [col, end) of the blocks [block, last) of rows. */
void GR_ISA_FN(panel)(const gr_cpu_product *p, int64_t col, int64_t end, int64_t block, int64_t last, float *scratch)
{
  if (p->thin) col = GR_ISA_FN(thin)(p, col, end);
  for (int64_t wide; col < end; col += wide) {
    wide = gr_min(p->widest, end - col);
    one_tile(p, col, wide, end, block, last, scratch);
  }
}

/* ---- groups ---- */

/* What the tile after the one at (col, k) is made of: the next columns, the next chunk, or the first tile of the job that follows. */
static gr_walk next_tile(const gr_cpu_product *p, int64_t first, int64_t col, int64_t end, int64_t k)
{
  gr_cpu_term t = p->term[0];
  int64_t from = col + p->widest;
  if (from >= end) from = first, k += t.chunk;
  if (k >= t.depth) t.w = p->then, from = p->then_from, end = p->then_to, k = 0;
  return walk_of(&t, from, gr_min(p->widest, end - from), k);
}

static int64_t group_blocks(const gr_cpu_product *p, const gr_cpu_term *t)
{
  return gr_ceil_div(p->rows, t->x_read == GR_CPU_X_BY_ROW ? GR_ROWS_AT : GR_ROWS);
}

/* Rows of the chunk at k, where neither gr_cpu_group_pack has packed them nor are they read where they stand. */
static void pack_group(const gr_cpu_product *p, const gr_cpu_term *t, int64_t k, int64_t deep, float *packed)
{
  const int64_t blocks = group_blocks(p, t), steps = gr_words(t, deep);
  for (int64_t b = 0; b < blocks && !t->packed && t->x_read != GR_CPU_X_BY_ROW; b++) {
    int64_t first = gr_block_begin(p->rows, blocks, b);
    pack_chunk(t, first, gr_block_begin(p->rows, blocks, b + 1) - first, k, deep, packed + first * steps + b * GR_CPU_SPARE);
  }
}

/* Block b of rows, of `blocks`, through a tile of columns from col. packed: the rows of the chunk at k, when this job packed them. */
static void multiply_group(const gr_cpu_product *p, const gr_cpu_term *t, int64_t blocks, int64_t b, int64_t k, const float *packed,
                           gr_micro_block *m)
{
  int64_t first = gr_block_begin(p->rows, blocks, b);
  m->rows = m->a_step = gr_block_begin(p->rows, blocks, b + 1) - first;
  m->c_at = p->y_at + first;
  if (t->x_read == GR_CPU_X_BY_ROW) {
    m->a = (const float *)(t->x + k * (int64_t)sizeof(float));
    m->a_at = t->x_at + first;
    for (int64_t r = first + m->rows; r < gr_min(first + m->rows + GR_ROWS_AT, p->rows); r++) /* no processor foresees where rows begin */
      for (int i = 0; i < 4 * GR_LINE; i += GR_LINE) __builtin_prefetch((const char *)m->a + t->x_at[r] + i);
    micro_block(GR_A_AT, m);
    return;
  }
  m->a = t->packed ? gr_packed_at(p, t, b, k) : packed + first * m->steps + b * GR_CPU_SPARE;
  micro_block(packed_layout(t), m);
}

/* Columns [col, col + cols) of the chunk at k: on top of what stands in y, or with `fresh` of nothing. */
static void group_tile(const gr_cpu_product *p, const gr_cpu_term *t, int64_t col, int64_t cols, int64_t k, bool fresh, float *tile,
                       const float *packed, gr_walk walk)
{
  const int64_t deep = gr_min(t->chunk, t->depth - k), steps = gr_words(t, deep), blocks = group_blocks(p, t);
  make_tile(p, t, GR_MUTANT(matmul_id_tile_0) ? 0 : col, cols, k, deep, tile);
  gr_micro_block m = { .b = tile,
                       .b_step = GR_COLS,
                       .b_strip = GR_COLS * steps,
                       .c = p->y + col,
                       .base = fresh ? NULL : p->y + col,
                       .cols = cols,
                       .steps = steps,
                       .walk = walk.w ? &walk : NULL };
  for (int64_t b = 0; b < blocks; b++) multiply_group(p, t, blocks, b, k, packed, &m);
}

/* A second term is one chunk. Its tile takes the place of the first one's when the last chunk of that has made a tile of columns, which
 * still stands in a cache. */
void GR_ISA_FN(group)(const gr_cpu_product *p, int64_t col, int64_t end, float *scratch)
{
  const gr_cpu_term *t = p->term, *second = p->terms > 1 ? &p->term[1] : NULL;
  float *packed = scratch + gr_group_tile(p), *packed2 = packed + gr_group_rows(t);
  gr_cpu_product few;
  if (gr_cpu_is_thin(p)) {
    if (t->words) {
      few = *p, p = &few, t = few.term, second = second ? &few.term[1] : NULL;
      few.blocks = 1;
      few.term[0].packed = packed;
      GR_ISA_FN(pack)(p, t, 0);
    }
    col = GR_ISA_FN(thin)(p, col, end);
  }
  if (col == end) return;
  if (second) pack_group(p, second, 0, second->depth, packed2);
  int64_t k = 0;
  do { /* a contraction over nothing still gives zeros */
    int64_t deep = gr_min(t->chunk, t->depth - k);
    pack_group(p, t, k, deep, packed);
    for (int64_t c = col, wide; c < end; c += wide) {
      wide = gr_min(p->widest, end - c);
      group_tile(p, t, c, wide, k, k == 0 && !p->add, scratch, packed, next_tile(p, col, c, end, k));
      if (second && k + deep >= t->depth) group_tile(p, second, c, wide, 0, false, scratch, packed2, (gr_walk){ 0 });
    }
    k += deep;
  } while (k < t->depth);
}
