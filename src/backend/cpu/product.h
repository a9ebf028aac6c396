/* The product engine: y[row, col] = base[row, col] + sum over k of x[row, k] * w(k, col), for a weight of any type and F32
 * activations x; or the sum of two such products. Both directions of a linear layer are this product:
 *
 *   matmul     y[n, M]  = X[n, K] W[M, K]^T    columns are rows of W, the contraction runs along them     (across = false)
 *   out_prod   dX[n, K] = G[n, M] W[M, K]      columns are W's, the contraction runs across its rows      (across = true)
 *
 * A tile is a piece of W, decoded once into the order the micro-kernel reads, small enough for the L2 cache; all rows of x pass
 * over it. x is packed first, in blocks of up to block_rows rows. Only the tile's builder knows the direction and the type.
 *
 * A thin product, of few rows along W, makes no tile: W is multiplied in the registers it is decoded in (kernels/thin.c).
 *
 * A term may be asked for in bf16: both operands are rounded to it, ties to even, when they are packed and decoded; sums are F32. Where the
 * set has an instruction for pairs of bf16, tiles and packed rows are words of two neighbours of the contraction; where it has none they
 * stay floats, and the rounding alone is done.
 *
 * Bits: an element is a chain of multiply-adds along k within a chunk, and chunk sums are added in order. Chunks follow from the
 * depth, the direction and the slice (and from whether the depth counts tokens) alone, so an element's bits depend on its row of x and its
 * column of W, and on nothing else: not on threads, on how many rows there are, where in a block a row stands, or how W is stored. */
#ifndef GR_CPU_PRODUCT_H
#define GR_CPU_PRODUCT_H
#include "backend/cpu/attention.h"
#include "base/pool.h"
#include "quant/quant.h"

struct gr_cpu_isa;

/* How x reaches the micro-kernel: packed first, or read where it stands because packing would cost more than it saves (few columns), or
 * because it already has the order of packed blocks (a gradient of a factor, whose contraction runs over tokens). */
typedef enum gr_cpu_x { GR_CPU_X_PACK, GR_CPU_X_BY_ROW, GR_CPU_X_BY_STEP } gr_cpu_x;

/* One product of the sum that y is: a weight and what it is multiplied with. */
typedef struct gr_cpu_term {
  const char *w;
  int64_t w_row, w_step; /* bytes between rows of W, and between elements of a row (matters for F32 only) */
  gr_dtype dtype;
  bool across;
  const char *x;
  int64_t x_row, x_step; /* bytes from x[row, k] to x[row + 1, k] and x[row, k + 1] */
  const int64_t *x_at;   /* groups: bytes from x to each row, in place of x_row */
  int64_t depth;
  bool bf16;
  /* Filled in by gr_cpu_product_run. */
  gr_cpu_x x_read;
  bool words;    /* bf16, two to a word */
  bool w_read;   /* W is read where it stands: floats, across, whole vectors */
  int64_t chunk; /* of the contraction */
  float *packed; /* groups: NULL where each job packs its own rows, or reads them where they stand */
} gr_cpu_term;

typedef struct gr_cpu_product gr_cpu_product;

/* Takes over a block of finished results, z[rows, cols] of the product's rows from `row` and columns from `col`, while they are in cache.
 * Called once for each element, by any thread. */
typedef void gr_cpu_finish(const gr_cpu_product *p, int64_t row, int64_t rows, int64_t col, int64_t cols, float *z, int64_t z_row);

/* Makes rows of x, just before they are packed and while they are in the cache of who packs them. Called once for each row, by any thread.
 */
typedef void gr_cpu_prepare(const gr_cpu_product *p, int64_t row, int64_t rows);

struct gr_cpu_product {
  gr_cpu_term term[2]; /* the sum of two products is an adapter's layer: W x + B h, or W^T g + A^T q */
  int terms;
  int64_t rows, cols;
  float *y;            /* columns are dense; NULL: results go to finish alone, and are not kept */
  int64_t y_row;       /* floats */
  const float *base;   /* added to; NULL: nothing; may be y */
  int64_t base_row;    /* floats */
  const int64_t *y_at; /* groups: floats from y to each row, in place of y_row; these have no base, */
  bool add;            /* but may be added to what stands in y: of rows that are the same, in their order */
  const char *then;    /* groups: the weight of the thread's next job, or NULL; columns then_from to then_to of it */
  int64_t then_from, then_to;
  gr_cpu_finish *finish;   /* NULL: nothing more is done */
  gr_cpu_prepare *prepare; /* NULL: rows are what they are. Not of groups, nor beside an adapter */
  const void *ctx;         /* of both */
  int64_t slice;           /* columns handed to finish at once, from multiples of it: one call a block of rows and slice; 0: as they come */
  /* Filled in by gr_cpu_product_run. */
  const struct gr_cpu_isa *isa;
  bool thin;      /* few rows: weights are multiplied as they are decoded, without tiles */
  int64_t unit;   /* columns: panels begin at multiples of it */
  int64_t widest; /* columns of a tile */
  int64_t panels; /* units are dealt evenly to them */
  int64_t split;  /* of the panels, those in the middle, whose rows are dealt to jobs of their own: */
  int64_t groups; /* of blocks of rows, each with tiles of its own; a panel that is not split is one job */
  int64_t blocks;
  int64_t beside; /* floats from a thread's tile to that of the second term, which each block meets at once; 0: term by term */
  int64_t thread_floats;
  float *threads; /* scratch of each: a tile, and results that are not kept */
};

enum {
  GR_CPU_THIN = 4, /* the most rows of a thin product */
  GR_CPU_THIN_DEPTH = 1 << 17
};
enum { GR_CPU_SLICE = 256 }; /* the widest slice, and the widest tile where there is no y */

