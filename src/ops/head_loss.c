/* Head and cross-entropy in one; the contract stands in ops/params.h. Kernels go over the vocabulary or the tokens in chunks, so
 * logits are never stored. A masked token costs nothing and gives exactly 0 (B7).
 * Gradient: head_loss_back, from the saved log-sum-exp: to h and, with an adapter, to A and B. The head itself and its bias are
 * frozen; labels are integers; nothing passes through lse. */
#include "ops/head_loss.h"
#include "ops/cases.h"

#include <string.h>

#include "base/alloc.h"
#include "base/mutant.h"

static gr_status need_shape(const char *op, const gr_tensor *t, int64_t ne0, int64_t ne1, const char *what, gr_error *e)
{
  char text[160];
  if (t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == 1 && t->ne[3] == 1) return GR_OK;
  return gr_fail(e, GR_ERR_MISMATCH, "%s: %s %s must be [%lld, %lld]", op, what, gr_tensor_describe(t, text, sizeof text), (long long)ne0,
                 (long long)ne1);
}

gr_status gr_head_check(const gr_infer *c, const char *op, gr_head_at at, gr_error *e)
{
  const struct gr_head_params *p = c->params;
  const gr_tensor *w = c->in[GR_HEAD_W], *h = c->in[GR_HEAD_H], *labels = c->in[GR_HEAD_LABELS];
  const gr_tensor *bias = at.bias < c->n_in ? c->in[at.bias] : NULL, *a = at.a < c->n_in ? c->in[at.a] : NULL,
                  *b = at.b < c->n_in ? c->in[at.b] : NULL;
  char text[160];
  gr_tensor_describe(w, text, sizeof text);
  GR_TRY(gr_infer_need_f32(c, op, 1u << GR_HEAD_H | 1u << at.bias | 1u << at.a | 1u << at.b, e));
  if (gr_dtype_get(w->dtype)->kind == GR_KIND_INT) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: %s is not a weight type", op, text);
  if (w->nb[0] != gr_dtype_get(w->dtype)->block_bytes) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: rows of %s must be dense", op, text);
  if (w->ne[2] != 1 || w->ne[3] != 1) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: %s has a batch dimension", op, text);
  GR_TRY(need_shape(op, h, w->ne[0], h->ne[1], "hidden state", e));
  if (labels->dtype != GR_I32)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: labels must be I32, not %s", op, gr_tensor_describe(labels, text, sizeof text));
  GR_TRY(need_shape(op, labels, h->ne[1], 1, "labels", e));
  if (labels->dim[0] != h->dim[1]) return gr_fail(e, GR_ERR_MISMATCH, "%s: labels and hidden states differ in tokens", op);
  if (bias) GR_TRY(need_shape(op, bias, w->ne[1], 1, "bias", e));
  if (!a != !b) return gr_fail(e, GR_ERR_USAGE, "%s: an adapter needs both A and B", op);
  if (a) {
    GR_TRY(need_shape(op, a, w->ne[0], a->ne[1], "A", e));
    GR_TRY(need_shape(op, b, a->ne[1], w->ne[1], "B", e));
  }
  if (!isfinite(p->scale) || !isfinite(p->lora_scale) || !(p->softcap >= 0 && isfinite(p->softcap)))
    return gr_fail(e, GR_ERR_NUMERIC, "%s: scale %g, softcap %g, adapter scale %g: finite numbers are needed, the softcap not negative", op,
                   (double)p->scale, (double)p->softcap, (double)p->lora_scale);
  return GR_OK;
}

