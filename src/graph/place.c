/* Schedule to launches: which backend runs each node, where each tensor's storage stands, and the copies between backends. */
#include <string.h>

#include "base/alloc.h"
#include "graph/plan.h"

gr_array gr_tensor_array(const gr_tensor *t, const int64_t *live)
{
  gr_array a = { .dtype = t->dtype };
  for (int i = 0; i < GR_DIMS; i++) {
    int64_t now = live && t->dim[i] != GR_DIM_STATIC ? live[t->dim[i]] : -1;
    a.ne[i] = now >= 0 && now < t->ne[i] ? now : t->ne[i];
    a.nb[i] = t->nb[i];
  }
  return a;
}

void gr_node_call(const gr_node *node, const int64_t *live, gr_op_call *call)
{
  *call = (gr_op_call){ .op = node->op, .params = node->params, .n_in = node->n_in, .n_out = node->n_out };
  for (int k = 0; k < node->n_in; k++)
    if (node->in[k]) call->in[k] = gr_tensor_array(node->in[k], live);
  for (int k = 0; k < node->n_out; k++) call->out[k] = gr_tensor_array(node->out[k], live);
}

size_t gr_tensor_bytes(const gr_tensor *t)
{
  size_t bytes = 0;
  gr_array_extent(t->dtype, t->ne, t->nb, &bytes);
  return bytes;
}

static gr_status add_place(gr_plan *p, const gr_tensor *root, size_t backend, int32_t *index, gr_error *e)
{
  if (!gr_grow((void **)&p->places, &p->places_cap, p->n_places + 1, sizeof *p->places))
    return gr_fail_memory(e, p->places_cap * sizeof *p->places);
  *index = (int32_t)p->n_places;
  p->places[p->n_places++] = (gr_place){ .root = root,
                                         .backend = backend,
                                         .bytes = gr_tensor_bytes(root),
                                         .first = p->n_launches,
                                         .last = p->n_launches,
                                         .shares = -1,
                                         .external = gr_leaf_external(root) && p->backends[backend]->ops->host_memory };
  p->place_of[root->id * p->n_backends + backend] = *index;
  return GR_OK;
}

static gr_status add_launch(gr_plan *p, const gr_launch *l, gr_error *e)
{
  if (!gr_grow((void **)&p->launches, &p->launches_cap, p->n_launches + 1, sizeof *p->launches))
    return gr_fail_memory(e, p->launches_cap * sizeof *p->launches);
  p->launches[p->n_launches++] = *l;
  return GR_OK;
}

static size_t host_backend(const gr_plan *p)
{
  for (size_t i = 0; i < p->n_backends; i++)
    if (p->backends[i]->ops->host_memory) return i;
  return p->n_backends;
}

/* Leaves stand where they are read without a copy launched at every run: external ones on any host backend (they are read in
 * place), weights on any device (uploaded once, when memory is taken), inputs where they are read first. Adapters and caches change
 * between runs: a device gets them by a copy from the host. */
static bool stands_without_copy(const gr_plan *p, const gr_tensor *root, size_t backend, bool first)
{
  if (gr_leaf_external(root) && p->backends[backend]->ops->host_memory) return true;
  return root->leaf == GR_LEAF_WEIGHT || (root->leaf == GR_LEAF_INPUT && first);
}

static gr_status add_leaf(gr_plan *p, const gr_tensor *root, size_t backend, int32_t *index, gr_error *e)
{
  GR_TRY(add_place(p, root, backend, index, e));
  p->places[*index].first = 0; /* written before the run, whenever it is read */
  return GR_OK;
}

/* Where a copy of t can come from; a leaf that stands nowhere yet is put on the host for it. */
static gr_status find_origin(gr_plan *p, const gr_tensor *root, int32_t *from, gr_error *e)
{
  const int32_t *row = &p->place_of[root->id * p->n_backends];
  *from = -1;
  for (size_t i = 0; i < p->n_backends && *from < 0; i++) *from = row[i];
  if (*from >= 0) return GR_OK;
  size_t host = host_backend(p);
  if (root->node) return gr_fail(e, GR_ERR_MISMATCH, "%s is used before it is computed", root->name);
  if (host == p->n_backends) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s lives on the host, and no backend of this plan does", root->name);
  return add_leaf(p, root, host, from, e);
}

