#include "backend/cpu/product.h"

#include <stdatomic.h>

#include "backend/cpu/isa.h"
#include "base/mutant.h"
#include "ops/fused.h"

enum {
  CHUNK = 1024, /* of the contraction, at most; multiples of CHUNK_UNIT, which suits every block format */
  DEEP = 2560,  /* the same along rows of W, where a tile of a few strips is enough: fewer chunks are fewer passes over y */
  CHUNK_UNIT = 256,
  TILE_FLOATS = 160 * 1024, /* 640 KiB of an L2 of 1 or 2 MiB */
  TOKENS = 128,             /* chunk of a contraction over tokens: rows of x and W that stand far apart, one page or more each */
  UNIT = 32,                /* columns of a strip, in the widest set */
  FEW_COLS = 64,            /* for which x is not packed */
  FEW_ROWS = 32,            /* for which floats are not copied to tiles */
  PAGE = 4096,              /* rows this far apart share the sets of an L1 cache: read side by side they push each other out */
  FEW_THREADS = 2,          /* which are taken to be equally fast */
  BESIDE = 64,              /* depth of a second term whose tile stands beside the first's: the rank of an adapter */
  GROUPS = 8,               /* of a panel's rows, at most, for more threads */
  JOBS = 4,                 /* panels a thread, so that one that loses its core for a while does not hold up the others */
  DECODING = 25,            /* tokens through a column of a tile that cost as much as decoding it, */
  READING = 8,              /* and columns as much as reading x for one more panel: roughly */
  SMALL = 100000            /* multiply-adds that are not worth waking threads for */
};

_Static_assert((int)CHUNK >= (int)GR_FUSED_DEPTH, "a fused sum is taken in one piece");

static int64_t chunk_of(int64_t depth, int64_t most, bool words)
{
  int64_t pieces = gr_ceil_div(depth, words ? 2 * most : most);
  return pieces <= 1 ? gr_max(depth, 1) : gr_ceil_div(gr_ceil_div(depth, pieces), CHUNK_UNIT) * CHUNK_UNIT;
}

static int64_t round_up(int64_t n, int64_t unit) { return gr_ceil_div(n, unit) * unit; }

static int64_t packed_floats(const gr_cpu_term *t, int64_t rows, int64_t blocks)
{
  return round_up(rows * gr_words(t, t->depth) + blocks * GR_CPU_SPARE * gr_ceil_div(t->depth, t->chunk), 16);
}

/* Columns of the widest tile. */
static int64_t tile_cols(int64_t cols, int64_t chunk, int64_t unit)
{
  return gr_min(gr_max(TILE_FLOATS / chunk / unit, 1) * unit, round_up(cols, unit));
}

/* For the smallest block of rows and the largest unit, and floats rather than words, so that it holds for every instruction set and type;
 * and monotone, though a longer contraction may be cut into shorter chunks. */
size_t gr_cpu_product_scratch(int64_t rows, int64_t cols, int64_t depth, int64_t depth2, bool kept, int threads)
{
  const int64_t most = TILE_FLOATS > CHUNK * CHUNK_UNIT ? TILE_FLOATS : CHUNK * CHUNK_UNIT;
  int64_t deepest = gr_min(gr_max(gr_max(depth, depth2), 1), DEEP), wide = round_up(cols, CHUNK_UNIT);
  int64_t thread = gr_min(most, wide * deepest) + gr_min(TILE_FLOATS, wide * gr_min(depth2, BESIDE)) + (kept ? 0 : GR_CPU_SLICE * rows);
  int64_t spare = gr_ceil_div(rows, 4) * GR_CPU_SPARE;
  int64_t turned = round_up(rows * gr_min(cols, FEW_ROWS), 16);
  int64_t packed = turned + rows * (depth + depth2) + spare * (gr_ceil_div(depth, CHUNK / 2) + gr_ceil_div(depth2, CHUNK / 2) + 2) + 32;
  return (size_t)(round_up(packed, 16) + round_up(thread, 16) * threads) * sizeof(float);
}

