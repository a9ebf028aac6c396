/* Runs graphs by the references of their ops, one node after another, everything in host memory and kept.
 *
 * Wide, every F32 tensor is held as F64, so that a gradient can be checked far below the noise of floats; weights in other types
 * and integers stay as they are, their values being what they decode to. Views follow: offsets and strides are twice as long. */
#include <string.h>

#include "base/alloc.h"
#include "optest/internal.h"

static int64_t widen(const gr_interp *it, const gr_tensor *t) { return it->wide && t->dtype == GR_F32 ? 2 : 1; }

gr_status gr_interp_open(gr_interp *it, const gr_graph *g, bool wide, const gr_optest_swap *swap, gr_error *e)
{
  *it = (gr_interp){ .graph = g, .wide = wide, .swap = swap };
  for (int i = 0; i < GR_DIM_COUNT; i++) it->live[i] = -1;
  it->storage = gr_calloc(g->n_tensors, sizeof *it->storage);
  it->bytes = gr_calloc(g->n_tensors, sizeof *it->bytes);
  bool ok = it->storage && it->bytes;
  for (size_t i = 0; ok && i < g->n_tensors; i++) {
    const gr_tensor *t = g->tensors[i];
    if (t->base) continue;
    ok = gr_array_extent(t->dtype, t->ne, t->nb, &it->bytes[i]);
    it->bytes[i] *= (size_t)widen(it, t);
    ok = ok && (it->storage[i] = gr_alloc_aligned(it->bytes[i], 64));
    if (ok) gr_poison(it->storage[i], it->bytes[i], t->dtype);
  }
  if (ok) return GR_OK;
  gr_interp_close(it);
  return gr_fail(e, GR_ERR_MEMORY, "out of memory for the tensors of a case");
}

void gr_interp_close(gr_interp *it)
{
  for (size_t i = 0; it->storage && i < it->graph->n_tensors; i++) gr_free(it->storage[i]);
  gr_free(it->storage);
  gr_free(it->bytes);
  it->storage = NULL;
  it->bytes = NULL;
}

gr_array gr_interp_array(const gr_interp *it, const gr_tensor *t)
{
  const gr_tensor *root = t->base ? t->base : t;
  int64_t factor = widen(it, t);
  gr_array a = { .data = (char *)it->storage[root->id] + t->offset * factor, .dtype = factor == 2 ? GR_F64 : t->dtype };
  for (int i = 0; i < GR_DIMS; i++) {
    int64_t live = t->dim[i] == GR_DIM_STATIC ? -1 : it->live[t->dim[i]];
    a.ne[i] = live >= 0 && live < t->ne[i] ? live : t->ne[i];
    a.nb[i] = t->nb[i] * factor;
  }
  return a;
}

void gr_interp_call(const gr_interp *it, const gr_node *n, gr_op_call *call)
{
  *call = (gr_op_call){ .op = n->op, .params = n->params, .n_in = n->n_in, .n_out = n->n_out };
  for (int i = 0; i < n->n_in; i++)
    if (n->in[i]) call->in[i] = gr_interp_array(it, n->in[i]);
  for (int i = 0; i < n->n_out; i++) call->out[i] = gr_interp_array(it, n->out[i]);
}

void gr_interp_run(const gr_interp *it, size_t first, size_t end)
{
  for (size_t i = first; i < end; i++) {
    const gr_node *n = it->graph->nodes[i];
    const gr_op *op = gr_optest_op(it->swap, n->op);
    if (op->flags & GR_OP_VIEW) continue;
    gr_op_call call;
    gr_interp_call(it, n, &call);
    op->reference(&call);
  }
}

void gr_interp_poison(const gr_interp *it, const gr_tensor *t)
{
  const gr_tensor *root = t->base ? t->base : t;
  gr_poison(it->storage[root->id], it->bytes[root->id], root->dtype);
}
