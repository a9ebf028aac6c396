/* Attention of grouped heads over segments; the contract stands in ops/params.h. One pass saves the log-sum-exp of each query and
 * head, from which the backward recomputes probabilities: p = exp(s - lse). A sink is one more logit without a value: it is in lse.
 * Gradient: attention_back. Positions and segments have none; the sinks are frozen, asking for their gradient is refused. */
#include "ops/attention.h"
#include "ops/cases.h"

#include "base/alloc.h"

static gr_status need_index(const gr_infer *c, const char *op, int i, int64_t n, uint8_t dim, const char *what, gr_error *e)
{
  const gr_tensor *t = c->in[i];
  char text[160];
  gr_tensor_describe(t, text, sizeof text);
  if (t->dtype != GR_I32) return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: positions and segments must be I32, not %s", op, text);
  if (t->ne[0] != n || t->dim[0] != dim || t->ne[1] != 1 || t->ne[2] != 1 || t->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "%s: %s needs one number for each %s", op, text, what);
  return GR_OK;
}

gr_status gr_attention_check(const gr_infer *c, const char *op, gr_error *e)
{
  const struct gr_attention_params *p = c->params;
  const gr_tensor *q = c->in[GR_ATTN_Q], *k = c->in[GR_ATTN_K], *v = c->in[GR_ATTN_V];
  char a[160], b[160], d[160];
  GR_TRY(gr_infer_need_f32(c, op, 7, e));
  gr_tensor_describe(q, a, sizeof a);
  gr_tensor_describe(k, b, sizeof b);
  gr_tensor_describe(v, d, sizeof d);
  if (q->ne[3] != 1 || k->ne[3] != 1 || v->ne[3] != 1)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "%s: no batch dimension, got %s, %s, %s (sequences are segments)", op, a, b, d);
  if (q->ne[0] != k->ne[0]) return gr_fail(e, GR_ERR_MISMATCH, "%s: heads of %s and %s differ in size", op, a, b);
  if (k->ne[1] != v->ne[1] || k->ne[2] != v->ne[2] || k->dim[2] != v->dim[2])
    return gr_fail(e, GR_ERR_MISMATCH, "%s: keys %s and values %s differ in heads or number", op, b, d);
  if (k->ne[1] < 1 || q->ne[1] % k->ne[1])
    return gr_fail(e, GR_ERR_MISMATCH, "%s: the heads of %s are not a multiple of those of %s", op, a, b);
  if (!isfinite(p->scale) || !(p->softcap >= 0 && isfinite(p->softcap)) || p->window < 0)
    return gr_fail(e, GR_ERR_NUMERIC, "%s: scale %g, softcap %g, window %d: finite numbers are needed, the last two not negative", op,
                   (double)p->scale, (double)p->softcap, (int)p->window);
  for (int i = GR_ATTN_POS_Q; i <= GR_ATTN_SEG_Q; i++) GR_TRY(need_index(c, op, i, q->ne[2], q->dim[2], "query", e));
  for (int i = GR_ATTN_POS_K; i <= GR_ATTN_SEG_K; i++) GR_TRY(need_index(c, op, i, k->ne[2], k->dim[2], "key", e));
  return GR_OK;
}

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *q = c->in[GR_ATTN_Q], *v = c->in[GR_ATTN_V], *sinks = c->n_in > GR_ATTN_SINKS ? c->in[GR_ATTN_SINKS] : NULL;
  GR_TRY(gr_attention_check(c, "attention", e));
  if (sinks) {
    char text[160];
    GR_TRY(gr_infer_need_f32(c, "attention", 1u << GR_ATTN_SINKS, e));
    if (sinks->ne[0] != q->ne[1] || sinks->ne[1] != 1 || sinks->ne[2] != 1 || sinks->ne[3] != 1)
      return gr_fail(e, GR_ERR_MISMATCH, "attention: sinks %s need one number for each head", gr_tensor_describe(sinks, text, sizeof text));
  }
  gr_infer_dim(&c->out[0], 0, v, 0);
  for (int i = 1; i < 3; i++) {
    gr_infer_dim(&c->out[0], i, q, i);
    gr_infer_dim(&c->out[1], i - 1, q, i);
  }
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  gr_tensor **in = b->node->in, **out = b->node->out;
  GR_TRY(gr_backward_refuse(b, 0x78, "positions and segments are integers", e));
  GR_TRY(gr_backward_refuse(b, 1u << GR_ATTN_SINKS, "attention sinks are frozen", e));
  if (b->dout[1]) return gr_fail(e, GR_ERR_UNSUPPORTED, "attention: no gradient passes through the log-sum-exp");
  if (!b->dout[0] || !(b->wants[0] || b->wants[1] || b->wants[2])) return GR_OK;
  struct gr_attention_inputs x = { in[GR_ATTN_Q],     in[GR_ATTN_K],     in[GR_ATTN_V],     in[GR_ATTN_POS_Q],
                                   in[GR_ATTN_SEG_Q], in[GR_ATTN_POS_K], in[GR_ATTN_SEG_K], NULL };
  gr_tensor *dq = gr_attention_back(b->graph, &x, out[0], out[1], b->dout[0], (const void *)b->node->params);
  if (!dq) return GR_OK;
  for (int i = 0; i < 3; i++)
    if (b->wants[i]) b->din[i] = dq->node->out[i];
  return GR_OK;
}

