/* Memory: an offset in its backend's arena for every place, so that two that are alive at the same launch never overlap.
 * Greedy by size: the largest first, each at the lowest offset that is free for the whole of its life. */
#include <stdlib.h>

#include "base/alloc.h"
#include "graph/plan.h"

enum { ALIGN = 64 };

static size_t align_up(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Output k of launch i. */
static void share_output(gr_plan *p, size_t i, int k)
{
  const gr_launch *l = &p->launches[i];
  int at = gr_op_alias(gr_op_get(l->node->op), k);
  if (at < 0 || at >= l->node->n_in || l->in[at] < 0) return;
  gr_place *from = &p->places[l->in[at]], *to = &p->places[l->out[k]];
  const gr_tensor *x = l->node->in[at];
  for (int j = 0; j < l->node->n_in; j++)
    if (j != at && l->in[j] == l->in[at]) return;
  if (from->external || from->last != i || from->root->leaf != GR_LEAF_NONE || from->bytes != to->bytes || x->offset ||
      !gr_tensor_contiguous(x))
    return;
  to->shares = l->in[at];
}

/* An op that may write over an input takes its storage when that input dies there. Saves a pass over memory as well as bytes. */
static void share_storage(gr_plan *p)
{
  for (size_t i = 0; i < p->n_launches; i++)
    for (int k = 0; p->launches[i].node && k < p->launches[i].node->n_out; k++) share_output(p, i, k);
}

/* Follows shares to the place that owns the storage. */
static int32_t owner(const gr_plan *p, int32_t i)
{
  while (p->places[i].shares >= 0) i = p->places[i].shares;
  return i;
}

struct item {
  size_t index, bytes, first, last, offset;
};

static int larger_first(const void *a, const void *b)
{
  const struct item *x = a, *y = b;
  if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
  return x->index < y->index ? -1 : 1;
}

static int lower_first(const void *a, const void *b)
{
  const struct item *x = *(struct item *const *)a, *y = *(struct item *const *)b;
  return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Lowest gap of item i among the placed items it overlaps in time. near is scratch for all of them. */
static size_t find_gap(struct item *items, size_t i, struct item **near)
{
  size_t n = 0, at = 0;
  for (size_t k = 0; k < i; k++)
    if (items[k].first <= items[i].last && items[i].first <= items[k].last) near[n++] = &items[k];
  qsort(near, n, sizeof *near, lower_first);
  for (size_t k = 0; k < n; k++) {
    if (near[k]->offset >= at + items[i].bytes) break;
    if (near[k]->offset + near[k]->bytes > at) at = near[k]->offset + near[k]->bytes;
  }
  return at;
}

static gr_status layout_backend(gr_plan *p, size_t backend, struct item *items, struct item **near, gr_error *e)
{
  size_t n = 0;
  for (size_t i = 0; i < p->n_places; i++) {
    const gr_place *pl = &p->places[i];
    if (pl->backend != backend || pl->external || pl->shares >= 0) continue;
    items[n++] = (struct item){ i, align_up(pl->bytes), pl->first, pl->last, 0 };
  }
  for (size_t i = 0; i < p->n_places; i++) /* a taker's life is its owner's too */
    if (p->places[i].backend == backend && p->places[i].shares >= 0) {
      int32_t o = owner(p, (int32_t)i);
      for (size_t k = 0; k < n; k++)
        if (items[k].index == (size_t)o && items[k].last < p->places[i].last) items[k].last = p->places[i].last;
    }
  qsort(items, n, sizeof *items, larger_first);
  for (size_t i = 0; i < n; i++) {
    items[i].offset = find_gap(items, i, near);
    size_t end;
    if (!gr_add_size(items[i].offset, items[i].bytes, &end))
      return gr_fail(e, GR_ERR_MEMORY, "the plan needs more memory than addresses can name");
    p->places[items[i].index].offset = items[i].offset;
    if (end > p->arena_bytes[backend]) p->arena_bytes[backend] = end;
  }
  for (size_t i = 0; i < p->n_places; i++)
    if (p->places[i].backend == backend && p->places[i].shares >= 0) p->places[i].offset = p->places[owner(p, (int32_t)i)].offset;
  return GR_OK;
}

static size_t scratch_of(const gr_plan *p, const gr_launch *l)
{
  if (!l->node || !l->row->scratch) return 0;
  gr_op_call call;
  gr_node_call(l->node, NULL, &call);
  return align_up(l->row->scratch(&call, gr_pool_threads(p->backends[l->backend]->pool)));
}

static void size_scratch(gr_plan *p)
{
  for (size_t i = 0; i < p->n_launches; i++) {
    const gr_launch *l = &p->launches[i];
    size_t bytes = 0;
    for (int k = 0; k <= l->joined; k++) bytes += scratch_of(p, &l[k]);
    if (bytes > p->scratch_bytes[l->backend]) p->scratch_bytes[l->backend] = bytes;
  }
}

gr_status gr_plan_layout(gr_plan *p, gr_error *e)
{
  share_storage(p);
  struct item *items = gr_calloc(p->n_places, sizeof *items), **near = gr_calloc(p->n_places, sizeof *near);
  gr_status s = items && near ? GR_OK : gr_fail_memory(e, p->n_places * sizeof *items);
  for (size_t b = 0; b < p->n_backends && s == GR_OK; b++) s = layout_backend(p, b, items, near, e);
  if (s == GR_OK) size_scratch(p);
  gr_free(items);
  gr_free(near);
  return s;
}