void gr_head_logits(const gr_op_call *c, gr_head_at at, int64_t t, double *row, double *u, double *z, double *slope)
{
  const struct gr_head_params *p = c->params;
  const gr_array *w = &c->in[GR_HEAD_W], *h = &c->in[GR_HEAD_H], *a = &c->in[at.a], *b = &c->in[at.b];
  int64_t rank = gr_head_has(c, at.a) ? a->ne[1] : 0;
  for (int64_t r = 0; r < rank; r++) {
    u[r] = 0;
    for (int64_t i = 0; i < w->ne[0]; i++) u[r] += gr_array_get(a, i, r, 0, 0) * gr_array_get(h, i, t, 0, 0);
  }
  for (int64_t v = 0; v < w->ne[1]; v++) {
    double dot = gr_head_has(c, at.bias) ? gr_array_get(&c->in[at.bias], v, 0, 0, 0) : 0, low = 0;
    gr_reference_row(w, v, 0, 0, row);
    for (int64_t i = 0; i < w->ne[0]; i++) dot += row[i] * gr_array_get(h, i, t, 0, 0);
    for (int64_t r = 0; r < rank; r++) low += gr_array_get(b, r, v, 0, 0) * u[r];
    z[v] = (double)p->scale * (dot + (double)p->lora_scale * low);
    slope[v] = (double)p->scale;
    if (!(p->softcap > 0)) continue;
    double s = tanh(z[v] / (double)p->softcap);
    z[v] = (double)p->softcap * s;
    if (!GR_MUTANT(rule_head_loss_no_softcap)) slope[v] *= 1 - s * s;
  }
}

static gr_status infer(gr_infer *c, gr_error *e)
{
  GR_TRY(gr_head_check(c, "head_loss", gr_head_forward_at, e));
  for (int i = 0; i < 2; i++) gr_infer_dim(&c->out[i], 0, c->in[GR_HEAD_H], 1);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  gr_tensor **in = b->node->in;
  gr_head_at at = gr_head_forward_at;
  GR_TRY(gr_backward_refuse(b, 1u << GR_HEAD_W | 1u << at.bias, "the head is frozen; adapt it with A and B", e));
  GR_TRY(gr_backward_refuse(b, 1u << GR_HEAD_LABELS, "labels are integers", e));
  if (b->dout[1]) return gr_fail(e, GR_ERR_UNSUPPORTED, "head_loss: no gradient passes through the log-sum-exp");
  if (!b->dout[0] || !(b->wants[GR_HEAD_H] || b->wants[at.a] || b->wants[at.b])) return GR_OK;
  struct gr_head_inputs x = { in[GR_HEAD_W], in[GR_HEAD_H], in[GR_HEAD_LABELS], in[at.bias], in[at.a], in[at.b] };
  gr_tensor *dh = gr_head_loss_back(b->graph, &x, b->node->out[1], b->dout[0], (const void *)b->node->params);
  if (!dh) return GR_OK;
  if (b->wants[GR_HEAD_H]) b->din[GR_HEAD_H] = dh;
  if (b->wants[at.a]) b->din[at.a] = dh->node->out[1];
  if (b->wants[at.b]) b->din[at.b] = dh->node->out[2];
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *w = &c->in[GR_HEAD_W], *labels = &c->in[GR_HEAD_LABELS];
  gr_head_at at = gr_head_forward_at;
  int64_t vocab = w->ne[1], rank = gr_head_has(c, at.a) ? c->in[at.a].ne[1] : 0;
  double *z = gr_reference_scratch(c, 2 * vocab + rank + w->ne[0]);
  if (!z) return;
  double *slope = z + vocab, *u = slope + vocab, *row = u + rank;
  for (int64_t t = 0; t < c->out[0].ne[0]; t++) {
    int64_t label = (int64_t)gr_array_get(labels, t, 0, 0, 0);
    double lse = 0, nll = 0;
    if (label >= 0 && label < vocab) {
      double max = -HUGE_VAL, total = 0;
      gr_head_logits(c, at, t, row, u, z, slope);
      for (int64_t v = 0; v < vocab; v++)
        if (!(z[v] <= max)) max = z[v];
      for (int64_t v = 0; v < vocab; v++) total += exp(z[v] - max);
      lse = max + log(total);
      nll = lse - z[label];
    }
    gr_array_set(&c->out[0], t, 0, 0, 0, nll);
    gr_array_set(&c->out[1], t, 0, 0, 0, lse);
  }
  gr_free(z);
}

