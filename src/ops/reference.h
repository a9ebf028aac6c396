/* Small helps for references: walking rows, failing for want of memory. */
#ifndef GR_OPS_REFERENCE_H
#define GR_OPS_REFERENCE_H
#include <math.h>

#include "ops/op.h"

/* A position along dimensions 1 to 3:  for (gr_row r = { 0 }; gr_row_valid(&r, a); gr_row_next(&r, a)) */
typedef struct gr_row {
  int64_t i1, i2, i3;
} gr_row;

static inline bool gr_row_valid(const gr_row *r, const gr_array *a) { return r->i1 < a->ne[1] && r->i2 < a->ne[2] && r->i3 < a->ne[3]; }

static inline void gr_row_next(gr_row *r, const gr_array *a)
{
  if (++r->i1 < a->ne[1]) return;
  r->i1 = 0;
  if (++r->i2 < a->ne[2]) return;
  r->i2 = 0;
  r->i3++;
}

static inline double gr_row_get(const gr_array *a, int64_t i0, const gr_row *r) { return gr_array_get(a, i0, r->i1, r->i2, r->i3); }
static inline void gr_row_set(const gr_array *a, int64_t i0, const gr_row *r, double v) { gr_array_set(a, i0, r->i1, r->i2, r->i3, v); }

/* The element that i of a's repeats shows: i mod n along each dimension. */
static inline double gr_row_get_mod(const gr_array *a, int64_t i0, const gr_row *r)
{
  return gr_array_get(a, i0 % a->ne[0], r->i1 % a->ne[1], r->i2 % a->ne[2], r->i3 % a->ne[3]);
}

/* n doubles; when there is no memory for them every output becomes NaN (nothing is silent) and the result is NULL. */
double *gr_reference_scratch(const gr_op_call *c, int64_t n);
void gr_reference_fill(const gr_array *a, double v);

static inline double gr_reference_sigmoid(double x) { return 1 / (1 + exp(-x)); }

#endif
