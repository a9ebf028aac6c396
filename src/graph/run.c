/* Executing a plan: addresses, live sizes, launches. Nothing here allocates after gr_plan_allocate. */
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/numa.h"
#include "graph/plan.h"

/* ---- memory ---- */

size_t gr_plan_bytes(const gr_plan *p, size_t backend)
{
  return backend < p->n_backends ? p->arena_bytes[backend] + p->scratch_bytes[backend] : 0;
}

/* Scratch is not spread over nodes: it is cut by thread, and a thread touches its own first. */
static gr_status allocate_backend(gr_plan *p, size_t i, gr_error *e)
{
  gr_backend *b = p->backends[i];
  if (p->arena_bytes[i]) GR_TRY(b->ops->alloc(b, p->arena_bytes[i], &p->arena[i], e));
  if (p->arena[i] && b->ops->host_memory) gr_numa_spread(b->pool, p->arena[i], p->arena_bytes[i]);
  if (p->scratch_bytes[i]) GR_TRY(b->ops->alloc(b, p->scratch_bytes[i], &p->scratch[i], e));
  return GR_OK;
}

static size_t staging_bytes(const gr_plan *p)
{
  size_t most = 0;
  for (size_t i = 0; i < p->n_launches; i++) {
    const gr_launch *l = &p->launches[i];
    if (l->node || p->backends[l->backend]->ops->host_memory || p->backends[p->places[l->in[0]].backend]->ops->host_memory) continue;
    if (p->places[l->in[0]].bytes > most) most = p->places[l->in[0]].bytes;
  }
  return most;
}

static gr_status upload_weights(gr_plan *p, gr_error *e)
{
  for (size_t i = 0; i < p->n_places; i++) {
    gr_place *pl = &p->places[i];
    gr_backend *b = p->backends[pl->backend];
    if (pl->root->leaf != GR_LEAF_WEIGHT || pl->external) continue;
    GR_TRY(b->ops->write(b, pl->address, pl->root->data, pl->bytes, e));
  }
  return GR_OK;
}

gr_status gr_plan_allocate(gr_plan *p, gr_error *e)
{
  if (p->allocated) return GR_OK;
  for (size_t i = 0; i < p->n_backends; i++) GR_TRY(allocate_backend(p, i, e));
  p->staging_bytes = staging_bytes(p);
  if (p->staging_bytes && !(p->staging = gr_alloc(p->staging_bytes))) return gr_fail_memory(e, p->staging_bytes);
  for (size_t i = 0; i < p->n_places; i++)
    if (!p->places[i].external) p->places[i].address = (char *)p->arena[p->places[i].backend] + p->places[i].offset;
  p->allocated = true;
  return upload_weights(p, e);
}

void gr_plan_free(gr_plan *p)
{
  if (!p) return;
  for (size_t i = 0; i < p->n_backends; i++) {
    if (p->arena[i]) p->backends[i]->ops->free(p->backends[i], p->arena[i]);
    if (p->scratch[i]) p->backends[i]->ops->free(p->backends[i], p->scratch[i]);
  }
  gr_free(p->staging);
  gr_free(p->schedule);
  gr_free(p->outputs);
  gr_free(p->launches);
  gr_free(p->places);
  gr_free(p->place_of);
  gr_free(p);
}

