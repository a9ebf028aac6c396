#include "backend/gpu/pack.h"

#include <string.h>

bool gr_gpu_plain_f32(const gr_array *a)
{
  if (a->dtype != GR_F32) return false;
  for (int i = 0; i < GR_DIMS; i++)
    if (a->nb[i] < 0 || a->nb[i] % (int64_t)sizeof(float) || a->ne[i] > INT32_MAX) return false;
  return true;
}

bool gr_gpu_plain_i32(const gr_array *a)
{
  bool whole = a->dtype == GR_I32;
  for (int i = 0; i < GR_DIMS; i++) whole = whole && a->nb[i] >= 0 && a->nb[i] % (int64_t)sizeof(int32_t) == 0;
  return whole;
}

/* The most groups that a launch may have everywhere. */
static const int64_t groups_max = INT32_MAX;

bool gr_gpu_launchable(const gr_array *a)
{
  int64_t rows = 1;
  for (int i = 1; i < GR_DIMS; i++) {
    if (a->ne[i] > groups_max || (a->ne[i] && rows > groups_max / a->ne[i])) return false;
    rows *= a->ne[i];
  }
  return !rows || a->ne[0] / 64 < groups_max / rows;
}

/* Dimensions d and d+1 of `a`, which repeats to `whole`, are walked as if they were one. */
static bool joinable(const gr_array *a, const gr_array *whole, int d)
{
  bool same = a->ne[d] == whole->ne[d] && a->ne[d + 1] == whole->ne[d + 1];
  bool even = a->ne[d] == 1 || a->ne[d + 1] == 1 || a->nb[d + 1] == a->ne[d] * a->nb[d];
  return (same && even) || (a->ne[d] == 1 && a->ne[d + 1] == 1);
}

static void join(gr_array *a, int d)
{
  if (a->ne[d] == 1) a->nb[d] = a->nb[d + 1];
  a->ne[d] *= a->ne[d + 1];
  for (int i = d + 1; i + 1 < GR_DIMS; i++) {
    a->ne[i] = a->ne[i + 1];
    a->nb[i] = a->nb[i + 1];
  }
  a->ne[GR_DIMS - 1] = 1;
}

void gr_gpu_collapse(gr_array *const *array, int n)
{
  const gr_array *whole = array[0];
  for (int d = 0; d + 1 < GR_DIMS;) {
    bool all = whole->ne[d] == 0 || whole->ne[d + 1] <= INT32_MAX / whole->ne[d];
    /* Trailing dimensions of 1 join for ever: stop once there is nothing behind d. */
    bool more = false;
    for (int i = d + 1; i < GR_DIMS; i++) more |= whole->ne[i] != 1;
    for (int i = 1; i < n; i++) all = all && joinable(array[i], whole, d);
    all = all && joinable(whole, whole, d);
    if (!more) return;
    if (!all) {
      d++;
      continue;
    }
    for (int i = n - 1; i >= 0; i--) join(array[i], d);
  }
}

void gr_gpu_shape(const gr_array *a, uint32_t ne[GR_DIMS])
{
  for (int i = 0; i < GR_DIMS; i++) ne[i] = (uint32_t)a->ne[i];
}

void gr_gpu_strides(const gr_array *a, int64_t stride[GR_DIMS])
{
  for (int i = 0; i < GR_DIMS; i++) stride[i] = a->nb[i] / (int64_t)sizeof(float);
}

void gr_gpu_bind(gr_gpu_launch *l, int i, const gr_array *a)
{
  l->buffer[i].address = a->data;
  l->buffer[i].gaps = !gr_array_contiguous(a);
  if (!gr_array_extent(a->dtype, a->ne, a->nb, &l->buffer[i].bytes)) l->buffer[i].bytes = SIZE_MAX; /* refused by the driver */
}

gr_gpu_launch gr_gpu_launch_make(gr_gpu_kernel k, uint64_t groups, const void *args, size_t args_bytes)
{
  gr_gpu_launch l = { .kernel = k, .groups = (uint32_t)groups };
  memcpy(l.args, args, args_bytes);
  return l;
}

gr_status gr_gpu_submit(gr_backend *b, const gr_gpu_launch *l, gr_error *e)
{
  gr_gpu *gpu = (gr_gpu *)b;
  return l->groups ? gpu->launch(gpu, l, e) : GR_OK;
}

gr_status gr_gpu_scale(gr_backend *b, const gr_array *x, float s, const gr_array *y, gr_error *e)
{
  gk_unary_args args = { .blocks = gr_gpu_blocks(GR_GPU_scale_f32, y->ne[0]), .s = s };
  gr_gpu_shape(y, args.ne);
  gr_gpu_strides(x, args.x_stride);
  gr_gpu_strides(y, args.y_stride);
  gr_gpu_launch l = gr_gpu_launch_make(GR_GPU_scale_f32, args.blocks * (uint64_t)gr_array_rows(y), &args, sizeof args);
  gr_gpu_bind(&l, 0, x);
  gr_gpu_bind(&l, 1, y);
  return gr_gpu_submit(b, &l, e);
}
