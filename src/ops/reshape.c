/* x seen with another shape. No data moves: what comes before the last dimension must be dense, slices along the last may lie apart.
 *
 * x's last dimension stays the last and keeps its size; those before it are split and merged. So a dimension that varies from
 * run to run (it is the last) keeps its tag, and the view's strides hold at every live size. Sizes of 0 at the end say how many
 * dimensions are meant: [64, 1 token] seen as (64, 1, 1, 0) has one head and one token, as (64, 1, 0, 0) one token.
 * Gradient: dx = dy with x's shape. */
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

/* The dimension that must stay last: the tagged one, or the last that is not 1. -1: a tagged one that is not last. */
static int last_dim(const gr_tensor *x)
{
  int last = 0;
  for (int i = 1; i < GR_DIMS; i++)
    if (x->dim[i] != GR_DIM_STATIC || x->ne[i] != 1) last = i;
  for (int i = 0; i < last; i++)
    if (x->dim[i] != GR_DIM_STATIC) return -1;
  return last;
}

/* Dimensions 0..at-1 of ne hold as many elements as those of x before `last`, dimension `at` has its size, and 1s follow. */
static bool fits(const gr_tensor *x, int last, const int64_t ne[GR_DIMS], int at)
{
  int64_t before = 1, seen = 1;
  for (int i = 0; i < last; i++) before *= x->ne[i];
  for (int i = 0; i < at; i++) {
    if (ne[i] <= 0 || (before > 0 && seen > before / ne[i])) return false;
    seen *= ne[i];
  }
  for (int i = at + 1; i < GR_DIMS; i++)
    if (ne[i] != 1) return false;
  return seen == before && ne[at] == x->ne[last];
}

/* Which dimension of x becomes dimension `at`: the last, or a 1 beyond it that is meant as the last. GR_DIMS: none. */
static int kept_dim(const gr_tensor *x, const int64_t ne[GR_DIMS], int at)
{
  int last = last_dim(x);
  while (last < GR_DIMS && !fits(x, last, ne, at)) last++;
  return last;
}

