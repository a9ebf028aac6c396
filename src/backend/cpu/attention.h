/* What the attention kernels of every instruction set are handed. Rows (dimension 0) of all arrays are dense floats.
 *
 * Scores are kept by key, with queries side by side in the lanes of vectors, so that the softmax of a query is a chain along one lane:
 * no bit of it depends on where its segment begins, on what else is in the batch, or on which queries share its vectors. */
#ifndef GR_CPU_ATTENTION_H
#define GR_CPU_ATTENTION_H
#include "ops/params.h"
#include "tensor/array.h"

/* Keys [from, to) are visible to a query; `start` is the first key of its segment, from which chunks of keys are counted. */
typedef struct gr_cpu_visible {
  int32_t start, from, to;
} gr_cpu_visible;

/* Consecutive queries of one segment, or for attention_back the part of them whose number is `part`. */
typedef struct gr_cpu_run {
  int32_t first, count, part;
} gr_cpu_run;

/* Up to a strip of rows of one run: row r is head r % group of the key head's group, of query r / group. */
typedef struct gr_cpu_strip {
  int64_t first, rows;
} gr_cpu_strip;

/* Rows of one key head as the right operand of a product: floats from row to row and from head to head. Where two bf16 are a word, keys
 * 2 i and 2 i + 1 of a segment that begins at key s, side by side, are row s + i: what is paired does not depend on what else there is. */
typedef struct gr_cpu_heads {
  float *data;
  int64_t row, head;
} gr_cpu_heads;

typedef struct gr_cpu_attention {
  struct gr_attention_params params;
  gr_array q, k, v, out, lse, dout, dq, dk, dv; /* the gradients in attention_back only */
  const float *sinks;                           /* [H] or NULL */
  const gr_cpu_visible *visible;                /* [n] */
  const int32_t *key_start;                     /* [m]: where the segment of each key begins */
  int64_t group;                                /* query heads of a key head */
  bool rounds;                                  /* operands of products are rounded to bf16, */
  bool words;                                   /* and two of them are a word */
  /* Keys (and values) packed for the micro-kernel, block_rows of them at a time; k_blocks NULL: a few queries read K itself. */
  float *k_blocks, *v_blocks;
  int64_t blocks;
  gr_cpu_heads k_rows, v_rows;   /* K and V, or copies whose rows are padded to whole strips */
  bool copy_k, copy_v;           /* whether they are copies */
  gr_cpu_heads dk_sums, dv_sums; /* by part and key head, for attention_back: to be summed over parts */
} gr_cpu_attention;

/* Floats, or words, that n elements of a contraction take. */
static inline int64_t gr_cpu_attention_words(const gr_cpu_attention *a, int64_t n) { return a->words ? (n + 1) / 2 : n; }

/* A single query of all heads: scores [H][score_row] of the keys it sees; the largest of each piece of keys [piece][H], and up to the end
 * of each chunk [chunk][H]; sums of exponentials [chunk][H] and of values [chunk][H][dv] of each chunk. */
typedef struct gr_cpu_one {
  gr_cpu_visible see;
  float *q, *scores, *tops, *chunk_tops, *parts; /* q: [H][q_row], times scale */
  int64_t q_row, score_row;
  double *sums;
} gr_cpu_one;

/* Where the first piece or chunk of so many keys begins that holds a key that is seen. */
static inline int64_t gr_cpu_one_first(const gr_cpu_one *o, int64_t keys)
{
  return o->see.start + (o->see.from - o->see.start) / keys * keys;
}

enum {
  GR_CPU_PIECE_KEYS = 64,
  GR_CPU_ONE_HEADS = 32,  /* the most heads of a group */
  GR_CPU_KEYS = 512,      /* keys of a chunk of attention: scores of one stay in cache */
  GR_CPU_BACK_KEYS = 256, /* the same for attention_back, which keeps two matrices of GR_CPU_BACK_ROWS columns */
  GR_CPU_BACK_ROWS = 128,
  GR_CPU_STRIP = 32, /* columns of a strip in the widest set */
  GR_CPU_SPARE = 16  /* floats that a packed block may write past its end */
};

#endif