gr_status gr_plan_create(gr_plan **out, gr_graph *g, gr_tensor *const *outputs, size_t n_outputs, const gr_plan_options *o, gr_error *e)
{
  GR_TRY(gr_graph_status(g, e));
  if (o->n_backends == 0 || o->n_backends > GR_BACKENDS_MAX)
    return gr_fail(e, GR_ERR_USAGE, "a plan needs 1 to %d backends", GR_BACKENDS_MAX);
  gr_plan *p = gr_calloc(1, sizeof *p);
  if (!p) return gr_fail_memory(e, sizeof *p);
  p->graph = g;
  p->options = *o;
  p->n_backends = o->n_backends;
  for (size_t i = 0; i < o->n_backends; i++) p->backends[i] = o->backends[i];
  for (int i = 0; i < GR_DIM_COUNT; i++) p->live[i] = -1;
  p->n_outputs = n_outputs;
  p->outputs = gr_calloc(n_outputs, sizeof(gr_tensor *));
  gr_status s = p->outputs ? GR_OK : gr_fail_memory(e, n_outputs * sizeof(gr_tensor *));
  if (s == GR_OK) memcpy(p->outputs, outputs, n_outputs * sizeof(gr_tensor *));
  if (s == GR_OK) s = gr_plan_rewrite(p, e);
  if (s == GR_OK) s = gr_plan_name(p, e);
  if (s == GR_OK) s = gr_plan_place(p, e);
  if (s == GR_OK) gr_plan_join(p);
  if (s == GR_OK) s = gr_plan_layout(p, e);
  if (s != GR_OK) {
    gr_plan_free(p);
    return s;
  }
  *out = p;
  return GR_OK;
}

/* ---- live sizes, reading and writing ---- */

gr_status gr_plan_set_dim(gr_plan *p, gr_dim dim, int64_t live, gr_error *e)
{
  for (size_t i = 0; i < p->n_tensors; i++)
    for (int d = 0; d < GR_DIMS; d++) {
      const gr_tensor *t = p->graph->tensors[i];
      if (t->dim[d] == dim && (live < 1 || live > t->ne[d]))
        return gr_fail(e, GR_ERR_MISMATCH, "%lld rows do not fit the plan, which has room for 1 to %lld", (long long)live,
                       (long long)t->ne[d]);
    }
  p->live[dim] = live;
  return GR_OK;
}

/* The place where a tensor was first put: later ones are copies. */
static gr_place *origin(gr_plan *p, const gr_tensor *t)
{
  const gr_tensor *root = gr_tensor_root(t);
  gr_place *best = NULL;
  for (size_t b = 0; b < p->n_backends && root->id < p->n_tensors; b++) {
    int32_t at = p->place_of[root->id * p->n_backends + b];
    if (at >= 0 && (!best || &p->places[at] < best)) best = &p->places[at];
  }
  return best;
}

static gr_status check_transfer(const gr_plan *p, const gr_tensor *t, size_t bytes, gr_error *e)
{
  gr_array a = gr_tensor_array(t, p->live);
  size_t want = 0;
  gr_array_extent(a.dtype, a.ne, a.nb, &want);
  if (!p->allocated) return gr_fail(e, GR_ERR_MISMATCH, "the plan has no memory yet");
  if (!gr_array_contiguous(&a)) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s is not contiguous at its live size", t->name);
  if (bytes != want) return gr_fail(e, GR_ERR_MISMATCH, "%s holds %zu bytes, not %zu", t->name, want, bytes);
  return GR_OK;
}

static char *place_address(const gr_place *pl) { return pl->external ? pl->root->data : pl->address; }

gr_status gr_plan_write(gr_plan *p, const gr_tensor *t, const void *data, size_t bytes, gr_error *e)
{
  gr_place *pl = origin(p, t);
  if (!pl) return GR_OK; /* nothing reads it */
  GR_TRY(check_transfer(p, t, bytes, e));
  gr_backend *b = p->backends[pl->backend];
  if (!b->ops->host_memory) return b->ops->write(b, place_address(pl) + t->offset, data, bytes, e);
  memcpy(place_address(pl) + t->offset, data, bytes);
  return GR_OK;
}

gr_status gr_plan_read(gr_plan *p, const gr_tensor *t, void *data, size_t bytes, gr_error *e)
{
  gr_place *pl = origin(p, t);
  if (!pl) return gr_fail(e, GR_ERR_MISMATCH, "%s is not in the plan", t->name);
  GR_TRY(check_transfer(p, t, bytes, e));
  gr_backend *b = p->backends[pl->backend];
  if (!b->ops->host_memory) return b->ops->read(b, data, place_address(pl) + t->offset, bytes, e);
  memcpy(data, place_address(pl) + t->offset, bytes);
  return GR_OK;
}

