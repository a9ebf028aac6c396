/* Reverse walk. Each op's own rule appends nodes; a tensor used several times gets the sum of its gradients, added in the
 * order of the walk, so that the same graph always gives the same bits. */
#include <string.h>

#include "base/alloc.h"
#include "graph/graph.h"

struct walk {
  gr_graph *graph;
  size_t n;         /* tensors when the walk began: all of the forward graph */
  bool *needs;      /* [n] on a path from a wanted tensor to out */
  gr_tensor **grad; /* [n] gradient so far */
};

static void mark_needs(struct walk *w, gr_tensor *const *wrt, size_t n, size_t n_nodes)
{
  for (size_t i = 0; i < n; i++) w->needs[wrt[i]->id] = true;
  for (size_t i = 0; i < n_nodes; i++) {
    const gr_node *node = w->graph->nodes[i];
    bool any = false;
    for (int k = 0; k < node->n_in; k++) any |= node->in[k] && w->needs[node->in[k]->id];
    for (int k = 0; k < node->n_out && any; k++) w->needs[node->out[k]->id] = gr_dtype_get(node->out[k]->dtype)->kind != GR_KIND_INT;
  }
}

static gr_status add_gradient(struct walk *w, const gr_node *node, int input, gr_tensor *grad, gr_error *e)
{
  gr_tensor *t = node->in[input], **sum = &w->grad[t->id];
  char a[160], b[160];
  if (!gr_shape_equal(grad->ne, t->ne) || grad->dtype != GR_F32)
    return gr_fail(e, GR_ERR_MISMATCH, "backward of %s gave %s for input %d, %s", gr_op_name(node->op),
                   gr_tensor_describe(grad, a, sizeof a), input, gr_tensor_describe(t, b, sizeof b));
  *sum = *sum ? gr_add(w->graph, *sum, grad) : grad;
  return gr_graph_status(w->graph, e);
}

static gr_status node_backward(struct walk *w, gr_node *node, gr_error *e)
{
  gr_backward b = { .graph = w->graph, .node = node };
  const gr_op *op = gr_op_get(node->op);
  bool arrives = false, wanted = false;
  for (int i = 0; i < node->n_out; i++) {
    b.dout[i] = w->grad[node->out[i]->id];
    arrives |= b.dout[i] != NULL;
  }
  for (int i = 0; i < node->n_in; i++) {
    b.wants[i] = node->in[i] && w->needs[node->in[i]->id];
    wanted |= b.wants[i];
  }
  if (!arrives || !wanted) return GR_OK;
  if (!op->backward)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "no gradient goes through %s (%s): the op has none", gr_op_name(node->op), node->name);
  w->graph->layer = node->layer;
  gr_status s = op->backward(&b, e);
  if (s == GR_OK) s = gr_graph_status(w->graph, e);
  for (int i = 0; i < node->n_in && s == GR_OK; i++) {
    if (!b.wants[i]) continue;
    if (!b.din[i]) s = gr_fail(e, GR_ERR_UNSUPPORTED, "%s (%s) has no gradient to its input %d", gr_op_name(node->op), node->name, i);
    else s = add_gradient(w, node, i, b.din[i], e);
  }
  return s;
}

gr_status gr_graph_backward(gr_graph *g, gr_tensor *out, gr_tensor *seed, gr_tensor *const *wrt, size_t n, gr_tensor **grads, gr_error *e)
{
  GR_TRY(gr_graph_status(g, e));
  if (!gr_shape_equal(out->ne, seed->ne)) {
    char a[160], b[160];
    return gr_fail(e, GR_ERR_MISMATCH, "the seed %s of a backward walk must have the shape of %s", gr_tensor_describe(seed, a, sizeof a),
                   gr_tensor_describe(out, b, sizeof b));
  }
  size_t n_nodes = g->n_nodes;
  struct walk w = { .graph = g, .n = g->n_tensors };
  w.needs = gr_calloc(w.n, sizeof *w.needs);
  w.grad = gr_calloc(w.n, sizeof(gr_tensor *));
  gr_status s = w.needs && w.grad ? GR_OK : gr_fail_memory(e, w.n * sizeof(gr_tensor *));
  if (s == GR_OK) {
    int32_t layer = g->layer;
    uint8_t phase = g->phase;
    g->phase = GR_PHASE_BACKWARD;
    mark_needs(&w, wrt, n, n_nodes);
    if (w.needs[out->id]) w.grad[out->id] = seed;
    for (size_t i = n_nodes; i-- > 0 && s == GR_OK;) s = node_backward(&w, g->nodes[i], e);
    g->layer = layer;
    g->phase = phase;
  }
  for (size_t i = 0; i < n && s == GR_OK; i++) grads[i] = w.grad[wrt[i]->id];
  gr_free(w.needs);
  gr_free(w.grad);
  return s;
}
