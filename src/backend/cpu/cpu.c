/* The CPU backend: host memory, one row an op, kernels of the best instruction set that runs here. */
#define _DEFAULT_SOURCE /* madvise */
#include "backend/cpu/cpu.h"

#include <string.h>
#include <sys/mman.h>

#include "backend/backends.h"
#include "base/alloc.h"
#include "base/mutant.h"

static const gr_kernel_row rows[] = {
#define GR_CPU_ROW(id) { .op = GR_OP_##id, .name = #id "__cpu", .run = gr_cpu_run_##id },
#define F32_ROW(id, joined)                                                                                                                \
  { .op = GR_OP_##id, .name = #id "__cpu", .scratch = gr_cpu_scratch_##id, .run = gr_cpu_run_##id, .together = joined },
#define BF16_ROW(id, joined)                                                                                                               \
  { .op = GR_OP_##id,                                                                                                                      \
    .bf16 = true,                                                                                                                          \
    .name = #id "_bf16__cpu",                                                                                                              \
    .priority = 1,                                                                                                                         \
    .admits = gr_cpu_admits_bf16_##id,                                                                                                     \
    .scratch = gr_cpu_scratch_##id,                                                                                                        \
    .run = gr_cpu_run_bf16_##id,                                                                                                           \
    .together = joined },
#define GR_CPU_ROW_SCRATCH(id) F32_ROW(id, NULL)
#define GR_CPU_ROW_BF16(id) BF16_ROW(id, NULL)
#define GR_CPU_ROW_LINEAR(id) F32_ROW(id, gr_cpu_run_together) BF16_ROW(id, gr_cpu_run_together)
#include "backend/cpu/rows.def"
#undef GR_CPU_ROW
#undef GR_CPU_ROW_LINEAR
#undef GR_CPU_ROW_SCRATCH
#undef GR_CPU_ROW_BF16
#undef BF16_ROW
#undef F32_ROW
  { .op = GR_OP_NONE },
};

/* Large allocations ask for huge pages: activations are walked by column as well as by row, and a page of 4 KiB holds one row or two. */
static gr_status cpu_alloc(gr_backend *b, size_t bytes, void **address, gr_error *e)
{
#if defined(MADV_HUGEPAGE)
  const size_t huge = (size_t)2 << 20;
  if (bytes >= 2 * huge) {
    *address = gr_alloc_aligned(bytes, huge);
    if (!*address) return gr_fail_memory(e, bytes);
    (void)madvise(*address, bytes / huge * huge, MADV_HUGEPAGE); /* only a wish: nothing depends on it */
    return GR_OK;
  }
#endif
  return gr_host_alloc(b, bytes, address, e);
}

static void cpu_close(gr_backend *b) { gr_free(b); }

static const gr_backend_ops ops = {
  .name = "cpu", .rows = rows, .host_memory = true, .alloc = cpu_alloc, .free = gr_host_free, .close = cpu_close
};

gr_status gr_backend_open_cpu(gr_backend **out, gr_pool *pool, gr_error *e)
{
  const gr_cpu_isa *isa;
  GR_TRY(gr_cpu_isa_choose(&isa, e));
  gr_cpu *b = gr_calloc(1, sizeof *b);
  if (!b) return gr_fail_memory(e, sizeof *b);
  *b = (gr_cpu){ { .ops = &ops, .pool = pool }, isa };
  *out = &b->head;
  return GR_OK;
}

const float *gr_cpu_piece(const gr_array *a, int64_t i0, int64_t n, gr_row_at at, float *buffer)
{
  const char *row = gr_array_at(a, 0, GR_MUTANT(repeat_row_0) ? 0 : at.i1 % a->ne[1], at.i2 % a->ne[2], at.i3 % a->ne[3]);
  int64_t i = i0 % a->ne[0];
  if (a->nb[0] == sizeof(float) && i + n <= a->ne[0]) return (const float *)row + i;
  for (int64_t j = 0; j < n; j++) {
    memcpy(&buffer[j], row + i * a->nb[0], sizeof *buffer);
    if (++i == a->ne[0]) i = GR_MUTANT(repeat_last_element) ? a->ne[0] - 1 : 0;
  }
  return buffer;
}

void gr_cpu_gather(const gr_array *a, gr_row_at at, float *y)
{
  const char *row = gr_array_at(a, 0, at.i1, at.i2, at.i3);
  for (int64_t j = 0; j < a->ne[0]; j++) memcpy(&y[j], row + j * a->nb[0], sizeof *y);
}

const float *gr_cpu_row(const gr_array *a, gr_row_at at, float *buffer)
{
  if (a->nb[0] == sizeof(float)) return (const float *)gr_array_at(a, 0, at.i1, at.i2, at.i3);
  gr_cpu_gather(a, at, buffer);
  return buffer;
}
