/* Checks and references that the ops over stacks of experts share. */
#include "ops/experts.h"

gr_status gr_experts_check_ids(const char *op, const gr_tensor *ids, const gr_tensor *t, int tokens, bool slots, gr_error *e)
{
  char a[160], b[160];
  gr_tensor_describe(ids, a, sizeof a);
  gr_tensor_describe(t, b, sizeof b);
  if (ids->dtype != GR_I32) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: ids must be I32, not %s", op, a);
  int64_t rows = t->ne[tokens - 1];
  bool fits = ids->ne[1] == t->ne[tokens] && ids->dim[1] == t->dim[tokens] && ids->ne[2] == 1 && ids->ne[3] == 1 && t->ne[3] == 1;
  if (!fits || ids->dim[0] != GR_DIM_STATIC || t->dim[tokens - 1] != GR_DIM_STATIC)
    return gr_fail(e, GR_ERR_MISMATCH, "%s: %s and ids %s differ in tokens", op, b, a);
  if (rows < 1 || (slots ? ids->ne[0] % rows != 0 : ids->ne[0] != rows))
    return gr_fail(e, GR_ERR_MISMATCH, "%s: %lld slots of ids %s cannot be met by the %lld of %s", op, (long long)ids->ne[0], a,
                   (long long)rows, b);
  return GR_OK;
}

gr_status gr_experts_check(const gr_infer *c, const char *op, gr_error *e)
{
  const gr_tensor *ids = c->in[GR_EXPERTS_IDS], *perm = c->in[GR_EXPERTS_PERM], *offsets = c->in[GR_EXPERTS_OFFSETS];
  char a[160], b[160];
  if (perm->dtype != GR_I32 || !gr_tensor_same_shape(perm, ids) || !gr_tensor_contiguous(perm))
    return gr_fail(e, GR_ERR_MISMATCH, "%s: perm %s is no grouping of ids %s", op, gr_tensor_describe(perm, a, sizeof a),
                   gr_tensor_describe(ids, b, sizeof b));
  if (offsets->dtype != GR_I32 || offsets->ne[0] < 2 || offsets->ne[1] != 1 || offsets->ne[2] != 1 || offsets->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "%s: offsets %s must be I32 [experts + 1]", op, gr_tensor_describe(offsets, a, sizeof a));
  return GR_OK;
}

gr_status gr_experts_check_stack(const char *op, const gr_tensor *w, const gr_tensor *offsets, gr_error *e)
{
  char a[160], b[160];
  gr_tensor_describe(w, a, sizeof a);
  if (gr_dtype_get(w->dtype)->kind == GR_KIND_INT) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: %s is not a stack of weights", op, a);
  if (w->ne[3] != 1) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: one stack of matrices, not %s", op, a);
  if (w->nb[0] != gr_dtype_get(w->dtype)->block_bytes) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: rows of %s must be dense", op, a);
  if (offsets->ne[0] != w->ne[2] + 1)
    return gr_fail(e, GR_ERR_MISMATCH, "%s: offsets %s are not those of %lld experts in %s", op, gr_tensor_describe(offsets, b, sizeof b),
                   (long long)w->ne[2], a);
  return GR_OK;
}

/* ---- references ---- */

void gr_experts_group(const gr_array *ids, const gr_array *perm, const gr_array *offsets)
{
  int64_t pairs = ids->ne[0] * ids->ne[1], experts = offsets->ne[0] - 1, next = 0;
  for (int64_t x = 0; x < experts; x++) {
    gr_array_set(offsets, x, 0, 0, 0, (double)next);
    for (int64_t p = 0; p < pairs; p++) {
      if (gr_experts_of(ids, p, experts) != x) continue;
      gr_array_set(perm, next % ids->ne[0], next / ids->ne[0], 0, 0, (double)p);
      next++;
    }
  }
  gr_array_set(offsets, experts, 0, 0, 0, (double)next);
  for (; next < pairs; next++) gr_array_set(perm, next % ids->ne[0], next / ids->ne[0], 0, 0, -1);
}

static bool grouped(const gr_array *ids, const gr_array *perm, const gr_array *offsets)
{
  int64_t pairs = ids->ne[0] * ids->ne[1], experts = offsets->ne[0] - 1, next = 0;
  for (int64_t x = 0; x < experts; x++) {
    if ((int64_t)gr_array_get(offsets, x, 0, 0, 0) != next) return false;
    for (int64_t p = 0; p < pairs; p++) {
      if (gr_experts_of(ids, p, experts) != x) continue;
      if ((int64_t)gr_array_get(perm, next % ids->ne[0], next / ids->ne[0], 0, 0) != p) return false;
      next++;
    }
  }
  if ((int64_t)gr_array_get(offsets, experts, 0, 0, 0) != next) return false;
  for (; next < pairs; next++)
    if ((int64_t)gr_array_get(perm, next % ids->ne[0], next / ids->ne[0], 0, 0) != -1) return false;
  return true;
}

bool gr_experts_grouped(const gr_op_call *c)
{
  bool right = grouped(&c->in[GR_EXPERTS_IDS], &c->in[GR_EXPERTS_PERM], &c->in[GR_EXPERTS_OFFSETS]);
  for (int i = 0; i < c->n_out; i++) gr_reference_fill(&c->out[i], right ? 0 : (double)NAN);
  return right;
}

double gr_experts_bytes(const gr_array *w, const gr_array *ids)
{
  int64_t pairs = gr_array_count(ids), experts = w->ne[2] < pairs ? w->ne[2] : pairs;
  return (double)gr_row_bytes(w->dtype, w->ne[0]) * (double)w->ne[1] * (double)experts;
}

void gr_experts_cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *w = &c->in[0], *ids = &c->in[GR_EXPERTS_IDS];
  *k = (gr_cost){ .flops = 2.0 * (double)w->ne[0] * (double)w->ne[1] * (double)gr_array_count(ids),
                  .bytes_read = gr_experts_bytes(w, ids) + 4 * (double)gr_array_count(&c->in[1]) + 8 * (double)gr_array_count(ids),
                  .bytes_written = 4 * (double)gr_array_count(&c->out[0]) };
}
