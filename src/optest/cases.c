/* Collecting the cases of an op, and making the graph of one. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "optest/internal.h"

/* Blocks of NaN before and after each input's elements: a multiple of 64 bytes for every type. */
enum { GUARD_BLOCKS = 64 };

static void *copy(gr_arena *arena, const void *p, size_t bytes)
{
  void *q = gr_arena_alloc(arena, bytes);
  if (q) memcpy(q, p, bytes);
  return q;
}

static void add(gr_case_sink *s, const gr_case *c)
{
  gr_case_list *l = (gr_case_list *)s;
  gr_case *d = copy(&l->arena, c, sizeof *c);
  l->failed = l->failed || !d || !gr_grow((void **)&l->items, &l->cap, l->n + 1, sizeof *l->items);
  if (l->failed) return;
  size_t params = gr_op_get(l->op)->params_bytes;
  if (params && c->params) l->failed = !(d->params = copy(&l->arena, c->params, params));
  d->name = c->name ? gr_arena_strndup(&l->arena, c->name, strlen(c->name)) : "";
  if (!d->tolerance.norm) d->tolerance = s->tolerance;
  if (!d->slice) d->slice = s->slice;
  if (!d->douts) d->douts = 1;
  for (int i = 0; i < GR_IN_MAX; i++) {
    gr_case_in *in = &d->in[i];
    if (!in->ne[0]) continue;
    if (d->n_in < i + 1) d->n_in = i + 1;
    for (int k = 1; k < GR_DIMS; k++)
      if (!in->ne[k]) in->ne[k] = 1;
    if (in->fill.n) l->failed = l->failed || !(in->fill.values = copy(&l->arena, in->fill.values, (size_t)in->fill.n * sizeof(double)));
  }
  l->items[l->n++] = d;
}

gr_status gr_case_list_make(gr_case_list *l, const gr_optest_swap *swap, gr_op_id op, gr_error *e)
{
  *l = (gr_case_list){ .sink = { .add = add }, .op = op };
  const gr_op *described = gr_optest_op(swap, op);
  if (described->cases) described->cases(&l->sink);
  if (!l->failed) return GR_OK;
  gr_case_list_free(l);
  return gr_fail(e, GR_ERR_MEMORY, "out of memory for the cases of %s", gr_op_name(op));
}

void gr_case_list_free(gr_case_list *l)
{
  gr_free(l->items);
  gr_arena_free(&l->arena);
  *l = (gr_case_list){ 0 };
}

const char *gr_case_describe(gr_op_id op, const gr_case *c, char *text, size_t size)
{
  static const char *const layouts[] = { "", " rows apart", " transposed", " offset", " broadcast" };
  size_t used = (size_t)snprintf(text, size, "%s(", gr_op_name(op));
  for (int i = 0; i < c->n_in && used < size; i++) {
    const gr_case_in *in = &c->in[i];
    gr_tensor t = { .name = "", .dtype = in->dtype };
    char one[128];
    memcpy(t.ne, in->ne, sizeof t.ne);
    if (in->ne[0]) gr_tensor_describe(&t, one, sizeof one);
    used += (size_t)snprintf(text + used, size - used, "%s%.*s%s", i ? ", " : "", in->ne[0] ? (int)strlen(one) - 2 : 1,
                             in->ne[0] ? one + 1 : "-", in->ne[0] ? layouts[in->layout] : "");
  }
  if (used < size) snprintf(text + used, size - used, ")%s%s", c->name[0] ? " " : "", c->name);
  return text;
}

/* Strides of an input, and where its first element is within its storage. */
static void place(const gr_case_in *in, int64_t nb[GR_DIMS], int64_t *offset)
{
  const gr_dtype_info *d = gr_dtype_get(in->dtype);
  int64_t gap = d->block_elems == 1 ? 3 : 1, unit = d->block_bytes;
  gr_strides_contiguous(in->dtype, in->ne, nb);
  *offset = GUARD_BLOCKS * unit;
  if (in->layout == GR_LAYOUT_OFFSET) *offset += gap * unit;
  if (in->layout == GR_LAYOUT_ROWS) {
    nb[1] += gap * unit;
    nb[2] = nb[1] * in->ne[1];
    nb[3] = nb[2] * in->ne[2];
  }
  if (in->layout == GR_LAYOUT_TRANSPOSED) {
    nb[1] = unit;
    nb[0] = unit * in->ne[1];
  }
  if (in->layout == GR_LAYOUT_BROADCAST) nb[1] = nb[2] = nb[3] = 0;
}

static gr_tensor *make_input(gr_graph *g, const gr_case_in *in, int i)
{
  int64_t nb[GR_DIMS], offset, ne[GR_DIMS] = { 0, 1, 1, 1 };
  size_t extent;
  char name[32];
  const gr_dtype_info *d = gr_dtype_get(in->dtype);
  gr_leaf leaf = in->leaf ? (gr_leaf)in->leaf : d->kind == GR_KIND_QUANT ? GR_LEAF_WEIGHT : GR_LEAF_INPUT;
  place(in, nb, &offset);
  if (!gr_array_extent(in->dtype, in->ne, nb, &extent)) extent = 0;
  ne[0] = ((int64_t)extent + offset) / d->block_bytes * d->block_elems + GUARD_BLOCKS * d->block_elems;
  snprintf(name, sizeof name, "in%d", i);
  gr_tensor *root = gr_graph_leaf(g, leaf, in->dtype, ne, NULL, NULL, name);
  gr_tensor *t = gr_graph_leaf(g, leaf, in->dtype, in->ne, in->dim, NULL, name);
  if (!root || !t) return NULL;
  t->base = root;
  t->offset = offset;
  memcpy(t->nb, nb, sizeof nb);
  return t;
}

gr_status gr_case_build(gr_case_graph *cg, gr_op_id op, const gr_case *c, gr_error *e)
{
  *cg = (gr_case_graph){ .graph = gr_graph_create() };
  if (!cg->graph) return gr_fail(e, GR_ERR_MEMORY, "out of memory for a graph");
  for (int i = 0; i < c->n_in; i++)
    if (c->in[i].ne[0]) cg->in[i] = make_input(cg->graph, &c->in[i], i);
  gr_tensor *out = gr_graph_node(cg->graph, op, cg->in, c->n_in, c->params);
  if (!out) {
    gr_status status = gr_graph_status(cg->graph, e);
    gr_case_graph_free(cg);
    return status;
  }
  cg->node = out->node;
  return GR_OK;
}

void gr_case_graph_free(gr_case_graph *cg)
{
  gr_graph_free(cg->graph);
  *cg = (gr_case_graph){ 0 };
}
