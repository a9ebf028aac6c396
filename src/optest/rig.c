/* One kernel row, set up on its backend: inputs in the backend's memory, outputs and scratch poisoned and guarded, so that what is
 * not written, written outside, or read before it was written shows. */
#include <string.h>

#include "base/alloc.h"
#include "optest/internal.h"

enum { GUARD_BYTES = 256, POISON = 0xff };

void gr_case_call(const gr_case_graph *cg, gr_op_call *call)
{
  const gr_node *n = cg->node;
  *call = (gr_op_call){ .op = n->op, .params = n->params, .n_in = n->n_in, .n_out = n->n_out };
  for (int i = 0; i < n->n_in + n->n_out; i++) {
    const gr_tensor *t = i < n->n_in ? n->in[i] : n->out[i - n->n_in];
    gr_array *a = i < n->n_in ? &call->in[i] : &call->out[i - n->n_in];
    if (!t) continue;
    a->dtype = t->dtype;
    memcpy(a->ne, t->ne, sizeof a->ne);
    memcpy(a->nb, t->nb, sizeof a->nb);
  }
}

static gr_status put(gr_backend *b, void *device, const void *host, size_t bytes, gr_error *e)
{
  if (!b->ops->host_memory) return b->ops->write(b, device, host, bytes, e);
  memcpy(device, host, bytes);
  return GR_OK;
}

static gr_status get(gr_backend *b, void *host, const void *device, size_t bytes, gr_error *e)
{
  if (!b->ops->host_memory) return b->ops->read(b, host, device, bytes, e);
  memcpy(host, device, bytes);
  return GR_OK;
}

static gr_status poison(gr_backend *b, const gr_rig_buffer *x, gr_error *e)
{
  if (!x->device) return GR_OK;
  void *host = gr_alloc(x->bytes);
  if (!host) return gr_fail_memory(e, x->bytes);
  memset(host, POISON, x->bytes);
  gr_status status = put(b, x->device, host, x->bytes, e);
  gr_free(host);
  return status;
}

/* An input: in place where the backend computes in host memory, else a copy of the whole storage it is part of. */
static gr_status place_input(gr_rig *r, const gr_interp *it, const gr_tensor *t, const gr_array *replace, int i, gr_error *e)
{
  gr_array *a = &r->call.in[i];
  const gr_tensor *root = t->base ? t->base : t;
  char *host = it->storage[root->id];
  size_t bytes = it->bytes[root->id], at = (size_t)((char *)a->data - host);
  if (replace) {
    memcpy(a->nb, replace->nb, sizeof a->nb);
    a->dtype = replace->dtype;
    a->data = host = replace->data;
    at = 0;
    if (!gr_array_extent(a->dtype, a->ne, a->nb, &bytes)) return gr_fail_memory(e, SIZE_MAX);
  }
  if (r->backend->ops->host_memory) return GR_OK;
  GR_TRY(r->backend->ops->alloc(r->backend, bytes, &r->in[i].device, e));
  a->data = (char *)r->in[i].device + at;
  return put(r->backend, r->in[i].device, host, bytes, e);
}

/* An output lies as a plan would have it: contiguous at its capacity. */
static gr_status place_output(gr_rig *r, const gr_tensor *t, int i, gr_error *e)
{
  gr_rig_buffer *o = &r->out[i];
  size_t bytes;
  if (!gr_array_extent(t->dtype, t->ne, t->nb, &bytes)) return gr_fail_memory(e, SIZE_MAX);
  o->guard = GUARD_BYTES;
  o->bytes = bytes + 2 * (size_t)GUARD_BYTES;
  GR_TRY(r->backend->ops->alloc(r->backend, o->bytes, &o->device, e));
  r->call.out[i].data = (char *)o->device + GUARD_BYTES;
  return GR_OK;
}