void *gr_plan_host(gr_plan *p, const gr_tensor *t)
{
  gr_place *pl = origin(p, t);
  if (!pl || !p->backends[pl->backend]->ops->host_memory) return NULL;
  return place_address(pl) + t->offset;
}

/* ---- launches ---- */

void gr_plan_watch(gr_plan *p, gr_plan_watch_fn *watch, void *ctx)
{
  p->watch = watch;
  p->watch_ctx = ctx;
}

size_t gr_plan_launches(const gr_plan *p) { return p->n_launches; }

static void bind(const gr_plan *p, const gr_launch *l, gr_op_call *call)
{
  gr_node_call(l->node, p->live, call);
  for (int k = 0; k < call->n_in; k++)
    if (l->in[k] >= 0) call->in[k].data = place_address(&p->places[l->in[k]]) + l->node->in[k]->offset;
  for (int k = 0; k < call->n_out; k++) call->out[k].data = place_address(&p->places[l->out[k]]) + l->node->out[k]->offset;
  call->pool = p->backends[l->backend]->pool;
  call->scratch = p->scratch[l->backend];
}

/* Copies the whole capacity only when the live part is not a prefix of the storage. */
static gr_status run_copy(gr_plan *p, const gr_launch *l, gr_error *e)
{
  const gr_place *from = &p->places[l->in[0]], *to = &p->places[l->out[0]];
  gr_backend *src = p->backends[from->backend], *dst = p->backends[to->backend];
  gr_array a = gr_tensor_array(l->copied, p->live);
  size_t bytes = from->bytes;
  if (gr_array_contiguous(&a)) gr_array_extent(a.dtype, a.ne, a.nb, &bytes);
  if (src->ops->host_memory && dst->ops->host_memory) {
    memcpy(place_address(to), place_address(from), bytes);
    return GR_OK;
  }
  if (src->ops->host_memory) return dst->ops->write(dst, place_address(to), place_address(from), bytes, e);
  if (dst->ops->host_memory) return src->ops->read(src, place_address(to), place_address(from), bytes, e);
  GR_TRY(src->ops->read(src, p->staging, place_address(from), bytes, e));
  return dst->ops->write(dst, place_address(to), p->staging, bytes, e);
}

/* NaN bytes wherever a node has yet to write, so that a test sees reads of what was never computed. */
static gr_status poison(gr_plan *p, gr_error *e)
{
  unsigned char nan[4096];
  memset(nan, 0xff, sizeof nan);
  for (size_t i = 0; i < p->n_places; i++) {
    const gr_place *pl = &p->places[i];
    gr_backend *b = p->backends[pl->backend];
    if (pl->external || pl->root->leaf != GR_LEAF_NONE) continue;
    if (b->ops->host_memory) {
      memset(pl->address, 0xff, pl->bytes);
      continue;
    }
    for (size_t at = 0; at < pl->bytes; at += sizeof nan) {
      size_t n = pl->bytes - at < sizeof nan ? pl->bytes - at : sizeof nan;
      GR_TRY(b->ops->write(b, (char *)pl->address + at, nan, n, e));
    }
  }
  return GR_OK;
}

static double seconds_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static gr_status run_launch(gr_plan *p, gr_launch *l, gr_error *e)
{
  if (!l->node) return run_copy(p, l, e);
  gr_op_call call;
  bind(p, l, &call);
  if (p->watch && p->backends[l->backend]->ops->host_memory) GR_TRY(p->watch(p->watch_ctx, l->node, &call, e));
  gr_status s = l->row->run(p->backends[l->backend], &call, e);
  if (s != GR_OK) gr_error_context(e, "%s (%s)", gr_op_name(l->node->op), l->node->name);
  return s;
}