/* The gradient of a factor: rows of x and rows of W are tokens. */
static bool over_tokens(const gr_cpu_term *t)
{
  const int64_t f = sizeof(float);
  return t->across && t->x_row == f && t->x_step != f && t->x_step % f == 0;
}

/* Whether tiles may be as narrow as strips: no block of W and no slice asks for more columns. */
static bool narrow(const gr_cpu_product *p)
{
  bool across = false;
  for (int i = 0; i < p->terms; i++) across = across || p->term[i].across;
  return !across && !p->slice;
}

/* How operands are read changes no bit. In bf16 they are rounded on the way, and so never read where they stand. */
static void choose_reads(const gr_cpu_product *p, gr_cpu_term *t)
{
  const int64_t f = sizeof(float);
  t->w_read = false;
  t->x_read = GR_CPU_X_PACK;
  t->chunk = over_tokens(t) ? gr_max(1, gr_min(t->depth, TOKENS)) : chunk_of(t->depth, narrow(p) ? DEEP : CHUNK, t->words);
  if (t->bf16) return;
  t->x_read = over_tokens(t) ? GR_CPU_X_BY_STEP : GR_CPU_X_PACK;
  if (!over_tokens(t) && t->x_step == f && t->x_row % f == 0 && ((t->x_row % PAGE && p->cols <= FEW_COLS) || p->thin))
    t->x_read = GR_CPU_X_BY_ROW;
  t->w_read = t->across && t->dtype == GR_F32 && t->w_step == f && t->w_row % f == 0 && p->cols % GR_CPU_SPARE == 0 && p->rows <= FEW_ROWS;
}

static void plan_terms(gr_cpu_product *p, float **scratch)
{
  p->unit = p->slice ? p->slice : UNIT;
  p->widest = p->slice ? p->slice : p->y ? INT64_MAX : GR_CPU_SLICE;
  for (gr_cpu_term *t = p->term; t < p->term + p->terms; t++) {
    choose_reads(p, t);
    t->packed = *scratch;
    if (t->x_read == GR_CPU_X_PACK) *scratch += packed_floats(t, p->rows, p->blocks);
    if (t->across && !t->w_read) p->unit = gr_max(p->unit, p->isa->across_unit(t->dtype));
  }
  for (gr_cpu_term *t = p->term; t < p->term + p->terms; t++)
    p->widest = gr_min(p->widest, tile_cols(p->cols, gr_words(t, t->chunk), p->unit));
}

/* What a job of so many columns and rows costs, in columns that are not decoded, of a token. */
static double job_cost(double cols, double rows) { return cols * (rows + DECODING) + READING * rows; }

/* As many panels and groups as take the least time, by the slowest thread's share of columns and tokens; of about equal times the finest.
 */
static void deal_few(gr_cpu_product *p, int64_t units, int64_t threads, int64_t least, int64_t most)
{
  double best = 0;
  p->panels = 0;
  for (int64_t panels = least; panels <= most; panels++) {
    int64_t groups = panels >= threads ? 1 : gr_min(gr_ceil_div(threads, panels), p->blocks);
    double cost = job_cost((double)(gr_ceil_div(units, panels) * p->unit), (double)p->rows / (double)groups);
    double time = (double)gr_ceil_div(panels * groups, threads) * cost;
    if (p->panels > 0 && time > 1.02 * best) continue;
    best = p->panels > 0 && best < time ? best : time;
    p->panels = panels;
    p->groups = groups;
    p->split = groups > 1 ? panels : 0;
  }
}

/* Many threads are not equally fast: a core may be two processors of theirs, or of another machine's. So equal shares are not enough, and
 * jobs must be small when the last are taken: all of them, or those of as many panels as there are threads, which come last because threads
 * take jobs from both ends. Time is all work over all threads, and half of one of those; or that of the largest job for a thread of half
 * the speed. */