static gr_status place_state(gr_rig *r, const gr_interp *it, const gr_tensor *t, gr_error *e)
{
  const gr_tensor *root = t->base ? t->base : t;
  const char *device = r->in[0].device ? r->in[0].device : it->storage[root->id];
  r->state_bytes = it->bytes[root->id];
  r->state = gr_alloc(r->state_bytes);
  if (!r->state) return gr_fail_memory(e, r->state_bytes);
  memcpy(r->state, it->storage[root->id], r->state_bytes);
  r->out[0].bytes = r->state_bytes;
  r->out[0].guard = (size_t)((const char *)r->call.in[0].data - device);
  r->call.out[0].data = r->call.in[0].data;
  return GR_OK;
}

static gr_status place_scratch(gr_rig *r, const gr_case_graph *cg, const gr_array *replace, gr_error *e)
{
  gr_op_call capacity;
  if (!r->row->scratch) return GR_OK;
  gr_case_call(cg, &capacity);
  for (int i = 0; replace && i < GR_IN_MAX; i++)
    if (replace[i].data) capacity.in[i] = r->call.in[i];
  size_t bytes = r->row->scratch(&capacity, gr_pool_threads(r->backend->pool));
  r->scratch = (gr_rig_buffer){ .bytes = bytes + GUARD_BYTES };
  GR_TRY(r->backend->ops->alloc(r->backend, r->scratch.bytes, &r->scratch.device, e));
  r->call.scratch = r->scratch.device;
  return GR_OK;
}

gr_status gr_rig_open(gr_rig *r, gr_backend *b, const gr_kernel_row *row, const gr_interp *it, const gr_case_graph *cg,
                      const gr_array *replace, gr_error *e)
{
  const gr_node *n = cg->node;
  *r = (gr_rig){ .backend = b, .row = row, .in_place = (gr_op_get(n->op)->flags & GR_OP_INPLACE) != 0 };
  gr_interp_call(it, n, &r->call);
  r->call.pool = b->pool;
  gr_status status = GR_OK;
  for (int i = 0; i < n->n_in && status == GR_OK; i++)
    if (n->in[i]) status = place_input(r, it, n->in[i], replace && replace[i].data ? &replace[i] : NULL, i, e);
  for (int i = 0; i < n->n_out && status == GR_OK; i++)
    status = r->in_place && i == 0 ? place_state(r, it, n->in[0], e) : place_output(r, n->out[i], i, e);
  if (status == GR_OK) status = place_scratch(r, cg, replace, e);
  if (status != GR_OK) gr_rig_close(r);
  return status;
}

void gr_rig_close(gr_rig *r)
{
  const gr_backend_ops *ops = r->backend->ops;
  for (int i = 0; i < GR_IN_MAX; i++)
    if (r->in[i].device) ops->free(r->backend, r->in[i].device);
  for (int i = 0; i < GR_OUT_MAX; i++)
    if (r->out[i].device) ops->free(r->backend, r->out[i].device);
  if (r->scratch.device) ops->free(r->backend, r->scratch.device);
  gr_free(r->state);
}

/* Where output i's buffer begins: an op in place has no buffer of its own. */
static char *output_start(const gr_rig *r, int i) { return (char *)r->call.out[i].data - r->out[i].guard; }

gr_status gr_rig_reset(gr_rig *r, gr_error *e)
{
  for (int i = 0; i < r->call.n_out; i++) GR_TRY(poison(r->backend, &r->out[i], e));
  if (r->state) GR_TRY(put(r->backend, output_start(r, 0), r->state, r->state_bytes, e));
  return poison(r->backend, &r->scratch, e);
}

static bool can_alias(const gr_rig *r, const gr_node *node, int output)
{
  int at = gr_op_alias(gr_op_get(node->op), output);
  if (at < 0 || at >= node->n_in || !node->in[at] || r->in_place) return false;
  const gr_array *x = &r->call.in[at], *y = &r->call.out[output];
  return x->dtype == y->dtype && gr_shape_equal(x->ne, y->ne) && gr_tensor_contiguous(node->in[at]);
}

static gr_status alias_output(gr_rig *r, const gr_interp *it, const gr_node *node, int output, gr_error *e)
{
  int at = gr_op_alias(gr_op_get(node->op), output);
  gr_array x = gr_interp_array(it, node->in[at]);
  size_t bytes;
  if (!gr_array_extent(x.dtype, x.ne, x.nb, &bytes)) return gr_fail_memory(e, SIZE_MAX);
  r->call.in[at].data = r->call.out[output].data;
  return put(r->backend, r->call.out[output].data, x.data, bytes, e);
}