/* Launch l and those joined to it. */
static gr_status run_together(gr_plan *p, gr_launch *l, gr_error *e)
{
  gr_op_call calls[GR_TOGETHER_MAX];
  const gr_kernel_row *rows[GR_TOGETHER_MAX];
  for (int i = 0; i <= l->joined; i++) {
    bind(p, &l[i], &calls[i]);
    rows[i] = l[i].row;
  }
  gr_status s = l->row->together(p->backends[l->backend], rows, calls, l->joined + 1, e);
  if (s != GR_OK) gr_error_context(e, "%s (%s) and what runs with it", gr_op_name(l->node->op), l->node->name);
  return s;
}

/* n launches took so long together: each its share, by the width of its result. */
static void share_seconds(gr_launch *l, size_t n, double seconds)
{
  double all = 0;
  for (size_t i = 0; i < n && n > 1; i++) all += (double)l[i].node->out[0]->ne[0];
  for (size_t i = 0; i < n; i++) {
    l[i].seconds += n > 1 ? seconds * (double)l[i].node->out[0]->ne[0] / all : seconds;
    l[i].runs++;
  }
}

gr_status gr_plan_run(gr_plan *p, size_t *cursor, size_t most, gr_error *e)
{
  GR_TRY(gr_plan_allocate(p, e));
  if (*cursor == 0 && p->options.poison) GR_TRY(poison(p, e));
  size_t end = most < p->n_launches - *cursor ? *cursor + most : p->n_launches;
  for (size_t n; *cursor < end; *cursor += n) {
    gr_launch *l = &p->launches[*cursor];
    double start = p->options.profile ? seconds_now() : 0;
    n = p->watch || *cursor + (size_t)l->joined >= end ? 1 : 1 + (size_t)l->joined;
    GR_TRY(n > 1 ? run_together(p, l, e) : run_launch(p, l, e));
    if (p->options.profile) {
      gr_backend *b = p->backends[l->backend];
      if (b->ops->sync) GR_TRY(b->ops->sync(b, e));
      share_seconds(l, n, seconds_now() - start);
    }
  }
  for (size_t i = 0; i < p->n_backends && *cursor == p->n_launches; i++)
    if (p->backends[i]->ops->sync) GR_TRY(p->backends[i]->ops->sync(p->backends[i], e));
  return GR_OK;
}

gr_status gr_plan_run_all(gr_plan *p, gr_error *e)
{
  size_t cursor = 0;
  return gr_plan_run(p, &cursor, SIZE_MAX, e);
}

void gr_plan_launch_info(const gr_plan *p, size_t i, gr_launch_info *info)
{
  const gr_launch *l = &p->launches[i];
  *info = (gr_launch_info){
    .node = l->node, .copied = l->copied, .backend = p->backends[l->backend]->ops->name, .seconds = l->seconds, .runs = l->runs
  };
  if (!l->node) {
    info->op = "copy";
    info->name = l->copied->name;
    info->row = "copy";
    return;
  }
  info->op = gr_op_name(l->node->op);
  info->name = l->node->out[0]->name[0] ? l->node->out[0]->name : l->node->name;
  info->row = l->row->name;
  info->bf16 = l->row->bf16;
  gr_op_call call;
  gr_node_call(l->node, p->live, &call);
  if (gr_op_get(l->node->op)->cost) gr_op_get(l->node->op)->cost(&call, &info->cost);
}

size_t gr_plan_fallen(const gr_plan *p, gr_buf *ops)
{
  size_t of[GR_OP_COUNT] = { 0 }, all = 0;
  for (size_t i = 0; i < p->n_launches; i++) {
    const gr_launch *l = &p->launches[i];
    if (l->node && l->backend != 0) of[l->node->op]++, all++;
  }
  const char *comma = "";
  for (int op = 0; op < GR_OP_COUNT; op++) {
    if (!of[op]) continue;
    gr_buf_printf(ops, "%s%s %zu", comma, gr_op_name((gr_op_id)op), of[op]);
    comma = ", ";
  }
  return all;
}
