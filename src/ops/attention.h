/* What attention and attention_back share: which key a query sees, and the score of one pair, in double. */
#ifndef GR_OPS_ATTENTION_H
#define GR_OPS_ATTENTION_H
#include <math.h>

#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

/* Inputs of both ops, in this order; attention adds sinks (or not), attention_back adds out, lse and dout. */
enum {
  GR_ATTN_Q,
  GR_ATTN_K,
  GR_ATTN_V,
  GR_ATTN_POS_Q,
  GR_ATTN_SEG_Q,
  GR_ATTN_POS_K,
  GR_ATTN_SEG_K,
  GR_ATTN_SINKS,
  GR_ATTN_OUT = 7,
  GR_ATTN_LSE,
  GR_ATTN_DOUT
};

/* Key j is visible to query i iff they are of one segment (>= 0), the key is not ahead, and it is within the window. */
static inline bool gr_attention_visible(const gr_op_call *c, int64_t i, int64_t j)
{
  const struct gr_attention_params *p = c->params;
  int64_t seg = (int64_t)gr_array_get(&c->in[GR_ATTN_SEG_Q], i, 0, 0, 0);
  if (seg < 0 || seg != (int64_t)gr_array_get(&c->in[GR_ATTN_SEG_K], j, 0, 0, 0)) return false;
  int64_t ahead = (int64_t)gr_array_get(&c->in[GR_ATTN_POS_Q], i, 0, 0, 0) - (int64_t)gr_array_get(&c->in[GR_ATTN_POS_K], j, 0, 0, 0);
  return ahead >= 0 && (p->window == 0 || ahead < p->window);
}

/* The score of query i and key j in head h (softcap included), and by how much it grows with scale q.k. */
static inline double gr_attention_score(const gr_op_call *c, int64_t h, int64_t hk, int64_t i, int64_t j, double *slope)
{
  const struct gr_attention_params *p = c->params;
  const gr_array *q = &c->in[GR_ATTN_Q], *k = &c->in[GR_ATTN_K];
  double dot = 0;
  for (int64_t d = 0; d < q->ne[0]; d++) dot += gr_array_get(q, d, h, i, 0) * gr_array_get(k, d, hk, j, 0);
  double z = (double)p->scale * dot;
  *slope = 1;
  if (!(p->softcap > 0)) return z;
  double t = tanh(z / (double)p->softcap);
  *slope = 1 - t * t;
  return (double)p->softcap * t;
}

/* Pairs of a query and a visible key, of all heads, when what stands in the inputs is one segment in ascending positions of which the
 * queries are the last: what costs count. Which pairs are visible is data; several segments side by side see fewer. */
double gr_attention_pairs(const gr_op_call *c);

/* Shapes, types and tags of the seven inputs that both ops have. */
gr_status gr_attention_check(const gr_infer *c, const char *op, gr_error *e);

/* ---- cases of both ops ---- */

/* Positions and segments of n queries and m keys. Queries are the last n of the keys' tokens when there are more keys. */
typedef struct gr_attention_case {
  int64_t head, width, heads, kv_heads, n, m;
  const double *pos_q, *seg_q, *pos_k, *seg_k; /* n, n, m, m: NULL is one segment, counted from 0 */
  struct gr_attention_params params;
  gr_fill q;        /* scores grow with it; bf16: so are all operands */
  double scores;    /* how large they get, when that is much more than 1 */
  gr_layout layout; /* of q, k and v */
  uint8_t key_dim;  /* GR_DIM_TOKENS when training, GR_DIM_KEYS over a cache */
} gr_attention_case;

/* Fills inputs 0 to 6 of a case; room keeps counted positions while the case is being added. */
enum { GR_ATTENTION_CASE_MAX = 160 };
void gr_attention_case_inputs(gr_case *c, const gr_attention_case *a, double room[2][GR_ATTENTION_CASE_MAX]);
/* Rounding a score of size S to a float moves a probability by S * 6e-8 of itself: so far a gradient may honestly be off, and one with
 * operands staged in half is off by 70. The forward is not: its large probabilities are 1. Worst of nine seeds and two instruction sets.
 * `size`: of the gradient that arrives, 0 in the forward. */
gr_tolerance gr_attention_case_tolerance(const gr_attention_case *a, double size);
/* The same for shapes too long for lists: one segment, positions counted. */
void gr_attention_case_perf(gr_case *c, const gr_attention_case *a);
/* Case i of those that both ops have; false past the end. */
bool gr_attention_case_get(int i, gr_attention_case *a, const char **name, unsigned *flags);

#endif
