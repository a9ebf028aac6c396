#include "tensor/array.h"

#include <string.h>

#include "base/half.h"

void gr_strides_contiguous(gr_dtype t, const int64_t ne[GR_DIMS], int64_t nb[GR_DIMS])
{
  nb[0] = gr_dtype_get(t)->block_bytes;
  nb[1] = (int64_t)gr_row_bytes(t, ne[0]);
  nb[2] = nb[1] * ne[1];
  nb[3] = nb[2] * ne[2];
}

bool gr_array_contiguous(const gr_array *a)
{
  int64_t nb[GR_DIMS];
  gr_strides_contiguous(a->dtype, a->ne, nb);
  for (int i = 0; i < GR_DIMS; i++)
    if (a->ne[i] > 1 && a->nb[i] != nb[i]) return false;
  return true;
}

bool gr_array_rows_dense(const gr_array *a) { return a->nb[0] == gr_dtype_get(a->dtype)->block_bytes || a->ne[0] == 1; }

bool gr_shape_equal(const int64_t a[GR_DIMS], const int64_t b[GR_DIMS]) { return memcmp(a, b, GR_DIMS * sizeof *a) == 0; }

bool gr_shape_repeats(const int64_t part[GR_DIMS], const int64_t whole[GR_DIMS])
{
  for (int i = 0; i < GR_DIMS; i++)
    if (part[i] <= 0 || whole[i] % part[i]) return false;
  return true;
}

bool gr_array_extent(gr_dtype t, const int64_t ne[GR_DIMS], const int64_t nb[GR_DIMS], size_t *bytes)
{
  const gr_dtype_info *d = gr_dtype_get(t);
  uint64_t total = (uint64_t)d->block_bytes;
  for (int i = 0; i < GR_DIMS; i++) {
    int64_t steps = i == 0 ? ne[0] / d->block_elems : ne[i];
    if (steps <= 0) {
      *bytes = 0;
      return true;
    }
    uint64_t step = (uint64_t)(steps - 1), width = (uint64_t)nb[i];
    if (step && width > (INT64_MAX - total) / step) return false;
    total += step * width;
  }
  *bytes = (size_t)total;
  return true;
}

double gr_array_get(const gr_array *a, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
  const char *p = gr_array_at(a, i0, i1, i2, i3);
  switch (a->dtype) {
  case GR_F32: return (double)*(const float *)p;
  case GR_F64: return *(const double *)p;
  case GR_F16: return (double)gr_f16_to_f32(*(const uint16_t *)p);
  case GR_BF16: return (double)gr_bf16_to_f32(*(const uint16_t *)p);
  case GR_I32: return *(const int32_t *)p;
  case GR_I64: return (double)*(const int64_t *)p;
  default: return 0;
  }
}

void gr_array_set(const gr_array *a, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double v)
{
  char *p = gr_array_at(a, i0, i1, i2, i3);
  switch (a->dtype) {
  case GR_F32: *(float *)p = (float)v; break;
  case GR_F64: *(double *)p = v; break;
  case GR_F16: *(uint16_t *)p = gr_f32_to_f16((float)v); break;
  case GR_BF16: *(uint16_t *)p = gr_f32_to_bf16((float)v); break;
  case GR_I32: *(int32_t *)p = (int32_t)v; break;
  case GR_I64: *(int64_t *)p = (int64_t)v; break;
  default: break;
  }
}