/* Every token is counted: which of them are masked is data. */
static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *w = &c->in[GR_HEAD_W], *h = &c->in[GR_HEAD_H];
  double n = (double)h->ne[1], rank = gr_head_has(c, gr_head_forward_at.a) ? (double)c->in[gr_head_forward_at.a].ne[1] : 0;
  *k = (gr_cost){ .flops = 2 * n * (double)(w->ne[0] * w->ne[1]) + 2 * n * rank * (double)(w->ne[0] + w->ne[1]),
                  .bytes_read = (double)gr_row_bytes(w->dtype, w->ne[0]) * (double)w->ne[1] + 4 * (double)gr_array_count(h) +
                                4 * rank * (double)(w->ne[0] + w->ne[1]),
                  .bytes_written = 8 * n };
}

/* ---- cases ---- */

/* The inputs that head_loss and its gradient share, at their places. rank 0: no adapter. */
void gr_head_case_inputs(gr_case *c, gr_head_at at, const gr_head_case *h)
{
  c->params = &h->params;
  c->in[GR_HEAD_W] = (gr_case_in){ .dtype = h->type, .ne = { h->width, h->vocab }, .layout = h->layout };
  c->in[GR_HEAD_H] =
      (gr_case_in){ .ne = { h->width, h->n }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_normal(h->size), .layout = h->layout };
  c->in[GR_HEAD_LABELS] = (gr_case_in){ .dtype = GR_I32, .ne = { h->n }, .dim = { GR_DIM_TOKENS }, .fill = h->labels };
  if (h->bias) c->in[at.bias] = (gr_case_in){ .ne = { h->vocab } };
  if (!h->rank) return;
  c->in[at.a] = (gr_case_in){ .ne = { h->width, h->rank } };
  c->in[at.b] = (gr_case_in){ .ne = { h->rank, h->vocab } };
}

static const double labels_mixed[] = { 3, -1, 0, 12, -1, 7, 12 }, labels_odd[] = { 1, -5, 13, 0, 2, 2 }, labels_none[] = { -1, -1, 99 };
#define MIXED                                                                                                                              \
  {                                                                                                                                        \
    GR_FILL_VALUES, .values = labels_mixed, .n = 7                                                                                         \
  }

