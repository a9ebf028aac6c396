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
#include "backend/cpu/rows.def"
#undef GR_CPU_ROW
#undef GR_CPU_ROW_SCRATCH

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
