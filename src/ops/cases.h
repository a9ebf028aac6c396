/* How an op's file describes the cases that prove it: data only, so that ops know nothing of the harness that runs them (src/optest).
 *
 * A case is one application of the op: inputs by shape, type, layout and fill, and parameters. In grad mode the backward rule is
 * compared with differences of the reference, in double; in test mode every kernel row that admits the case is compared with the
 * reference. A case with `refuse` must be refused instead. Cases say nothing of kernels: a new row is tested the day it lands. */
#ifndef GR_OPS_CASES_H
#define GR_OPS_CASES_H
#include "ops/op.h"

/* How an input lies in memory. Whatever lies between and around its elements is NaN. */
typedef enum gr_layout {
  GR_LAYOUT_DENSE,
  GR_LAYOUT_ROWS,       /* rows dense, with a gap after each (3 elements, or a block) */
  GR_LAYOUT_TRANSPOSED, /* dimensions 0 and 1 swapped in memory: nb[1] is an element */
  GR_LAYOUT_OFFSET,     /* dense, but starting 3 elements (or a block) into aligned storage */
  GR_LAYOUT_BROADCAST   /* one row seen again and again: nb[1..3] are 0 */
} gr_layout;

typedef enum gr_fill_kind {
  GR_FILL_NORMAL,   /* standard normal times a (0: 1) */
  GR_FILL_UNIFORM,  /* in [a, b) */
  GR_FILL_VALUES,   /* the list, again and again */
  GR_FILL_BELOW,    /* integers in [0, a) */
  GR_FILL_DISTINCT, /* integers in [0, a), no two alike */
  GR_FILL_COUNT     /* 0, 1, 2, ... */
} gr_fill_kind;

typedef struct gr_fill {
  gr_fill_kind kind;
  double a, b;
  const double *values; /* copied when the case is added; integers too */
  int n;
  bool bf16; /* numbers that bf16 holds: rows that round operands to it do not move these */
} gr_fill;

typedef struct gr_case_in {
  gr_dtype dtype;       /* left 0: F32. Quantized: random blocks with bounded scales, whatever fill says */
  int64_t ne[GR_DIMS];  /* 0 beyond the first: 1; the first 0: absent */
  uint8_t dim[GR_DIMS]; /* gr_dim: tagged dimensions also run at smaller live sizes */
  gr_layout layout;
  gr_fill fill;
  const void *data; /* instead of fill: the elements, dense, in the input's own type; not copied */
  bool grad;        /* grad mode asks for its gradient */
  uint8_t leaf;
} gr_case_in;

/* Errors are C4's, per tensor and per slice: norm(a-b)/norm(b), and max|a-b| / rms(b). `seen` is the worst honest norm error met over all
 * rows, sets and backends at the default seed, where one more than twice as large fails; `defect` the smallest of a real defect (operands
 * staged in half, a dropped tail): norm stands between the two. */
typedef struct gr_tolerance {
  double norm, max, seen, defect;
  /* Where the truth is 0 the result must be exactly 0; unless this is set, for results that are a difference of two sums which meet
   * only up to rounding. Errors are then relative to the rms of the truth or to this, whichever is larger. */
  double floor;
  /* An element that is off by no more than this share of itself does not count for max: rounded operands move an element so, and one may
   * tower over the rms (the label's row of a gradient over 248,320 words). 0: every element counts. */
  double share;
} gr_tolerance;

enum {
  GR_CASE_FULL = 1,    /* dear: runs only when the full set is asked for */
  GR_CASE_PERF = 2,    /* a training shape, for perf mode only */
  GR_CASE_NO_GRAD = 4, /* test mode only */
  GR_CASE_NO_TEST = 8, /* grad mode only */
  GR_CASE_ZERO = 16,   /* the results are 0 everywhere, and meant to be */
  GR_CASE_REAL = 32,   /* recorded from a run: results may be 0 everywhere, or not */
  GR_CASE_F32 = 64     /* not for rows that round operands to bf16: those are off by more than the result */
};

enum { GR_CASE_ZERO_SLICES = 8 };

/* Which slice of output `out` an element belongs to (the expert that it was made by), -1: none. Errors are judged for each slice too, so
 * that a small one cannot be wrong unseen beside large ones; one whose truth is 0 must be exactly 0 (C4). */
typedef int64_t gr_case_slice(const gr_op_call *call, int out, const int64_t at[GR_DIMS]);

typedef struct gr_case {
  const char *name;
  unsigned flags;
  gr_case_in in[GR_IN_MAX];
  int n_in; /* left 0: up to the last input that is there */
  const void *params;
  unsigned douts; /* outputs that a gradient arrives at in grad mode; left 0: output 0 */
  /* Writes inputs that follow from others: a saved log-sum-exp, the grouping of ids. */
  void (*prepare)(gr_op_call *call);
  /* Slices that must be exactly 0 whatever the tolerance: index `at` along dimension `dim` of output `out`. */
  struct {
    int8_t out, dim;
    int64_t at;
  } zero[GR_CASE_ZERO_SLICES];
  int n_zero;
  gr_case_slice *slice;   /* left NULL: the op's */
  gr_tolerance tolerance; /* left 0: the op's */
  /* The case must be refused with this status, in a sentence that holds `says`: by infer, or, with wants, by backward. */
  gr_status refuse;
  const char *says;
  unsigned wants;
} gr_case;

typedef struct gr_case_sink {
  void (*add)(struct gr_case_sink *s, const gr_case *c);
  gr_tolerance tolerance; /* the op's, and its slices if it has any: set before the first case */
  gr_case_slice *slice;
} gr_case_sink;

static inline void gr_case_add(gr_case_sink *s, const gr_case *c) { s->add(s, c); }

static inline gr_fill gr_fill_normal(double scale) { return (gr_fill){ .a = scale }; }
static inline gr_fill gr_fill_uniform(double lo, double hi) { return (gr_fill){ .kind = GR_FILL_UNIFORM, .a = lo, .b = hi }; }
static inline gr_fill gr_fill_values(const double *values, int n) { return (gr_fill){ .kind = GR_FILL_VALUES, .values = values, .n = n }; }
static inline gr_fill gr_fill_below(int64_t n) { return (gr_fill){ .kind = GR_FILL_BELOW, .a = (double)n }; }
static inline gr_fill gr_fill_distinct(int64_t n) { return (gr_fill){ .kind = GR_FILL_DISTINCT, .a = (double)n }; }
static inline gr_fill gr_fill_count(void) { return (gr_fill){ .kind = GR_FILL_COUNT }; }

/* The list as a fill: GR_FILL_LIST(1, 0, -1). */
#define GR_FILL_LIST(...) gr_fill_values((const double[]){ __VA_ARGS__ }, (int)(sizeof((const double[]){ __VA_ARGS__ }) / sizeof(double)))

/* Every type that may stand as a weight: i = 0, 1, ...; false past the end. */
static inline bool gr_case_weight_type(int i, gr_dtype *type)
{
  static const gr_dtype types[] = { GR_F32,  GR_F16,  GR_BF16, GR_Q4_0, GR_Q4_1, GR_Q5_0,   GR_Q5_1,   GR_Q8_0,
                                    GR_Q2_K, GR_Q3_K, GR_Q4_K, GR_Q5_K, GR_Q6_K, GR_IQ4_NL, GR_IQ4_XS, GR_MXFP4 };
  if (i >= (int)(sizeof types / sizeof *types)) return false;
  *type = types[i];
  return true;
}

#endif