gr_status gr_rig_alias(gr_rig *r, const gr_interp *it, const gr_node *node, bool *any, gr_error *e)
{
  *any = false;
  for (int i = 0; i < node->n_out; i++) *any = *any || can_alias(r, node, i);
  if (*any) GR_TRY(gr_rig_reset(r, e));
  for (int i = 0; i < node->n_out; i++)
    if (can_alias(r, node, i)) GR_TRY(alias_output(r, it, node, i, e));
  return GR_OK;
}

gr_status gr_rig_run(gr_rig *r, gr_error *e)
{
  GR_TRY(r->row->run(r->backend, &r->call, e));
  return r->backend->ops->sync ? r->backend->ops->sync(r->backend, e) : GR_OK;
}

gr_status gr_rig_fetch(gr_rig *r, int i, void **bytes, gr_array *view, gr_error *e)
{
  const gr_rig_buffer *o = &r->out[i];
  *bytes = gr_alloc(o->bytes);
  if (!*bytes) return gr_fail_memory(e, o->bytes);
  *view = r->call.out[i];
  view->data = (char *)*bytes + o->guard;
  return get(r->backend, *bytes, output_start(r, i), o->bytes, e);
}

/* Copies the live elements of `view` to the same places of `to`, whose buffer starts at `base`. */
static void blend(const gr_array *view, const char *from, char *to)
{
  size_t unit = (size_t)gr_dtype_get(view->dtype)->block_bytes;
  for (int64_t i3 = 0; i3 < view->ne[3]; i3++)
    for (int64_t i2 = 0; i2 < view->ne[2]; i2++)
      for (int64_t i1 = 0; i1 < view->ne[1]; i1++)
        for (int64_t i0 = 0; i0 < view->ne[0]; i0++) {
          const char *p = gr_array_at(view, i0, i1, i2, i3);
          memcpy(to + (p - from), p, unit);
        }
}

static gr_status scratch_intact(gr_rig *r, bool *intact, gr_error *e)
{
  unsigned char guard[GUARD_BYTES];
  if (!r->scratch.device) return GR_OK;
  GR_TRY(get(r->backend, guard, (char *)r->scratch.device + r->scratch.bytes - GUARD_BYTES, GUARD_BYTES, e));
  for (int i = 0; i < GUARD_BYTES; i++) *intact = *intact && guard[i] == POISON;
  return GR_OK;
}

gr_status gr_rig_intact(gr_rig *r, int i, const void *bytes, const gr_array *view, bool *intact, gr_error *e)
{
  const gr_rig_buffer *o = &r->out[i];
  char *expected = gr_alloc(o->bytes);
  if (!expected) return gr_fail_memory(e, o->bytes);
  if (r->state && i == 0) memcpy(expected, r->state, o->bytes);
  else memset(expected, POISON, o->bytes);
  blend(view, bytes, expected);
  *intact = memcmp(expected, bytes, o->bytes) == 0;
  gr_free(expected);
  return scratch_intact(r, intact, e);
}

void gr_rig_family(const char *name, char *family, size_t size)
{
  size_t used = 0;
  for (const char *p = name; *p && used + 1 < size;) {
    size_t n = strcspn(p, "_");
    char token[16] = "";
    bool type = false;
    if (n < sizeof token) memcpy(token, p, n);
    for (int t = 0; t < GR_DTYPE_COUNT && n && n < sizeof token; t++) {
      char lower[16];
      size_t m = 0;
      for (const char *q = gr_dtype_name((gr_dtype)t); *q && m + 1 < sizeof lower; q++)
        if (*q != '_') lower[m++] = (char)(*q >= 'A' && *q <= 'Z' ? *q + 32 : *q);
      lower[m] = 0;
      type = type || strcmp(lower, token) == 0;
    }
    for (size_t i = 0; !type && i < n && used + 1 < size; i++) family[used++] = p[i];
    p += n;
    if (*p == '_' && used + 1 < size) family[used++] = *p++;
  }
  family[used] = 0;
}
