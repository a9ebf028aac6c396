/* What the ops over stacks of experts share: the pairs (slot, token), their grouping by expert, and checks of both.
 *
 * Pair p = slot + k * token of ids [k,n] goes to expert ids[slot,token]; an id outside [0,E) routes it nowhere. The grouping of the pairs
 * is perm [k,n], the pairs sorted by expert, ascending within one, then -1 for every pair that goes nowhere, and offsets [E+1]: those of
 * expert e are perm[offsets[e]] to perm[offsets[e+1] - 1]. group_experts makes it once a layer and step (A7). */
#ifndef GR_OPS_EXPERTS_H
#define GR_OPS_EXPERTS_H
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

/* Inputs 2, 3 and 4 of matmul_id, matmul_id_back and out_prod_id. */
enum { GR_EXPERTS_IDS = 2, GR_EXPERTS_PERM, GR_EXPERTS_OFFSETS };

/* Shapes and types of those inputs. */
gr_status gr_experts_check(const gr_infer *c, const char *op, gr_error *e);
/* ids are I32 [k,n], and as many tokens as dimension `tokens` of t, which has k or (slots) a divisor of k along the one before. */
gr_status gr_experts_check_ids(const char *op, const gr_tensor *ids, const gr_tensor *t, int tokens, bool slots, gr_error *e);
/* w is a stack [K,M,E] of weights with dense rows and as many experts as offsets tell. */
gr_status gr_experts_check_stack(const char *op, const gr_tensor *w, const gr_tensor *offsets, gr_error *e);

/* The expert of pair p, or -1. */
static inline int64_t gr_experts_of(const gr_array *ids, int64_t p, int64_t experts)
{
  int64_t id = (int64_t)gr_array_get(ids, p % ids->ne[0], p / ids->ne[0], 0, 0);
  return id >= 0 && id < experts ? id : -1;
}

/* ---- references ---- */

void gr_experts_group(const gr_array *ids, const gr_array *perm, const gr_array *offsets);
/* References route by ids, and make every output NaN when the grouping is not that of these ids: a stale one never passes for right. */
bool gr_experts_grouped(const gr_op_call *c);
/* Bytes of the matrices that can be touched: all of w, or one a pair when there are fewer pairs. */
double gr_experts_bytes(const gr_array *w, const gr_array *ids);
/* Of matmul_id and of its gradient: a product a pair, either way through the stack. */
void gr_experts_cost(const gr_op_call *c, gr_cost *k);

/* ---- cases ---- */

/* Writes the grouping of the ids. */
void gr_experts_prepare(gr_op_call *call);

/* Who goes where. */
typedef struct gr_experts_routing {
  const char *name;
  int64_t used, n, experts;
  gr_fill ids;
  unsigned flags;
} gr_experts_routing;

/* Routing i of those that every op here is tried with; false past the end. */
bool gr_experts_routing_get(int i, gr_experts_routing *r);

/* One application of matmul_id, or of one of its gradients: matrices [k,m], x with `slots` rows a token. layout and fill are those of the
 * gradient that arrives, or of x. */
typedef struct gr_experts_shape {
  gr_dtype type;
  int64_t k, m, slots;
  gr_layout layout, other; /* other: of out_prod_id's x, of the stack */
  gr_fill fill;
  gr_experts_routing routing;
} gr_experts_shape;

/* Fills inputs 0 and 1, parameters and what must be 0; ids and their grouping are there. */
typedef void gr_experts_fit(gr_case *c, const gr_experts_shape *shape);

void gr_experts_case(gr_case_sink *s, gr_experts_fit *fit, const gr_case *c, const gr_experts_shape *shape);
/* Every routing with one row for all slots, one for each and one for some; every layout; and with `stack` every type of weight, long sums
 * and rows. */
void gr_experts_cases(gr_case_sink *s, gr_experts_fit *fit, bool stack);
void gr_experts_refusals(gr_case_sink *s, gr_experts_fit *fit, bool stack);
/* Shapes of models: the stack's own, and of an adapter's two. */
void gr_experts_perf(gr_case_sink *s, gr_experts_fit *fit, bool stack);

/* Tokens (along dimension `dim` of output 0) all of whose pairs go nowhere, and experts without pairs, must be exactly 0. */
void gr_experts_zero_tokens(gr_case *c, const gr_experts_routing *r, int dim);
void gr_experts_zero_experts(gr_case *c, const gr_experts_routing *r, int dim);

/* Errors by expert (C4): of rows [.,k,n], one a pair, and of stacks [.,.,E]. */
int64_t gr_experts_slice_pairs(const gr_op_call *c, int out, const int64_t at[GR_DIMS]);
int64_t gr_experts_slice_stack(const gr_op_call *c, int out, const int64_t at[GR_DIMS]);

#endif