static void deal_many(gr_cpu_product *p, int64_t units, int64_t threads, int64_t least, int64_t most)
{
  double best = 0;
  p->panels = 0;
  for (int64_t wide = gr_ceil_div(units, least); wide > 0; wide--) {
    int64_t panels = gr_ceil_div(units, wide);
    double cols = (double)(wide * p->unit), rows = (double)p->rows, whole = job_cost(cols, rows);
    const int64_t limit = gr_min(gr_max(GROUPS, gr_ceil_div(2 * threads, panels)), p->blocks);
    for (int64_t groups = 1; panels <= most && groups <= limit; groups++) {
      double part = job_cost(cols, rows / (double)groups), parts = part * (double)groups;
      for (int some = 0; some < 2; some++) {
        int64_t split = groups == 1 ? 0 : some ? gr_min(panels, threads) : panels;
        double all = (double)(panels - split) * whole + (double)split * parts;
        double time = all * (double)units / (double)(panels * wide) / (double)threads + part / 2;
        const double slowest = 2 * (split < panels ? whole : part);
        if (time < slowest) time = slowest;
        if (p->panels > 0 && time >= best) continue;
        best = time;
        p->panels = panels;
        p->groups = groups;
        p->split = split;
      }
    }
  }
}

static void deal(gr_cpu_product *p, int64_t units, int64_t threads)
{
  int64_t least = gr_min(gr_max(gr_ceil_div(units * p->unit, p->widest), 1), units);
  int64_t most = threads == 1 ? least : gr_min(gr_max(round_up(least, threads), threads * JOBS), units);
  (threads > FEW_THREADS ? deal_many : deal_few)(p, units, threads, least, most);
}

static size_t jobs_of(const gr_cpu_product *p) { return (size_t)(p->panels + p->split * (p->groups - 1)); }

static bool is_thin(gr_cpu_product *p, const gr_cpu_isa *isa)
{
  for (int i = 0; i < p->terms; i++) p->term[i].words = p->term[i].bf16 && isa->words;
  return gr_cpu_is_thin(p);
}

static void lay_out(gr_cpu_product *p, const gr_cpu_isa *isa, float *scratch)
{
  int64_t deepest = 0;
  p->isa = isa;
  p->thin = is_thin(p, isa);
  p->blocks = gr_ceil_div(p->rows, isa->block_rows);
  plan_terms(p, &scratch);
  for (const gr_cpu_term *t = p->term; t < p->term + p->terms; t++) deepest = gr_max(deepest, gr_words(t, t->chunk));
  const gr_cpu_term *second = &p->term[1];
  p->beside = p->terms > 1 && second->depth <= BESIDE ? round_up(p->widest * gr_words(p->term, p->term->chunk), 16) : 0;
  int64_t tiles = p->beside ? p->beside + p->widest * gr_words(second, second->chunk) : p->widest * deepest;
  p->thread_floats = round_up(tiles + (p->y ? 0 : p->widest * p->rows), 16);
  p->threads = scratch;
}

static double work_of(const gr_cpu_product *p)
{
  double work = 0;
  for (int i = 0; i < p->terms; i++) work += (double)p->rows * (double)p->cols * (double)p->term[i].depth;
  return work;
}

/* How work is dealt changes no bit either. */
static void plan(gr_cpu_product *p, const gr_cpu_isa *isa, int threads, float *scratch)
{
  lay_out(p, isa, scratch);
  deal(p, gr_ceil_div(p->cols, p->unit), work_of(p) < SMALL ? 1 : threads);
}

static void pack_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const gr_cpu_product *p = ctx;
  int64_t first = gr_block_begin(p->rows, p->blocks, (int64_t)job);
  if (p->prepare) p->prepare(p, first, gr_block_begin(p->rows, p->blocks, (int64_t)job + 1) - first);
  for (int i = 0; i < p->terms; i++)
    if (p->term[i].x_read == GR_CPU_X_PACK) p->isa->pack(p, &p->term[i], (int64_t)job);
}