static const struct {
  const char *name;
  unsigned flags;
  gr_head_case h;
} shared[] = {
  { "masked rows", 0, { GR_F32, 11, 13, 7, MIXED, .params = { 1, 0, 1 } } },
  { "bias, scale, softcap", 0, { GR_F32, 11, 13, 7, MIXED, .params = { 0.7f, 2, 1 }, .bias = true } },
  { "adapter", 0, { GR_F32, 11, 13, 7, MIXED, .params = { 1, 0, 0.5f }, .rank = 3 } },
  { "adapter, bias, scale, softcap", 0, { GR_F32, 11, 13, 7, MIXED, .params = { 1.3f, 3, 0.25f }, .bias = true, .rank = 2 } },
  { "labels outside the vocabulary", 0, { GR_F32, 11, 13, 6, { GR_FILL_VALUES, .values = labels_odd, .n = 6 }, .params = { 1, 0, 1 } } },
  { "all masked",
    GR_CASE_ZERO | GR_CASE_NO_GRAD,
    { GR_F32, 11, 13, 3, { GR_FILL_VALUES, .values = labels_none, .n = 3 }, .params = { 1, 0, 1 }, .rank = 2 } },
  { "one token", 0, { GR_F32, 16, 13, 1, MIXED, .params = { 1, 0, 1 } } },
  { "packed", 0, { GR_Q8_0, 96, 13, 7, MIXED, .params = { 0.2f, 0, 1 }, .rank = 2 } },
  { "packed", 0, { GR_Q4_K, 256, 13, 5, MIXED, .params = { 0.1f, 0, 1 } } },
  { "packed", 0, { GR_Q6_K, 256, 13, 5, MIXED, .params = { 0.1f, 4, 2 }, .bias = true, .rank = 2 } },
  { "packed", 0, { GR_Q4_0, 96, 13, 7, MIXED, .params = { 0.2f, 0, 1 }, .rank = 2 } },
  { "packed", 0, { GR_Q4_1, 96, 13, 5, MIXED, .params = { 0.2f, 0, 1 } } },
  { "packed", 0, { GR_Q5_0, 96, 13, 5, MIXED, .params = { 0.2f, 0, 1 } } },
  { "packed", 0, { GR_Q5_1, 96, 13, 5, MIXED, .params = { 0.2f, 0, 1 } } },
  { "packed", 0, { GR_IQ4_NL, 96, 13, 5, MIXED, .params = { 0.2f, 0, 1 } } },
  { "packed", 0, { GR_MXFP4, 96, 13, 5, MIXED, .params = { 0.04f, 0, 1 } } }, /* weights five times the others' */
  { "packed", 0, { GR_Q2_K, 256, 13, 5, MIXED, .params = { 0.1f, 0, 1 } } },
  { "packed", 0, { GR_Q3_K, 256, 13, 5, MIXED, .params = { 0.1f, 0, 1 } } },
  { "packed", 0, { GR_Q5_K, 256, 13, 5, MIXED, .params = { 0.1f, 0, 1 } } },
  { "packed", 0, { GR_IQ4_XS, 256, 13, 5, MIXED, .params = { 0.1f, 0, 1 } } },
  { "in half", 0, { GR_F16, 17, 13, 5, MIXED, .params = { 0.5f, 0, 1 } } },
  { "in bfloat16, offset", 0, { GR_BF16, 17, 13, 5, MIXED, .params = { 0.5f, 0, 1 }, .layout = GR_LAYOUT_OFFSET } },
  { "rows apart", 0, { GR_F32, 11, 13, 7, MIXED, .params = { 1, 0, 1 }, .layout = GR_LAYOUT_ROWS } },
  { "logits to 1e4", GR_CASE_NO_GRAD, { GR_F32, 67, 131, 7, MIXED, .params = { 1, 0, 1 }, .size = 400, .logits = 1e4 } },
  { "tails of every tile",
    GR_CASE_NO_GRAD,
    { GR_Q4_K, 512, 517, 35, { GR_FILL_BELOW, .a = 517 }, .params = { 0.1f, 0, 1 }, .rank = 4, .logits = 50 } },
  { "many tokens", GR_CASE_NO_GRAD, { GR_F32, 67, 131, 150, MIXED, .params = { 0.2f, 0, 1 }, .rank = 16 } },
  { "more tokens than one chunk", GR_CASE_NO_GRAD, { GR_F32, 11, 13, 900, MIXED, .params = { 1, 0, 1 }, .bias = true, .rank = 2 } },
  { "a wide row", GR_CASE_NO_GRAD, { GR_Q8_0, 2080, 13, 7, MIXED, .params = { 0.05f, 0, 1 } } },
  { "vocabulary of 248,320", GR_CASE_NO_GRAD, { GR_F32, 8, 248320, 3, { GR_FILL_BELOW, .a = 248320 }, .params = { 1, 0, 1 } } },
  { "vocabulary of 248,320",
    GR_CASE_NO_GRAD | GR_CASE_FULL,
    { GR_Q8_0, 64, 248320, 5, { GR_FILL_BELOW, .a = 248320 }, .params = { 0.2f, 0, 1 }, .bias = true, .rank = 4 } },
  { "SmolLM2's", GR_CASE_PERF, { GR_Q8_0, 576, 49152, 64, { GR_FILL_BELOW, .a = 49152 }, .params = { 1, 0, 1 } } },
  { "", GR_CASE_PERF, { GR_Q6_K, 2048, 32000, 64, { GR_FILL_BELOW, .a = 32000 }, .params = { 1, 0, 1 } } },
};

bool gr_head_case_get(int i, gr_head_case *h, const char **name, unsigned *flags)
{
  if (i >= (int)(sizeof shared / sizeof *shared)) return false;
  *h = shared[i].h;
  *name = shared[i].name;
  *flags = shared[i].flags;
  return true;
}

