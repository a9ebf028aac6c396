/* A strided array in memory: what kernels and references are handed. Shapes are in ggml order: ne[0] is the fastest, trailing
 * dimensions that are not there are 1. nb[i] is the distance in bytes between neighbours along dimension i; for a quantized
 * type nb[0] is the size of a block and rows (dimension 0) are whole blocks, contiguous. A broadcast has nb[i] = 0. */
#ifndef GR_TENSOR_ARRAY_H
#define GR_TENSOR_ARRAY_H
#include "tensor/dtype.h"

enum { GR_DIMS = 4 };

typedef struct gr_array {
  void *data; /* host address, or a device address that only its backend understands; NULL when only the shape is meant */
  int64_t ne[GR_DIMS], nb[GR_DIMS];
  gr_dtype dtype;
} gr_array;

static inline int64_t gr_array_count(const gr_array *a) { return a->ne[0] * a->ne[1] * a->ne[2] * a->ne[3]; }
static inline int64_t gr_array_rows(const gr_array *a) { return a->ne[1] * a->ne[2] * a->ne[3]; }
static inline char *gr_array_at(const gr_array *a, int64_t i0, int64_t i1, int64_t i2, int64_t i3)
{
  return (char *)a->data + i0 * a->nb[0] + i1 * a->nb[1] + i2 * a->nb[2] + i3 * a->nb[3];
}

/* The same elements, the first two dimensions exchanged. */
static inline gr_array gr_array_transposed(const gr_array *a)
{
  gr_array t = *a;
  t.ne[0] = a->ne[1], t.ne[1] = a->ne[0];
  t.nb[0] = a->nb[1], t.nb[1] = a->nb[0];
  return t;
}

/* nb of a contiguous array of this type and shape. */
void gr_strides_contiguous(gr_dtype t, const int64_t ne[GR_DIMS], int64_t nb[GR_DIMS]);
bool gr_array_contiguous(const gr_array *a);
/* Dimension 0 is dense (nb[0] is one element or block); rows may be anywhere. */
bool gr_array_rows_dense(const gr_array *a);
bool gr_shape_equal(const int64_t a[GR_DIMS], const int64_t b[GR_DIMS]);
/* Each dimension of `whole` is a multiple of that of `part`: part can be repeated to fill whole. */
bool gr_shape_repeats(const int64_t part[GR_DIMS], const int64_t whole[GR_DIMS]);
/* Bytes from the first to one past the last element, all strides >= 0; false on overflow. */
bool gr_array_extent(gr_dtype t, const int64_t ne[GR_DIMS], const int64_t nb[GR_DIMS], size_t *bytes);

/* One element as double, and back (F32, F64, F16, BF16, I32, I64): the references' slow and plain access. */
double gr_array_get(const gr_array *a, int64_t i0, int64_t i1, int64_t i2, int64_t i3);
void gr_array_set(const gr_array *a, int64_t i0, int64_t i1, int64_t i2, int64_t i3, double v);

#endif