static void panel_job(void *ctx, size_t job, int thread)
{
  const gr_cpu_product *p = ctx;
  int64_t units = gr_ceil_div(p->cols, p->unit), panel = (int64_t)job, group = 0, groups = 1;
  const int64_t before = (p->panels - p->split) / 2,
                parts = p->split * p->groups; /* jobs of whole panels, then of parts, then of whole ones */
  if (panel >= before + parts) panel -= parts - p->split;
  else if (panel >= before) groups = p->groups, group = (panel - before) % groups, panel = before + (panel - before) / groups;
  int64_t from = gr_block_begin(units, p->panels, panel) * p->unit;
  int64_t to = gr_min(gr_block_begin(units, p->panels, panel + 1) * p->unit, p->cols);
  p->isa->panel(p, from, to, gr_block_begin(p->blocks, groups, group), gr_block_begin(p->blocks, groups, group + 1),
                p->threads + p->thread_floats * thread);
}

static void run(gr_cpu_product *p, const gr_cpu_isa *isa, gr_pool *pool, float *scratch)
{
  plan(p, isa, gr_pool_threads(pool), scratch);
  bool small = jobs_of(p) == 1, packs = p->prepare != NULL;
  for (int i = 0; i < p->terms; i++) packs = packs || p->term[i].x_read == GR_CPU_X_PACK;
  if (packs) gr_pool_run(small || p->thin ? NULL : pool, (size_t)p->blocks, pack_job, p);
  gr_pool_run(pool, jobs_of(p), panel_job, p);
}

/* A contraction over tokens with few columns and many rows (the gradient of B) is computed turned, few rows and many columns, where one
 * load of the wide operand serves all of the narrow one; then it is transposed. The same products in the same order: the same bits. */
static bool better_turned(const gr_cpu_product *p)
{
  const gr_cpu_term *t = p->term;
  const int64_t f = sizeof(float);
  return p->terms == 1 && p->y && !p->base && !p->finish && over_tokens(t) && t->dtype == GR_F32 && t->w_step == f && t->w_row % f == 0 &&
         p->cols <= FEW_ROWS && p->cols % GR_CPU_SPARE == 0 && p->rows % GR_CPU_SPARE == 0 && p->rows >= 4 * p->cols;
}

typedef struct turned {
  const gr_cpu_isa *isa;
  const gr_cpu_product *p;
  const float *z;
} turned;

enum { TURN_ROWS = 64 };

static void turn_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  const turned *w = ctx;
  int64_t first = (int64_t)job * TURN_ROWS, n = gr_min(TURN_ROWS, w->p->rows - first);
  w->isa->transpose(w->p->y + first * w->p->y_row, w->p->y_row, w->z + first, w->p->rows, w->p->cols, n);
}

static void run_turned(const gr_cpu_product *p, const gr_cpu_isa *isa, gr_pool *pool, float *scratch)
{
  const gr_cpu_term *t = p->term;
  const int64_t f = sizeof(float);
  gr_cpu_term wide = { .w = t->x,
                       .w_row = t->x_step,
                       .w_step = f,
                       .dtype = GR_F32,
                       .across = true,
                       .x = t->w,
                       .x_row = f,
                       .x_step = t->w_row,
                       .depth = t->depth };
  gr_cpu_product q = { .term = { wide }, .terms = 1, .rows = p->cols, .cols = p->rows, .y = scratch, .y_row = p->rows };
  run(&q, isa, pool, scratch + p->rows * p->cols);
  turned w = { isa, p, scratch };
  gr_pool_run(pool, (size_t)gr_ceil_div(p->rows, TURN_ROWS), turn_job, &w);
}

/* ---- thin linears ---- */

