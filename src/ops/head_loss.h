/* What head_loss and head_loss_back share: the inputs they both have, and one token's logits in double. */
#ifndef GR_OPS_HEAD_LOSS_H
#define GR_OPS_HEAD_LOSS_H
#include <math.h>

#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

/* Where each input stands. */
typedef struct gr_head_at {
  int bias, a, b;
} gr_head_at;
enum { GR_HEAD_W, GR_HEAD_H, GR_HEAD_LABELS };
static const gr_head_at gr_head_forward_at = { 3, 4, 5 };
enum { GR_HEAD_BACK_LSE = 3, GR_HEAD_BACK_DNLL };
static const gr_head_at gr_head_back_at = { 5, 6, 7 };

static inline bool gr_head_has(const gr_op_call *c, int i) { return i < c->n_in && c->in[i].ne[0] > 0; }

gr_status gr_head_check(const gr_infer *c, const char *op, gr_head_at at, gr_error *e);

/* Token t: u[r] = A h (when there is an adapter), z[V] = logits, slope[V] = derivative of each logit to W h + bias + lora_scale B u.
 * row has room for D doubles. */
void gr_head_logits(const gr_op_call *c, gr_head_at at, int64_t t, double *row, double *u, double *z, double *slope);

/* ---- cases of both ops ---- */

typedef struct gr_head_case {
  gr_dtype type;
  int64_t width, vocab, n;
  gr_fill labels;
  struct gr_head_params params;
  bool bias;
  int64_t rank;
  double size;   /* of h; 0: 1 */
  double logits; /* how large they get, when that is much more than 1 */
  gr_layout layout;
} gr_head_case;

void gr_head_case_inputs(gr_case *c, gr_head_at at, const gr_head_case *h);
/* As for attention. */
gr_tolerance gr_head_case_tolerance(const gr_head_case *h, bool back);
/* Case i of those that both ops have; false past the end. */
bool gr_head_case_get(int i, gr_head_case *h, const char **name, unsigned *flags);

#endif