gr_tolerance gr_head_case_tolerance(const gr_head_case *h, bool back)
{
  double steep = back ? h->logits : 0, norm = 1e-5 + 1e-6 * steep;
  /* The rows of the labels hold most of dB, so that the rms over the whole vocabulary is smaller than they are by its root. */
  return (gr_tolerance){ .norm = norm,
                         .max = norm * fmax(50, sqrt((double)h->vocab)),
                         .seen = 1.9e-6 + 4.2e-7 * steep,
                         .defect = h->logits < 1000 ? 2e-4
                                   : back           ? 9
                                                    : 9e-5 };
}

static void refusals(gr_case_sink *s)
{
  gr_head_at at = gr_head_forward_at;
  gr_head_case h = { GR_Q8_0, 32, 13, 7, MIXED, { 1, 0, 1 }, .bias = true, .rank = 3 };
  gr_case c = { .refuse = GR_ERR_MISMATCH }, d;
  gr_head_case_inputs(&c, at, &h);
  d = c, d.in[GR_HEAD_H].ne[0] = 33, d.says = "hidden state", gr_case_add(s, &d);
  d = c, d.in[GR_HEAD_LABELS].ne[0] = 6, d.says = "labels", gr_case_add(s, &d);
  d = c, d.in[GR_HEAD_LABELS].dim[0] = 0, d.says = "differ in tokens", gr_case_add(s, &d);
  d = c, d.in[at.bias].ne[0] = 12, d.says = "bias", gr_case_add(s, &d);
  d = c, d.in[at.b].ne[0] = 4, d.says = "B", gr_case_add(s, &d);
  c.refuse = GR_ERR_USAGE;
  d = c, d.in[at.b].ne[0] = 0, d.says = "both A and B", gr_case_add(s, &d);
  c.refuse = GR_ERR_UNSUPPORTED;
  d = c, d.in[GR_HEAD_LABELS].dtype = GR_F32, d.says = "labels must be I32", gr_case_add(s, &d);
  d = c, d.in[GR_HEAD_W].dtype = GR_I32, d.says = "not a weight type", gr_case_add(s, &d);
  d = c, d.in[GR_HEAD_W].ne[2] = 2, d.says = "batch dimension", gr_case_add(s, &d);
  d = c, d.wants = 1u << GR_HEAD_W, d.says = "the head is frozen", gr_case_add(s, &d);
  d = c, d.wants = 1u << at.bias, d.says = "the head is frozen", gr_case_add(s, &d);
  d = c, d.wants = 1u << GR_HEAD_LABELS, d.says = "integers", gr_case_add(s, &d);
  d = c, d.wants = 1u << GR_HEAD_H, d.douts = 3, d.says = "log-sum-exp", gr_case_add(s, &d);
  struct gr_head_params wrong = { 1, -1, 1 };
  d = c, d.params = &wrong, d.refuse = GR_ERR_NUMERIC, d.says = "softcap", gr_case_add(s, &d);
}

static void cases(gr_case_sink *s)
{
  gr_head_at at = gr_head_forward_at;
  gr_head_case h;
  gr_case c = { 0 };
  for (int i = 0; gr_head_case_get(i, &h, &c.name, &c.flags); i++) {
    memset(c.in, 0, sizeof c.in);
    gr_head_case_inputs(&c, at, &h);
    c.tolerance = gr_head_case_tolerance(&h, false);
    c.n_in = i % 2 ? 6 : 0;
    c.in[GR_HEAD_H].grad = !(c.flags & GR_CASE_NO_GRAD);
    c.in[at.a].grad = c.in[at.b].grad = h.rank && !(c.flags & GR_CASE_NO_GRAD);
    gr_case_add(s, &c);
  }
  refusals(s);
}

gr_tensor *gr_head_loss(gr_graph *g, const struct gr_head_inputs *in, const struct gr_head_params *p)
{
  gr_tensor *x[] = { in->w, in->h, in->labels, in->bias, in->a, in->b };
  return gr_graph_node(g, GR_OP_head_loss, x, 6, p);
}

const gr_op gr_op_head_loss = {
  .inputs_min = 3,
  .inputs_max = 6,
  .outputs = 2,
  .saves_in = 0x3f,
  .saves_out = 2,
  .params_bytes = sizeof(struct gr_head_params),
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