/* Floats. */
static int64_t low_scratch(const gr_cpu_product *low, int threads)
{
  return round_up((int64_t)(gr_cpu_product_scratch(low->rows, low->cols, low->term[0].depth, 0, true, threads) / sizeof(float)), 16);
}

/* Jobs are what adapters make of x, then columns of all linears in equal parts: they are counted in units, one linear's behind the
 * other's. */
typedef struct thin_run {
  gr_cpu_linear *l;
  int n, lows;
  int64_t units, parts;
  bool forward;
  atomic_int low_left;
} thin_run;

static void low_job(thin_run *w, int64_t job, int thread)
{
  const gr_cpu_linear *l = w->l;
  while (!l->lowers || job-- > 0) l++;
  const gr_cpu_product *p = &l->low;
  p->isa->panel(p, 0, p->cols, 0, p->blocks, p->threads + p->thread_floats * thread);
  for (int64_t r = 0; r < p->rows; r++) p->isa->scale(p->y + r * p->y_row, p->y + r * p->y_row, l->scale, p->cols);
  atomic_fetch_sub_explicit(&w->low_left, 1, memory_order_release);
}

/* Those of units [begin, end) that are columns of p. */
static void columns_of(const gr_cpu_product *p, int64_t begin, int64_t end, int thread)
{
  const int64_t from = gr_max(begin, 0) * UNIT, to = gr_min(end * UNIT, p->cols);
  if (from < to) p->isa->panel(p, from, to, 0, p->blocks, p->threads + p->thread_floats * thread);
}

/* What jobs do with the columns of their units. */
typedef enum thin_step { WHOLE, BASE, UP } thin_step;

static void take_units(const thin_run *w, int64_t begin, int64_t end, thin_step step, int thread)
{
  for (const gr_cpu_linear *l = w->l; l < w->l + w->n; l++) {
    const int64_t units = gr_ceil_div(l->p.cols, UNIT);
    if (step == WHOLE || (step == BASE && !l->lowers)) columns_of(&l->p, begin, end, thread);
    else if (l->lowers) columns_of(step == BASE ? &l->base : &l->up, begin, end, thread);
    begin -= units, end -= units;
  }
}

/* What adapters make of x is waited for when the rest is done, if it must be: its jobs were claimed first, by a thread that takes from the
 * front. */
static void thin_job(void *ctx, size_t job, int thread)
{
  thin_run *w = ctx;
  if ((int64_t)job < w->lows) {
    low_job(w, (int64_t)job, thread);
    return;
  }
  int64_t part = (int64_t)job - w->lows;
  if (w->forward) part = gr_forward(part, w->parts);
  const int64_t begin = gr_block_begin(w->units, w->parts, part), end = gr_block_begin(w->units, w->parts, part + 1);
  if (atomic_load_explicit(&w->low_left, memory_order_acquire) == 0) {
    take_units(w, begin, end, WHOLE, thread);
    return;
  }
  take_units(w, begin, end, BASE, thread);
  for (int turn = 0; atomic_load_explicit(&w->low_left, memory_order_acquire) > 0; turn++) gr_pool_relax(turn);
  take_units(w, begin, end, UP, thread);
}

static void lay_out_linear(gr_cpu_linear *l, const gr_cpu_isa *isa, int threads, float *scratch)
{
  gr_cpu_product *p = &l->p, *low = &l->low, *up = &l->up;
  if (GR_MUTANT(matmul_lora_no_adapter)) l->lowers = false;
  if (GR_MUTANT(matmul_lora_no_scale)) l->scale = 1;
  if (l->lowers) {
    lay_out(low, isa, scratch);
    scratch += low_scratch(low, threads);
  } else {
    p->terms = 1;
  }
  lay_out(p, isa, scratch);
  if (l->lowers) {
    l->base = *up = *p;
    l->base.terms = up->terms = 1;
    l->base.beside = up->beside = 0;
    up->term[0] = p->term[1];
    up->base = p->y, up->base_row = p->y_row;
  }
  for (int64_t b = 0; b < p->blocks && p->term[0].x_read == GR_CPU_X_PACK; b++) isa->pack(p, &p->term[0], b);
}

