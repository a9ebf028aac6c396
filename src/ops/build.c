/* Building graphs: leaves and nodes, shapes by each op's infer, the first error kept. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/op.h"

gr_graph *gr_graph_create(void)
{
  gr_graph *g = gr_calloc(1, sizeof *g);
  if (g) g->layer = -1;
  return g;
}

void gr_graph_free(gr_graph *g)
{
  if (!g) return;
  gr_free(g->nodes);
  gr_free(g->tensors);
  gr_arena_free(&g->arena);
  gr_free(g);
}

gr_status gr_graph_status(const gr_graph *g, gr_error *e)
{
  if (g->error.status != GR_OK && e) *e = g->error;
  return g->error.status;
}

gr_status gr_graph_fail(gr_graph *g, gr_status status, const char *fmt, ...)
{
  if (g->error.status != GR_OK) return g->error.status;
  char text[sizeof g->error.text];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return gr_fail(&g->error, status, "%s", text);
}

static void *graph_out_of_memory(gr_graph *g)
{
  gr_graph_fail(g, GR_ERR_MEMORY, "out of memory while building the graph");
  return NULL;
}

static gr_tensor *new_tensor(gr_graph *g)
{
  gr_tensor *t = gr_arena_alloc(&g->arena, sizeof *t);
  if (!t || !gr_grow((void **)&g->tensors, &g->tensors_cap, g->n_tensors + 1, sizeof *g->tensors)) return graph_out_of_memory(g);
  t->graph = g;
  t->name = "";
  t->id = (uint32_t)g->n_tensors;
  g->tensors[g->n_tensors++] = t;
  return t;
}

gr_tensor *gr_tensor_name(gr_tensor *t, const char *fmt, ...)
{
  if (!t) return NULL;
  char text[128];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  char *copy = gr_arena_strndup(&t->graph->arena, text, strlen(text));
  if (!copy) return graph_out_of_memory(t->graph);
  t->name = copy;
  if (t->node && t->output == 0) t->node->name = copy;
  return t;
}

const char *gr_tensor_describe(const gr_tensor *t, char *text, size_t size)
{
  if (!t) {
    snprintf(text, size, "nothing");
    return text;
  }
  int last = GR_DIMS - 1;
  while (last > 0 && t->ne[last] == 1) last--;
  int used = snprintf(text, size, "%s%s(%s [", t->name, t->name[0] ? " " : "", gr_dtype_name(t->dtype));
  for (int i = 0; i <= last && used > 0 && (size_t)used < size; i++)
    used += snprintf(text + used, size - (size_t)used, i ? ", %lld" : "%lld", (long long)t->ne[i]);
  if (used > 0 && (size_t)used < size) snprintf(text + used, size - (size_t)used, "])");
  return text;
}

/* Shapes are multiplied all over; keeping every tensor below 2^62 bytes here makes those products safe. */
static bool sizes_fit(gr_dtype dtype, const int64_t ne[GR_DIMS])
{
  const gr_dtype_info *d = gr_dtype_get(dtype);
  if (ne[0] < 0 || ne[0] % d->block_elems) return false;
  int64_t limit = (INT64_C(1) << 62) / d->block_bytes, count = 1;
  for (int i = 0; i < GR_DIMS; i++) {
    if (ne[i] < 0 || (ne[i] > 0 && count > limit / ne[i])) return false;
    if (ne[i] > 0) count *= ne[i];
  }
  return true;
}

gr_tensor *gr_graph_leaf(gr_graph *g, gr_leaf leaf, gr_dtype dtype, const int64_t ne[GR_DIMS], const uint8_t *dims, void *data,
                         const char *name)
{
  if (g->error.status != GR_OK) return NULL;
  if (!sizes_fit(dtype, ne)) {
    gr_graph_fail(g, GR_ERR_FORMAT, "%s: a %s tensor cannot have the shape [%lld, %lld, %lld, %lld]", name, gr_dtype_name(dtype),
                  (long long)ne[0], (long long)ne[1], (long long)ne[2], (long long)ne[3]);
    return NULL;
  }
  gr_tensor *t = new_tensor(g);
  if (!t) return NULL;
  t->leaf = (uint8_t)leaf;
  t->dtype = dtype;
  t->data = data;
  memcpy(t->ne, ne, sizeof t->ne);
  if (dims) memcpy(t->dim, dims, sizeof t->dim);
  gr_strides_contiguous(dtype, t->ne, t->nb);
  return gr_tensor_name(t, "%s", name ? name : "");
}

static gr_tensor *add_output(gr_graph *g, gr_node *node, int i, const gr_infer_out *o)
{
  if (!sizes_fit(o->dtype, o->ne)) {
    gr_graph_fail(g, GR_ERR_MEMORY, "%s: the result would have the shape [%lld, %lld, %lld, %lld], too large to hold", gr_op_name(node->op),
                  (long long)o->ne[0], (long long)o->ne[1], (long long)o->ne[2], (long long)o->ne[3]);
    return NULL;
  }
  gr_tensor *t = new_tensor(g);
  if (!t) return NULL;
  t->dtype = o->dtype;
  t->node = node;
  t->output = (uint8_t)i;
  memcpy(t->ne, o->ne, sizeof t->ne);
  memcpy(t->dim, o->dim, sizeof t->dim);
  if (o->view_of) {
    t->base = o->view_of->base ? o->view_of->base : o->view_of;
    t->offset = o->view_of->offset + o->offset;
    memcpy(t->nb, o->nb, sizeof t->nb);
  } else {
    gr_strides_contiguous(o->dtype, t->ne, t->nb);
  }
  return t;
}

