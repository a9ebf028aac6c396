#include "backend/cpu/product.h"

#include "backend/cpu/isa.h"

enum {
  CHUNK = 1024, /* of the contraction, at most; multiples of CHUNK_UNIT, which suits every block format */
  CHUNK_UNIT = 256,
  TILE_FLOATS = 160 * 1024, /* 640 KiB of an L2 of 1 or 2 MiB */
  TOKENS = 128,             /* chunk of a contraction over tokens: rows of x and W that stand far apart, one page or more each */
  UNIT = 32,                /* columns of a strip, in the widest set */
  FEW_COLS = 64,            /* for which x is not packed */
  FEW_ROWS = 32,            /* for which floats are not copied to tiles */
  PAGE = 4096,              /* rows this far apart share the sets of an L1 cache: read side by side they push each other out */
  SMALL = 100000            /* multiply-adds that are not worth waking threads for */
};

static int64_t chunk_of(int64_t depth)
{
  int64_t pieces = gr_ceil_div(depth, CHUNK);
  return pieces <= 1 ? gr_max(depth, 1) : gr_ceil_div(gr_ceil_div(depth, pieces), CHUNK_UNIT) * CHUNK_UNIT;
}

static int64_t packed_floats(int64_t rows, int64_t depth, int64_t blocks)
{
  return rows * depth + blocks * GR_CPU_SPARE * gr_ceil_div(depth, chunk_of(depth));
}

/* Columns of the widest panel. */
static int64_t panel_cols(int64_t cols, int64_t chunk, int64_t unit)
{
  int64_t most = gr_max(TILE_FLOATS / chunk / unit, 1) * unit;
  return gr_min(most, gr_ceil_div(cols, unit) * unit);
}

static int64_t round_up(int64_t n) { return (n + 15) & ~(int64_t)15; }

/* For the smallest block of rows and the largest unit, so that it holds for every instruction set and type; and monotone, though a
 * longer contraction may be cut into shorter chunks. */
size_t gr_cpu_product_scratch(int64_t rows, int64_t cols, int64_t depth, int threads)
{
  int64_t most = TILE_FLOATS > CHUNK * CHUNK_UNIT ? TILE_FLOATS : CHUNK * CHUNK_UNIT;
  int64_t tile = gr_min(most, gr_ceil_div(cols, CHUNK_UNIT) * CHUNK_UNIT * gr_min(gr_max(depth, 1), CHUNK));
  int64_t packed = rows * depth + gr_ceil_div(rows, 4) * GR_CPU_SPARE * (gr_ceil_div(depth, CHUNK / 2) + 1);
  return (size_t)(round_up(packed) + round_up(tile) * threads) * sizeof(float);
}

/* How operands are read changes no bit. */
static void choose_reads(gr_cpu_product *p)
{
  const int64_t f = sizeof(float);
  bool over_tokens = p->across && p->x_row == f && p->x_step != f && p->x_step % f == 0 && !p->gather;
  p->chunk = over_tokens ? gr_max(1, gr_min(p->depth, TOKENS)) : chunk_of(p->depth);
  p->x_read = over_tokens ? GR_CPU_X_BY_STEP : GR_CPU_X_PACK;
  if (!over_tokens && p->x_step == f && p->x_row % f == 0 && p->x_row % PAGE && p->cols <= FEW_COLS && !p->gather)
    p->x_read = GR_CPU_X_BY_ROW;
  p->w_read = p->across && p->dtype == GR_F32 && p->w_step == f && p->w_row % f == 0 && p->cols % GR_CPU_SPARE == 0 && p->rows <= FEW_ROWS;
}

static void plan(gr_cpu_product *p, const gr_cpu_isa *isa, int threads, float *scratch)
{
  p->isa = isa;
  choose_reads(p);
  p->unit = p->across && !p->w_read ? gr_max(UNIT, gr_dtype_get(p->dtype)->block_elems) : UNIT;
  p->blocks = gr_ceil_div(p->rows, isa->block_rows);
  int64_t units = gr_ceil_div(p->cols, p->unit), widest = panel_cols(p->cols, p->chunk, p->unit);
  if (p->rows * p->cols * p->depth < SMALL) threads = 1;
  p->panels = gr_ceil_div(units * p->unit, widest);
  p->panels = gr_min(gr_ceil_div(p->panels, threads) * threads, units);
  p->groups = p->panels >= threads ? 1 : gr_min(gr_ceil_div(threads, p->panels), p->blocks);
  p->tile_floats = round_up(widest * p->chunk);
  p->packed = scratch;
  p->tiles = scratch + (p->x_read == GR_CPU_X_PACK ? round_up(packed_floats(p->rows, p->depth, p->blocks)) : 0);
}

static void pack_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const gr_cpu_product *p = ctx;
  p->isa->pack(p, (int64_t)job);
}

static void panel_job(void *ctx, size_t job, int thread)
{
  const gr_cpu_product *p = ctx;
  int64_t panel = (int64_t)job / p->groups, group = (int64_t)job % p->groups, units = gr_ceil_div(p->cols, p->unit);
  int64_t from = gr_block_begin(units, p->panels, panel) * p->unit, to = gr_block_begin(units, p->panels, panel + 1) * p->unit;
  p->isa->panel(p, from, gr_min(to, p->cols), gr_block_begin(p->blocks, p->groups, group), gr_block_begin(p->blocks, p->groups, group + 1),
                p->tiles + p->tile_floats * thread);
}

void gr_cpu_product_run(gr_cpu_product *p, const gr_cpu_isa *isa, gr_pool *pool, void *scratch)
{
  if (p->rows <= 0 || p->cols <= 0) return;
  plan(p, isa, gr_pool_threads(pool), scratch);
  bool small = p->panels * p->groups == 1;
  if (p->x_read == GR_CPU_X_PACK) gr_pool_run(small ? NULL : pool, (size_t)p->blocks, pack_job, p);
  gr_pool_run(pool, (size_t)(p->panels * p->groups), panel_job, p);
}
