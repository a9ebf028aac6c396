/* Data for cases: a pure function of (seed, input, element), so that any failure can be made again. */
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "optest/internal.h"

/* Where a block keeps its half-precision scales, and how large they are so that values come out around 1. */
typedef struct scale_fields {
  gr_dtype dtype;
  int n;
  int at[2];
  double size[2];
} scale_fields;

static const scale_fields fields[] = {
  { GR_Q4_0, 1, { 0 }, { 0.2 } },         { GR_Q4_1, 2, { 0, 2 }, { 0.15, -1 } },    { GR_Q5_0, 1, { 0 }, { 0.1 } },
  { GR_Q5_1, 2, { 0, 2 }, { 0.08, -1 } }, { GR_Q8_0, 1, { 0 }, { 0.015 } },          { GR_Q2_K, 2, { 80, 82 }, { 0.1, 0.1 } },
  { GR_Q3_K, 1, { 108 }, { 0.03 } },      { GR_Q4_K, 2, { 0, 2 }, { 0.005, 0.03 } }, { GR_Q5_K, 2, { 0, 2 }, { 0.0025, 0.03 } },
  { GR_Q6_K, 1, { 208 }, { 0.0005 } },    { GR_IQ4_NL, 1, { 0 }, { 0.015 } },        { GR_IQ4_XS, 1, { 0 }, { 0.001 } },
};

/* A block of random bytes whose scales are bounded; the second scale of Q4_1 and Q5_1 is a minimum, below 0. */
static void fill_block(gr_dtype dtype, uint8_t *block, uint64_t seed, uint64_t key, uint64_t n)
{
  int bytes = gr_dtype_get(dtype)->block_bytes;
  for (int i = 0; i < bytes; i += 8) {
    uint64_t word = gr_random_u64(seed, key, n * 64 + (uint64_t)i / 8);
    memcpy(block + i, &word, (size_t)(bytes - i < 8 ? bytes - i : 8));
  }
  if (dtype == GR_MXFP4) block[0] = (uint8_t)(124 + block[0] % 6);
  for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
    for (int i = 0; fields[f].dtype == dtype && i < fields[f].n; i++) {
      double u = 0.5 + 0.5 * gr_random_uniform(seed, key, n * 64 + 40 + (uint64_t)i);
      uint16_t h = gr_f32_to_f16((float)(u * fields[f].size[i]));
      memcpy(block + fields[f].at[i], &h, sizeof h);
    }
}

static void fill_blocks(const gr_array *a, uint64_t seed, uint64_t key)
{
  const gr_dtype_info *d = gr_dtype_get(a->dtype);
  uint64_t n = 0;
  for (int64_t i3 = 0; i3 < a->ne[3]; i3++)
    for (int64_t i2 = 0; i2 < a->ne[2]; i2++)
      for (int64_t i1 = 0; i1 < a->ne[1]; i1++)
        for (int64_t b = 0; b < a->ne[0] / d->block_elems; b++)
          fill_block(a->dtype, (uint8_t *)gr_array_at(a, b, i1, i2, i3), seed, key, n++);
}

/* Steps through [0, n) without meeting a number twice: a stride with no factor in common with n. */
static uint64_t distinct(uint64_t n, uint64_t i, uint64_t seed, uint64_t key)
{
  uint64_t step = n < 2 ? 1 : 1 + gr_random_below(seed, key, 0, n - 1);
  for (;; step++) {
    uint64_t x = n, y = step;
    while (y) {
      uint64_t r = x % y;
      x = y, y = r;
    }
    if (x == 1) break;
  }
  return (gr_random_below(seed, key, 1, n) + i % n * step) % n;
}

static double fill_value(const gr_fill *f, uint64_t seed, uint64_t key, uint64_t i)
{
  switch (f->kind) {
  case GR_FILL_UNIFORM: return f->a + (f->b - f->a) * gr_random_uniform(seed, key, i);
  case GR_FILL_VALUES: return f->values[i % (uint64_t)f->n];
  case GR_FILL_BELOW: return (double)gr_random_below(seed, key, i, (uint64_t)f->a);
  case GR_FILL_DISTINCT: return (double)distinct((uint64_t)f->a, i, seed, key);
  case GR_FILL_COUNT: return (double)i;
  default: return gr_random_normal(seed, key, i) * (f->a ? f->a : 1);
  }
}

/* Elements of a dense array of in's type and a's shape. */
static void copy_elements(const gr_case_in *in, const gr_array *a)
{
  gr_array from = { .data = (void *)(uintptr_t)in->data, .dtype = in->dtype };
  memcpy(from.ne, a->ne, sizeof from.ne);
  gr_strides_contiguous(from.dtype, from.ne, from.nb);
  size_t row = (size_t)gr_row_bytes(from.dtype, from.ne[0]);
  for (int64_t i3 = 0; i3 < a->ne[3]; i3++)
    for (int64_t i2 = 0; i2 < a->ne[2]; i2++)
      for (int64_t i1 = 0; i1 < a->ne[1]; i1++) {
        if (gr_dtype_is_quant(a->dtype)) memcpy(gr_array_at(a, 0, i1, i2, i3), gr_array_at(&from, 0, i1, i2, i3), row);
        else
          for (int64_t i0 = 0; i0 < a->ne[0]; i0++) gr_array_set(a, i0, i1, i2, i3, gr_array_get(&from, i0, i1, i2, i3));
      }
}

void gr_case_fill(const gr_case_in *in, const gr_array *a, uint64_t seed, uint64_t key)
{
  if (in->data) {
    copy_elements(in, a);
    return;
  }
  if (gr_dtype_is_quant(a->dtype)) {
    fill_blocks(a, seed, key);
    return;
  }
  uint64_t n = 0;
  for (int64_t i3 = 0; i3 < a->ne[3]; i3++)
    for (int64_t i2 = 0; i2 < a->ne[2]; i2++)
      for (int64_t i1 = 0; i1 < a->ne[1]; i1++)
        for (int64_t i0 = 0; i0 < a->ne[0]; i0++) {
          double v = fill_value(&in->fill, seed, key, n++);
          gr_array_set(a, i0, i1, i2, i3, in->fill.bf16 ? (double)gr_bf16_to_f32(gr_f32_to_bf16((float)v)) : v);
        }
}

void gr_poison(void *p, size_t bytes, gr_dtype dtype) { memset(p, gr_dtype_get(dtype)->kind == GR_KIND_INT ? 0x7b : 0xff, bytes); }