gr_tensor *gr_graph_node(gr_graph *g, gr_op_id id, gr_tensor *const *in, int n_in, const void *params)
{
  if (g->error.status != GR_OK) return NULL;
  const gr_op *op = gr_op_get(id);
  gr_infer c = { .params = params, .n_in = n_in, .n_out = op->outputs, .in = in };
  for (int i = 0; i < GR_OUT_MAX; i++) c.out[i] = (gr_infer_out){ .dtype = GR_F32, .ne = { 1, 1, 1, 1 } };
  bool missing = n_in < op->inputs_min || n_in > op->inputs_max;
  for (int i = 0; i < op->inputs_min && !missing; i++) missing = !in[i];
  if (missing) {
    gr_graph_fail(g, GR_ERR_USAGE, "%s: an input is missing", gr_op_name(id));
    return NULL;
  }
  if (op->infer(&c, &g->error) != GR_OK) return NULL;
  gr_node *node = gr_arena_alloc(&g->arena, sizeof *node);
  if (!node || !gr_grow((void **)&g->nodes, &g->nodes_cap, g->n_nodes + 1, sizeof *g->nodes)) return graph_out_of_memory(g);
  node->op = id;
  node->n_in = (uint8_t)n_in;
  node->n_out = (uint8_t)c.n_out;
  node->layer = g->layer;
  node->phase = g->phase;
  node->name = "";
  node->id = (uint32_t)g->n_nodes;
  for (int i = 0; i < n_in; i++) node->in[i] = in[i];
  if (op->params_bytes) memcpy(node->params, params, op->params_bytes);
  for (int i = 0; i < c.n_out; i++)
    if (!(node->out[i] = add_output(g, node, i, &c.out[i]))) return NULL;
  g->nodes[g->n_nodes++] = node;
  return node->out[0];
}

void gr_infer_dim(gr_infer_out *o, int to, const gr_tensor *t, int from)
{
  o->ne[to] = t->ne[from];
  o->dim[to] = t->dim[from];
}

void gr_infer_like(gr_infer_out *o, const gr_tensor *t)
{
  for (int i = 0; i < GR_DIMS; i++) gr_infer_dim(o, i, t, i);
}

gr_status gr_infer_need_f32(const gr_infer *c, const char *op, unsigned mask, gr_error *e)
{
  for (int i = 0; i < c->n_in; i++)
    if ((mask >> i & 1) && c->in[i] && c->in[i]->dtype != GR_F32) {
      char text[160];
      return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: input %d must be F32, not %s", op, i, gr_tensor_describe(c->in[i], text, sizeof text));
    }
  return GR_OK;
}

bool gr_tensor_same_shape(const gr_tensor *a, const gr_tensor *b)
{
  return gr_shape_equal(a->ne, b->ne) && memcmp(a->dim, b->dim, sizeof a->dim) == 0;
}

bool gr_tensor_repeats(const gr_tensor *part, const gr_tensor *whole)
{
  if (!gr_shape_repeats(part->ne, whole->ne)) return false;
  for (int i = 0; i < GR_DIMS; i++)
    if (part->dim[i] != whole->dim[i] && !(part->dim[i] == GR_DIM_STATIC && part->ne[i] == 1)) return false;
  return true;
}

gr_status gr_infer_need_same(const char *op, const gr_tensor *a, const gr_tensor *b, gr_error *e)
{
  char x[160], y[160];
  if (gr_tensor_same_shape(a, b)) return GR_OK;
  return gr_fail(e, GR_ERR_MISMATCH, "%s: %s and %s differ in shape", op, gr_tensor_describe(a, x, sizeof x),
                 gr_tensor_describe(b, y, sizeof y));
}

gr_status gr_infer_need_channels(const char *op, const gr_tensor *w, const gr_tensor *x, gr_error *e)
{
  char a[160], b[160];
  if (w->ne[0] == x->ne[0] && w->ne[1] == 1 && w->ne[2] == 1 && w->ne[3] == 1) return GR_OK;
  return gr_fail(e, GR_ERR_MISMATCH, "%s: %s is not one weight for each channel of %s", op, gr_tensor_describe(w, a, sizeof a),
                 gr_tensor_describe(x, b, sizeof b));
}

gr_status gr_backward_refuse(const gr_backward *b, unsigned mask, const char *what, gr_error *e)
{
  for (int i = 0; i < b->node->n_in; i++)
    if ((mask >> i & 1) && b->wants[i]) {
      char text[160];
      return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: %s has no gradient: %s", gr_op_name(b->node->op),
                     gr_tensor_describe(b->node->in[i], text, sizeof text), what);
    }
  return GR_OK;
}