/* Whether slices along dimension `last` are dense, however far apart they lie. */
static bool slices_dense(const gr_tensor *x, int last)
{
  int64_t bytes = gr_dtype_get(x->dtype)->block_bytes;
  for (int i = 0; i < last; i++) {
    if (x->ne[i] != 1 && x->nb[i] != bytes) return false;
    bytes *= x->ne[i];
  }
  return true;
}

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_reshape_params *p = c->params;
  const gr_tensor *x = c->in[0];
  gr_infer_out *o = &c->out[0];
  char text[160];
  gr_tensor_describe(x, text, sizeof text);
  if (gr_dtype_is_quant(x->dtype)) return gr_fail(e, GR_ERR_UNSUPPORTED, "reshape: %s is stored in blocks and keeps its shape", text);
  int at = p->last;
  if (last_dim(x) < 0)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "reshape: %s has a dimension before the last that varies from run to run", text);
  int last = kept_dim(x, p->ne, at);
  if (last == GR_DIMS)
    return gr_fail(e, GR_ERR_MISMATCH, "reshape: %s cannot be seen as [%lld, %lld, %lld, %lld] with its last dimension kept", text,
                   (long long)p->ne[0], (long long)p->ne[1], (long long)p->ne[2], (long long)p->ne[3]);
  if (!slices_dense(x, last)) return gr_fail(e, GR_ERR_UNSUPPORTED, "reshape: %s is not dense before its last dimension", text);
  o->dtype = x->dtype;
  o->view_of = c->in[0];
  for (int i = 0; i < GR_DIMS; i++) o->ne[i] = p->ne[i];
  o->dim[at] = x->dim[last];
  gr_strides_contiguous(x->dtype, o->ne, o->nb);
  if (!gr_tensor_contiguous(x)) /* dimensions beyond are 1 */
    for (int i = at; i < GR_DIMS; i++) o->nb[i] = x->nb[last] * (i > at ? o->ne[at] : 1);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  gr_tensor *dy = b->dout[0];
  const int64_t *ne = b->node->in[0]->ne;
  if (!b->wants[0] || !dy) return GR_OK;
  if (!gr_tensor_contiguous(dy)) dy = gr_cont(b->graph, dy);
  const struct gr_reshape_params *p = (const void *)b->node->params;
  int last = kept_dim(b->node->in[0], p->ne, p->last);
  b->din[0] = gr_reshape(b->graph, dy, ne[0], last >= 1 ? ne[1] : 0, last >= 2 ? ne[2] : 0, last >= 3 ? ne[3] : 0);
  return GR_OK;
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  struct gr_reshape_params heads = { { 4, 3, 5, 1 }, 2 }, flat = { { 12, 5, 1, 1 }, 1 }, one = { { 4, 3, 1, 1 }, 2 },
                           wrong = { { 12, 4, 1, 1 }, 1 }, merged = { { 60, 1, 1, 1 }, 0 };
  gr_case_in x = { .ne = { 12, 5 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true };
  gr_case_add(s, &(gr_case){ .name = "into heads", .params = &heads, .in = { x } });
  gr_case_add(
      s,
      &(gr_case){ .name = "heads merged", .params = &flat, .in = { { .ne = { 4, 3, 5 }, .dim = { 0, 0, GR_DIM_TOKENS }, .grad = true } } });
  gr_case_add(s,
              &(gr_case){ .name = "one token", .params = &one, .in = { { .ne = { 12, 1 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .name = "one slice, not tagged", .params = &one, .in = { { .ne = { 12 }, .grad = true } } });
  gr_case_add(s, &(gr_case){ .params = &wrong, .in = { x }, .refuse = GR_ERR_MISMATCH, .says = "last dimension kept" });
  gr_case_add(
      s, &(gr_case){ .name = "tokens merged", .params = &merged, .in = { x }, .refuse = GR_ERR_MISMATCH, .says = "last dimension kept" });
  gr_case_add(s, &(gr_case){ .name = "tokens not last",
                             .params = &flat,
                             .in = { { .ne = { 4, 3, 5 }, .dim = { 0, GR_DIM_TOKENS } } },
                             .refuse = GR_ERR_UNSUPPORTED,
                             .says = "varies from run to run" });
  gr_case_in apart = x, swapped = x;
  apart.layout = GR_LAYOUT_ROWS, swapped.layout = GR_LAYOUT_TRANSPOSED;
  gr_case_add(s, &(gr_case){ .name = "rows apart into heads", .params = &heads, .in = { apart } });
  apart.layout = GR_LAYOUT_BROADCAST;
  gr_case_add(s, &(gr_case){ .name = "one row again and again into heads", .params = &heads, .in = { apart } });
  gr_case_add(s, &(gr_case){ .params = &heads, .in = { swapped }, .refuse = GR_ERR_UNSUPPORTED, .says = "not dense before its last" });
  gr_case_add(s, &(gr_case){ .name = "heads apart merged",
                             .params = &flat,
                             .in = { { .ne = { 4, 3, 5 }, .layout = GR_LAYOUT_ROWS } },
                             .refuse = GR_ERR_UNSUPPORTED,
                             .says = "not dense before its last" });
  gr_case_add(
      s, &(gr_case){
             .params = &heads, .in = { { .ne = { 32, 5 }, .dtype = GR_Q4_0 } }, .refuse = GR_ERR_UNSUPPORTED, .says = "stored in blocks" });
}

gr_tensor *gr_reshape(gr_graph *g, gr_tensor *x, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3)
{
  struct gr_reshape_params p = { .ne = { ne0, ne1, ne2, ne3 } };
  for (int i = 0; i < GR_DIMS; i++)
    if (p.ne[i]) p.last = i;
  for (int i = p.last + 1; i < GR_DIMS; i++) p.ne[i] = 1;
  return gr_graph_node(g, GR_OP_reshape, &x, 1, &p);
}

const gr_op gr_op_reshape = {
  .inputs_min = 1,
  .inputs_max = 1,
  .outputs = 1,
  .flags = GR_OP_VIEW,
  .params_bytes = sizeof(struct gr_reshape_params),
  .infer = infer,
  .backward = backward,
  .cases = cases,
};