static void run_thin(gr_cpu_linear *l, int n, const gr_cpu_isa *isa, gr_pool *pool, float *scratch)
{
  thin_run w = { .l = l, .n = n };
  double work = 0;
  for (int i = 0; i < n; scratch += l[i++].scratch / sizeof(float)) {
    work += work_of(&l[i].p) + (l[i].lowers ? work_of(&l[i].low) : 0);
    lay_out_linear(&l[i], isa, gr_pool_threads(pool), scratch);
    w.units += gr_ceil_div(l[i].p.cols, UNIT);
    w.lows += l[i].lowers;
  }
  if (work < SMALL) pool = NULL;
  const int threads = gr_pool_threads(pool);
  w.forward = threads > 1;
  w.parts = threads > 1 ? gr_min(w.units, threads * JOBS) : 1;
  atomic_init(&w.low_left, w.lows);
  gr_pool_run(pool, (size_t)(w.lows + w.parts), thin_job, &w);
}

void gr_cpu_product_run(gr_cpu_product *p, const gr_cpu_isa *isa, gr_pool *pool, void *scratch)
{
  if (p->rows <= 0 || p->cols <= 0) return;
  if (is_thin(p, isa) && p->terms == 1 && !p->prepare) {
    gr_cpu_linear l = { .p = *p };
    run_thin(&l, 1, isa, pool, scratch);
  } else if (better_turned(p)) run_turned(p, isa, pool, scratch);
  else run(p, isa, pool, scratch);
}

void gr_cpu_linears_run(gr_cpu_linear *l, int n, const gr_cpu_isa *isa, gr_pool *pool, void *scratch)
{
  bool thin = true;
  for (int i = 0; i < n; i++)
    thin = thin && l[i].p.rows > 0 && l[i].p.cols > 0 && is_thin(&l[i].p, isa) && (!l[i].lowers || is_thin(&l[i].low, isa));
  if (thin) {
    run_thin(l, n, isa, pool, scratch);
    return;
  }
  for (int i = 0; i < n; i++)
    if (l[i].lowers) gr_cpu_product_run_lora(&l[i].p, &l[i].low, l[i].scale, isa, pool, scratch);
    else gr_cpu_product_run(&l[i].p, isa, pool, scratch);
}

/* ---- a linear and its adapter ---- */

typedef struct lora {
  const gr_cpu_product *p, *low;
  float scale;
  int64_t jobs;
} lora;

static void lower_job(void *ctx, size_t job, int thread)
{
  const lora *l = ctx;
  const gr_cpu_product *p = l->p, *low = l->low;
  int64_t begin = gr_block_begin(p->blocks, l->jobs, (int64_t)job), end = gr_block_begin(p->blocks, l->jobs, (int64_t)job + 1);
  for (int64_t b = begin; b < end; b++) {
    if (p->term[0].x_read == GR_CPU_X_PACK) p->isa->pack(p, &p->term[0], b);
    if (low->term[0].x_read == GR_CPU_X_PACK) p->isa->pack(low, &low->term[0], b);
  }
  if (job > 0 && GR_MUTANT(matmul_lora_first_rows)) return;
  p->isa->panel(low, 0, low->cols, begin, end, low->threads + low->thread_floats * thread);
  for (int64_t r = gr_block_begin(p->rows, p->blocks, begin); r < gr_block_begin(p->rows, p->blocks, end); r++)
    p->isa->scale(low->y + r * low->y_row, low->y + r * low->y_row, l->scale, low->cols);
  for (int64_t b = begin; b < end && p->terms > 1; b++)
    if (p->term[1].x_read == GR_CPU_X_PACK) p->isa->pack(p, &p->term[1], b);
}