/* One query of one head: scores of the visible keys, their log-sum-exp, the weighted values. s has room for every key. */
static void attend(const gr_op_call *c, int64_t h, int64_t i, double *s)
{
  const gr_array *v = &c->in[GR_ATTN_V], *sinks = &c->in[GR_ATTN_SINKS], *out = &c->out[0], *lse = &c->out[1];
  bool sink = c->n_in > GR_ATTN_SINKS && sinks->ne[0] > 0;
  int64_t hk = h / (c->in[GR_ATTN_Q].ne[1] / v->ne[1]), m = v->ne[2];
  double max = sink ? gr_array_get(sinks, h, 0, 0, 0) : -HUGE_VAL, total = 0, slope;
  for (int64_t j = 0; j < m; j++) {
    s[j] = gr_attention_visible(c, i, j) ? gr_attention_score(c, h, hk, i, j, &slope) : -HUGE_VAL;
    if (!(s[j] <= max)) max = s[j];
  }
  if (sink) total += exp(gr_array_get(sinks, h, 0, 0, 0) - max);
  for (int64_t j = 0; j < m; j++) total += s[j] == -HUGE_VAL ? 0 : exp(s[j] - max);
  double l = total == 0 ? -HUGE_VAL : max + log(total);
  gr_array_set(lse, h, i, 0, 0, l);
  for (int64_t d = 0; d < v->ne[0]; d++) {
    double sum = 0;
    for (int64_t j = 0; j < m; j++)
      if (s[j] != -HUGE_VAL) sum += exp(s[j] - l) * gr_array_get(v, d, hk, j, 0);
    gr_array_set(out, d, h, i, 0, sum);
  }
}

static void reference(const gr_op_call *c)
{
  double *s = gr_reference_scratch(c, c->in[GR_ATTN_V].ne[2]);
  if (!s) return;
  for (int64_t i = 0; i < c->out[0].ne[2]; i++)
    for (int64_t h = 0; h < c->out[0].ne[1]; h++) attend(c, h, i, s);
  gr_free(s);
}

double gr_attention_pairs(const gr_op_call *c)
{
  const struct gr_attention_params *p = c->params;
  const int64_t n = c->in[GR_ATTN_Q].ne[2], m = c->in[GR_ATTN_V].ne[2];
  double pairs = 0;
  for (int64_t i = 0; i < n; i++) {
    int64_t seen = m - n + i + 1; /* keys up to the query itself */
    if (p->window > 0 && seen > p->window) seen = p->window;
    if (seen > 0) pairs += (double)seen;
  }
  return pairs * (double)c->in[GR_ATTN_Q].ne[1];
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *q = &c->in[GR_ATTN_Q], *v = &c->in[GR_ATTN_V];
  double pairs = gr_attention_pairs(c);
  *k = (gr_cost){ .flops = 2 * pairs * (double)(q->ne[0] + v->ne[0]),
                  .bytes_read = 4 * (double)(gr_array_count(q) + gr_array_count(&c->in[GR_ATTN_K]) + gr_array_count(v)),
                  .bytes_written = 4 * (double)(gr_array_count(&c->out[0]) + gr_array_count(&c->out[1])) };
}

/* ---- cases ---- */

static void shared_case(gr_case_sink *s, int i)
{
  gr_attention_case a;
  gr_case c = { 0 };
  double room[2][GR_ATTENTION_CASE_MAX];
  if (!gr_attention_case_get(i, &a, &c.name, &c.flags)) return;
  c.params = &a.params;
  c.flags &= ~(unsigned)GR_CASE_F32; /* scores are never rounded, and nothing cancels */
  gr_attention_case_inputs(&c, &a, room);
  c.tolerance = gr_attention_case_tolerance(&a, 0);
  for (int k = 0; k < 3; k++) c.in[k].grad = !(c.flags & GR_CASE_NO_GRAD);
  if (i % 2) c.n_in = 8; /* the sinks there, but absent */
  gr_case_add(s, &c);
  if (c.flags & GR_CASE_ZERO) return;
  c.name = "with sinks";
  c.n_in = 0;
  c.in[GR_ATTN_SINKS] = (gr_case_in){ .ne = { a.heads } };
  gr_case_add(s, &c);
}