/* Bytes of scratch that gr_cpu_product_run may use for a product of up to these sizes; depth2 0: one term; kept: there is a y. */
size_t gr_cpu_product_scratch(int64_t rows, int64_t cols, int64_t depth, int64_t depth2, bool kept, int threads);

/* scratch is 64-byte aligned. */
void gr_cpu_product_run(gr_cpu_product *p, const struct gr_cpu_isa *isa, gr_pool *pool, void *scratch);

/* A product of two terms whose second has what `low` computes for its x: low is planned and run beside it, its results times
 * `scale`. Each job packs some rows, takes them down to the rank while they are in cache, and packs what comes of it. Bits are those of
 * low, a scale and p, one after the other. scratch: that of low, rounded up to 64 bytes, and of p. */
void gr_cpu_product_run_lora(gr_cpu_product *p, gr_cpu_product *low, float scale, const struct gr_cpu_isa *isa, gr_pool *pool,
                             void *scratch);

/* A linear layer: p alone, or p of two terms with low and scale as above. */
typedef struct gr_cpu_linear {
  gr_cpu_product p, low;
  bool lowers;
  float scale;
  size_t scratch; /* bytes, a multiple of 64 */
  /* Filled in by gr_cpu_linears_run. */
  gr_cpu_product base, up; /* the first term alone, and the second added to it */
} gr_cpu_linear;

/* Linears that need nothing of each other: thin ones as one run of jobs, others one after the other. scratch: that of
 * all, one behind the other. */
void gr_cpu_linears_run(gr_cpu_linear *l, int n, const struct gr_cpu_isa *isa, gr_pool *pool, void *scratch);

/* ---- groups ---- */

/* A group is a product whose rows stand anywhere, up to GR_CPU_PART of them: the pairs of one expert. A job is some of its
 * columns. It packs the rows, a chunk of the contraction at a time, in the scratch of its thread; finds them packed by gr_cpu_group_pack;
 * or, where columns are few, reads them where they stand. A second term, of floats and no longer than GR_FUSED_DEPTH (ops/fused.h), is
 * added to each tile of columns while it stands in a cache. Bits are those above. */
enum { GR_CPU_PART = 256 };

/* Floats of scratch a thread wants for a group of such columns and depth, whatever the instruction set; depth2 0: one term. */
int64_t gr_cpu_group_floats(int64_t cols, int64_t depth, int64_t depth2);

/* Fills in what the kernel `group` reads besides rows and addresses: all groups of one op share it. */
void gr_cpu_group_plan(gr_cpu_product *p, const struct gr_cpu_isa *isa);

/* Packs all rows of each term of a group to its `packed`, which has room for gr_cpu_group_packed(rows, 0, depth) floats. With parts: what
 * so many groups of so many rows in all take at most, one behind the other. */
void gr_cpu_group_pack(gr_cpu_product *p);
int64_t gr_cpu_group_packed(int64_t rows, int64_t parts, int64_t depth);

static inline int64_t gr_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t gr_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t gr_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Which rows a block holds: dealt evenly, 32 rows being 11 + 11 + 10 rather than 14 + 14 + 4. */
static inline int64_t gr_block_begin(int64_t rows, int64_t blocks, int64_t i) { return rows * i / blocks; }

/* Which of n parts a job is, where the odd threads take jobs from the back (pool.h) and yet all should walk memory forward, because what
 * comes next has been asked for: the last half of the parts in descending order. */
static inline int64_t gr_forward(int64_t job, int64_t n) { return job < n / 2 ? job : n - 1 - (job - n / 2); }

/* Floats, or words, that n elements of the contraction take; n is even or ends it. */
static inline int64_t gr_words(const gr_cpu_term *t, int64_t n) { return t->words ? (n + 1) / 2 : n; }

/* A few tokens through a linear layer, x read where it stands, or in pairs of bf16 as it is packed: in the scratch of a group, too. */
static inline bool gr_cpu_is_thin(const gr_cpu_product *p)
{
  const int64_t f = sizeof(float);
  bool thin = p->rows <= GR_CPU_THIN && p->y && !p->finish;
  for (const gr_cpu_term *t = p->term; t < p->term + p->terms; t++)
    thin =
        thin && !t->across && t->x_step == f && (t->x_at || t->x_row % f == 0) && (!t->bf16 || (t->words && t->depth <= GR_CPU_THIN_DEPTH));
  return thin;
}

/* Packed x: chunk by chunk, block by block, k by k with the block's rows side by side, so that the micro-kernel reads one
 * stream. A block is stored with whole vectors that overlap; GR_CPU_SPARE floats keep the last off the next block. */
static inline float *gr_packed_at(const gr_cpu_product *p, const gr_cpu_term *t, int64_t block, int64_t k)
{
  int64_t deep = gr_words(t, gr_min(t->chunk, t->depth - k));
  return t->packed + p->rows * gr_words(t, k) + k / t->chunk * p->blocks * GR_CPU_SPARE + gr_block_begin(p->rows, p->blocks, block) * deep +
         block * GR_CPU_SPARE;
}

/* Floats of a thread's scratch that a group's tiles take, and behind them the packed rows of a chunk of a term, of blocks of 4 or more. */
static inline int64_t gr_group_tile(const gr_cpu_product *p)
{
  int64_t deepest = 0;
  for (const gr_cpu_term *t = p->term; t < p->term + p->terms; t++) deepest = gr_max(deepest, gr_words(t, t->chunk));
  return gr_ceil_div(p->widest * deepest, 16) * 16;
}

static inline int64_t gr_group_rows(const gr_cpu_term *t)
{
  return gr_ceil_div(GR_CPU_PART * gr_words(t, t->chunk) + GR_CPU_PART / 4 * GR_CPU_SPARE, 16) * 16;
}

#endif
