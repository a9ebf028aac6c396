/* What route and route_back share, in double: gate values and the sum that weights are divided by. Formulas: gr_route_params. */
#ifndef GR_OPS_ROUTE_H
#define GR_OPS_ROUTE_H
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

/* Expert i of token t, or -1: ids outside [0,E) count for nothing. */
static inline int64_t gr_route_id(const gr_array *ids, int64_t i, int64_t t, int64_t experts)
{
  int64_t id = (int64_t)gr_array_get(ids, i, t, 0, 0);
  return id >= 0 && id < experts ? id : -1;
}

/* Writes the gate values g [E] of token t; SELECTED: only those of ids, the others are 0. */
void gr_route_gates(const struct gr_route_params *p, const gr_array *logits, const gr_array *ids, int64_t t, double *g);

/* What the weights of token t are divided by: *constant where no gradient passes through it. */
double gr_route_divisor(const struct gr_route_params *p, const gr_array *ids, int64_t t, const double *g, int64_t experts, bool *constant);

/* GR_OK, or what is wrong with the parameters. */
gr_status gr_route_check(const struct gr_route_params *p, const char *op, const gr_tensor *logits, gr_error *e);

/* Parameters that both ops are tried with: at most 7 experts are chosen. False past the end. */
bool gr_route_case_get(int i, struct gr_route_params *p);

#endif