void gr_cpu_product_run_lora(gr_cpu_product *p, gr_cpu_product *low, float scale, const gr_cpu_isa *isa, gr_pool *pool, void *scratch)
{
  if (p->rows <= 0 || p->cols <= 0) return;
  int threads = gr_pool_threads(pool);
  int64_t lows = low_scratch(low, threads);
  if (GR_MUTANT(matmul_lora_no_scale)) scale = 1;
  if (GR_MUTANT(matmul_lora_no_adapter)) p->terms = 1;
  plan(low, isa, threads, scratch);
  plan(p, isa, threads, (float *)scratch + lows);
  lora l = { p, low, scale, gr_min(p->blocks, threads * (low->cols <= FEW_COLS ? JOBS : 1)) };
  bool small = (double)p->rows * (double)(p->cols + low->cols) * (double)low->term[0].depth < SMALL;
  gr_pool_run(small ? NULL : pool, (size_t)l.jobs, lower_job, &l);
  gr_pool_run(small ? NULL : pool, jobs_of(p), panel_job, p);
}

/* ---- groups ---- */

enum {
  BLOCK_ROWS = 4,    /* at least, of all sets */
  GROUP_COLS = 1024, /* of a tile, at most */
  GROUP_FEW = 32     /* columns for which rows are not packed */
};

/* A tile, the packed rows of one chunk, and those of a second term. */
int64_t gr_cpu_group_floats(int64_t cols, int64_t depth, int64_t depth2)
{
  int64_t deep = gr_min(gr_max(depth, 1), DEEP), deepest = gr_max(deep, depth2), wide = gr_min(round_up(cols, CHUNK_UNIT), GROUP_COLS);
  int64_t tile = gr_min(gr_max(TILE_FLOATS, CHUNK * CHUNK_UNIT), wide * deepest), spare = GR_CPU_PART / BLOCK_ROWS * GR_CPU_SPARE;
  return round_up(tile, 16) + round_up(GR_CPU_PART * deep + spare, 16) + (depth2 ? round_up(GR_CPU_PART * depth2 + spare, 16) : 0);
}

/* As floats, for the smallest blocks and the shortest chunks. */
int64_t gr_cpu_group_packed(int64_t rows, int64_t parts, int64_t depth)
{
  int64_t blocks = gr_ceil_div(rows, BLOCK_ROWS) + 2 * parts, chunks = gr_ceil_div(depth, CHUNK / 2) + 1;
  return round_up(rows * depth + blocks * chunks * GR_CPU_SPARE + 16 * parts, 16);
}

void gr_cpu_group_pack(gr_cpu_product *p)
{
  p->blocks = gr_ceil_div(p->rows, p->isa->block_rows);
  for (int i = 0; i < p->terms; i++)
    for (int64_t b = 0; b < p->blocks; b++) p->isa->pack(p, &p->term[i], b);
}

void gr_cpu_group_plan(gr_cpu_product *p, const gr_cpu_isa *isa)
{
  p->isa = isa;
  p->unit = UNIT;
  p->widest = GROUP_COLS;
  for (gr_cpu_term *t = p->term; t < p->term + p->terms; t++) {
    if (t->across) p->unit = gr_max(p->unit, isa->across_unit(t->dtype));
    t->words = t->bf16 && isa->words;
    t->chunk = chunk_of(t->depth, narrow(p) ? DEEP : CHUNK, t->words);
    t->x_read = !t->bf16 && t->x_step == sizeof(float) && p->cols <= GROUP_FEW ? GR_CPU_X_BY_ROW : GR_CPU_X_PACK;
  }
  for (gr_cpu_term *t = p->term; t < p->term + p->terms; t++)
    p->widest = gr_min(p->widest, tile_cols(p->cols, gr_words(t, t->chunk), p->unit));
}
