/* Shared by the drivers of the CPU backend: each file of this folder defines the run (and scratch) functions of a family of ops,
 * and cpu.c lists them as rows. */
#ifndef GR_CPU_H
#define GR_CPU_H
#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "ops/params.h"

typedef struct gr_cpu {
  gr_backend head;
  const gr_cpu_isa *isa;
} gr_cpu;

static inline const gr_cpu_isa *gr_cpu_isa_of(const gr_backend *b) { return ((const gr_cpu *)b)->isa; }

#define GR_CPU_RUN(name) gr_status gr_cpu_run_##name(gr_backend *b, const gr_op_call *call, gr_error *e)
#define GR_CPU_SCRATCH(name) size_t gr_cpu_scratch_##name(const gr_op_call *call, int threads)
#define GR_CPU_ROW(name) GR_CPU_RUN(name);
#define GR_CPU_ROW_SCRATCH(name)                                                                                                           \
  GR_CPU_RUN(name);                                                                                                                        \
  GR_CPU_SCRATCH(name);
#define GR_CPU_ROW_BF16(name)                                                                                                              \
  bool gr_cpu_admits_bf16_##name(const gr_op_call *call);                                                                                  \
  GR_CPU_RUN(bf16_##name);
#define GR_CPU_ROW_LINEAR(name)                                                                                                            \
  GR_CPU_ROW_SCRATCH(name)                                                                                                                 \
  GR_CPU_ROW_BF16(name)
#include "backend/cpu/rows.def"
#undef GR_CPU_ROW
#undef GR_CPU_ROW_LINEAR
#undef GR_CPU_ROW_SCRATCH
#undef GR_CPU_ROW_BF16

/* matmul.c: linear layers side by side. */
gr_status gr_cpu_run_together(gr_backend *b, const gr_kernel_row *const *rows, const gr_op_call *calls, int n, gr_error *e);

/* Whether a product of w is among those that `bf16` rounds: weights of the base, which are packed or large; factors of adapters, which are
 * F32 and have a rank, and routers stay as they are. */
static inline bool gr_cpu_rounds(const gr_array *w)
{
  enum { LARGE = 512 };
  return w->dtype != GR_F32 || (w->ne[0] >= LARGE && w->ne[1] >= LARGE);
}

/* An op's row in F32 and its row in bf16, of run(backend, call, bf16); when the second is admitted is left to say. */
#define GR_CPU_RUN_BOTH_PRECISIONS(name, run)                                                                                              \
  gr_status gr_cpu_run_##name(gr_backend *b, const gr_op_call *call, gr_error *e)                                                          \
  {                                                                                                                                        \
    (void)e;                                                                                                                               \
    return run(b, call, false);                                                                                                            \
  }                                                                                                                                        \
  gr_status gr_cpu_run_bf16_##name(gr_backend *b, const gr_op_call *call, gr_error *e)                                                     \
  {                                                                                                                                        \
    (void)e;                                                                                                                               \
    return run(b, call, true);                                                                                                             \
  }
/* The two of an op whose weight is input 0. */
#define GR_CPU_BOTH_PRECISIONS(name, run)                                                                                                  \
  GR_CPU_RUN_BOTH_PRECISIONS(name, run)                                                                                                    \
  bool gr_cpu_admits_bf16_##name(const gr_op_call *call) { return gr_cpu_rounds(&call->in[0]); }

/* attention_one.c: whether the attention of a single query is computed there, floats of scratch for that, and computing it. */
bool gr_cpu_attention_is_one(const gr_cpu_attention *a);
int64_t gr_cpu_attention_one_floats(const gr_cpu_attention *a, int threads);
void gr_cpu_attention_one(const gr_cpu_attention *a, const gr_cpu_isa *isa, gr_pool *pool, float *scratch);

/* Rows (dimension 0) as dense floats, a piece at a time. */
enum { GR_CPU_PIECE = 1024 };

typedef struct gr_row_at {
  int64_t i1, i2, i3;
} gr_row_at;

/* Where row number r of a's rows is. */
static inline gr_row_at gr_row_index(const gr_array *a, int64_t r)
{
  return (gr_row_at){ r % a->ne[1], r / a->ne[1] % a->ne[2], r / a->ne[1] / a->ne[2] };
}

/* Moves on to the next row: a row of a head is shorter than the divisions that find it. */
static inline void gr_row_step(const gr_array *a, gr_row_at *at)
{
  if (++at->i1 < a->ne[1]) return;
  at->i1 = 0;
  if (++at->i2 < a->ne[2]) return;
  at->i2 = 0;
  at->i3++;
}

/* n floats (at most GR_CPU_PIECE) from element i0 of the row at `at`, all indices modulo a's shape: in place when they are dense, else
 * copied into buffer. */
const float *gr_cpu_piece(const gr_array *a, int64_t i0, int64_t n, gr_row_at at, float *buffer);

/* The whole row; buffer holds ne[0] floats and is used when the row is not dense. */
const float *gr_cpu_row(const gr_array *a, gr_row_at at, float *buffer);

/* Copies the row into y. */
void gr_cpu_gather(const gr_array *a, gr_row_at at, float *y);

/* Rows to hand to one job, so that it has some thousand elements to work on. */
static inline int64_t gr_cpu_rows_per_job(int64_t row_elements) { return gr_max(1, 8192 / gr_max(1, row_elements)); }

static inline int64_t gr_cpu_align(int64_t bytes) { return (bytes + 63) & ~(int64_t)63; }

#endif