/* The place of t on a backend, with a copy launched when it stands only elsewhere. */
static gr_status reach(gr_plan *p, const gr_tensor *t, size_t backend, int32_t *index, gr_error *e)
{
  const gr_tensor *root = gr_tensor_root(t);
  int32_t *row = &p->place_of[root->id * p->n_backends];
  bool anywhere = false;
  for (size_t i = 0; i < p->n_backends; i++) anywhere |= row[i] >= 0;
  if (row[backend] < 0 && root->leaf != GR_LEAF_NONE && stands_without_copy(p, root, backend, !anywhere)) {
    int32_t placed;
    GR_TRY(add_leaf(p, root, backend, &placed, e));
  }
  if (row[backend] < 0) {
    int32_t from, to;
    GR_TRY(find_origin(p, root, &from, e));
    GR_TRY(add_place(p, root, backend, &to, e));
    gr_launch copy = { .backend = backend, .copied = root };
    copy.in[0] = from;
    copy.out[0] = to;
    p->places[from].last = p->n_launches;
    GR_TRY(add_launch(p, &copy, e));
  }
  *index = row[backend];
  p->places[*index].last = p->n_launches;
  return GR_OK;
}

static const gr_kernel_row *find_row(const gr_plan *p, size_t backend, const gr_op_call *call)
{
  const gr_backend *b = p->backends[backend];
  if (strcmp(b->ops->name, "ref") == 0 && !p->options.allow_ref) return NULL;
  /* An op that writes external memory in place runs where that memory is. */
  if ((gr_op_get(call->op)->flags & GR_OP_INPLACE) && !b->ops->host_memory) return NULL;
  return gr_backend_find(b, call);
}

bool gr_plan_choose(const gr_plan *p, const gr_node *node, size_t *backend, const gr_kernel_row **row)
{
  gr_op_call call;
  gr_node_call(node, NULL, &call);
  size_t wish = p->options.prefer ? p->options.prefer(p->options.prefer_ctx, node) : p->n_backends;
  if (wish < p->n_backends && (*row = find_row(p, wish, &call))) {
    *backend = wish;
    return true;
  }
  for (*backend = 0; *backend < p->n_backends; ++*backend)
    if ((*row = find_row(p, *backend, &call))) return true;
  return false;
}

static gr_status place_node(gr_plan *p, gr_node *node, gr_error *e)
{
  const gr_op *op = gr_op_get(node->op);
  if (op->flags & GR_OP_VIEW) return GR_OK;
  gr_launch l = { .node = node };
  char text[160];
  if (!gr_plan_choose(p, node, &l.backend, &l.row))
    return gr_fail(e, GR_ERR_UNSUPPORTED, "no backend has a kernel for %s giving %s", gr_op_name(node->op),
                   gr_tensor_describe(node->out[0], text, sizeof text));
  for (int k = 0; k < GR_IN_MAX; k++) l.in[k] = -1;
  for (int k = 0; k < GR_OUT_MAX; k++) l.out[k] = -1;
  /* Twice: copies move the launch index, and every input must be alive at the node's own. */
  for (int round = 0; round < 2; round++)
    for (int k = 0; k < node->n_in; k++)
      if (node->in[k]) GR_TRY(reach(p, node->in[k], l.backend, &l.in[k], e));
  for (int k = 0; k < node->n_out; k++) {
    const gr_tensor *t = node->out[k];
    if (t->base) l.out[k] = l.in[0]; /* in place */
    else GR_TRY(add_place(p, t, l.backend, &l.out[k], e));
  }
  return add_launch(p, &l, e);
}

/* An output that stands only on a device is still read from there; an output that is a leaf or a view needs its root alive. */
static gr_status keep_outputs(gr_plan *p, gr_error *e)
{
  for (size_t i = 0; i < p->n_outputs; i++) {
    const gr_tensor *root = gr_tensor_root(p->outputs[i]);
    bool found = false;
    for (size_t b = 0; b < p->n_backends; b++) {
      int32_t at = p->place_of[root->id * p->n_backends + b];
      if (at < 0) continue;
      p->places[at].last = SIZE_MAX;
      found = true;
    }
    if (!found) return gr_fail(e, GR_ERR_MISMATCH, "output %zu (%s) is not computed by the graph", i, p->outputs[i]->name);
  }
  /* Leaves that are written before a run and anything external stay for good. */
  for (size_t i = 0; i < p->n_places; i++)
    if (p->places[i].root->leaf != GR_LEAF_NONE) p->places[i].last = SIZE_MAX;
  return GR_OK;
}

gr_status gr_plan_place(gr_plan *p, gr_error *e)
{
  p->n_tensors = p->graph->n_tensors;
  size_t n = p->n_tensors * p->n_backends;
  p->place_of = gr_alloc(n * sizeof *p->place_of);
  if (!p->place_of) return gr_fail_memory(e, n * sizeof *p->place_of);
  for (size_t i = 0; i < n; i++) p->place_of[i] = -1;
  for (size_t i = 0; i < p->n_schedule; i++) GR_TRY(place_node(p, p->schedule[i], e));
  return keep_outputs(p, e);
}