static void refusals(gr_case_sink *s)
{
  gr_attention_case a;
  gr_case c = { 0 }, d;
  double room[2][GR_ATTENTION_CASE_MAX];
  gr_attention_case_get(0, &a, &c.name, &c.flags);
  gr_attention_case_inputs(&c, &a, room);
  c.params = &a.params;
  c.refuse = GR_ERR_MISMATCH;
  c.in[GR_ATTN_SINKS] = (gr_case_in){ .ne = { a.heads } };
  d = c, d.in[GR_ATTN_K].ne[0]++, d.says = "differ in size", gr_case_add(s, &d);
  d = c, d.in[GR_ATTN_V].ne[2]++, d.says = "differ in heads or number", gr_case_add(s, &d);
  d = c, d.in[GR_ATTN_Q].ne[1]++, d.says = "not a multiple", gr_case_add(s, &d);
  d = c, d.in[GR_ATTN_POS_Q].ne[0]--, d.says = "each query", gr_case_add(s, &d);
  d = c, d.in[GR_ATTN_SEG_K].ne[0]--, d.says = "each key", gr_case_add(s, &d);
  d = c, d.in[GR_ATTN_SINKS].ne[0]--, d.says = "each head", gr_case_add(s, &d);
  c.refuse = GR_ERR_UNSUPPORTED;
  d = c, d.in[GR_ATTN_Q].ne[3] = 2, d.says = "no batch dimension", gr_case_add(s, &d);
  d = c, d.in[GR_ATTN_K].dtype = GR_F16, d.says = "must be F32", gr_case_add(s, &d);
  d = c, d.in[GR_ATTN_POS_K].dtype = GR_F32, d.says = "must be I32", gr_case_add(s, &d);
  d = c, d.wants = 1u << GR_ATTN_SINKS, d.says = "sinks are frozen", gr_case_add(s, &d);
  d = c, d.wants = 1u << GR_ATTN_POS_Q, d.says = "integers", gr_case_add(s, &d);
  d = c, d.wants = 1, d.douts = 3, d.says = "log-sum-exp", gr_case_add(s, &d);
  struct gr_attention_params wrong = { NAN, 0, 0 };
  d = c, d.params = &wrong, d.refuse = GR_ERR_NUMERIC, d.says = "finite", gr_case_add(s, &d);
}

/* Over several chunks of keys, with more heads to a key head than any set has rows of sums, from a key that no piece begins with. */
static void one_token_cases(gr_case_sink *s)
{
  static const gr_attention_case ones[] = { { 64, 64, 6, 2, 1, 1100, .params = { 0.125f, 0, 0 } },
                                            { 40, 48, 34, 2, 1, 1100, .params = { 0.3f, 1.5f, 1003 } } };
  for (size_t i = 0; i < 2; i++) {
    gr_case c = { .name = "one token over a long cache",
                  .flags = GR_CASE_NO_GRAD,
                  .params = &ones[i].params,
                  .tolerance = gr_attention_case_tolerance(&ones[i], 0) };
    gr_attention_case_perf(&c, &ones[i]);
    if (i) c.in[GR_ATTN_SINKS] = (gr_case_in){ .ne = { ones[i].heads } };
    gr_case_add(s, &c);
  }
}

static void cases(gr_case_sink *s)
{
  for (int i = 0; i < 32; i++) shared_case(s, i);
  refusals(s);
  one_token_cases(s);
  static const gr_attention_case shapes[] = { { 64, 64, 9, 3, 512, 512, .params = { 0.125f, 0, 0 } },
                                              { 128, 128, 32, 8, 512, 512, .params = { 0.088f, 0, 0 } },
                                              { 128, 128, 8, 2, 2048, 2048, .params = { 0.088f, 0, 0 } },
                                              { 128, 128, 32, 8, 1, 2048, .params = { 0.088f, 0, 0 } } };
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    gr_case c = { .flags = GR_CASE_PERF, .params = &shapes[i].params };
    gr_attention_case_perf(&c, &shapes[i]);
    gr_case_add(s, &c);
  }
}

gr_tensor *gr_attention(gr_graph *g, const struct gr_attention_inputs *in, const struct gr_attention_params *p)
{
  gr_tensor *x[] = { in->q, in->k, in->v, in->pos_q, in->seg_q, in->pos_k, in->seg_k, in->sinks };
  return gr_graph_node(g, GR_OP_attention, x, in->sinks ? 8 : 7, p);
}

const gr_op gr_op_attention = {
  .inputs_min = 7,
  .inputs_max = 8,
  .outputs = 2,
  .saves_in = 0x7f,
  .saves_out = 3,
  .params_bytes = sizeof(struct gr_attention_params),
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
