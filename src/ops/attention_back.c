/* Gradients of attention in the flash form: probabilities are recomputed from the saved log-sum-exp (architectures.md 7.4).
 * With D = dout . out of each query and head (right with sinks too: a sink has no value):
 *   p = exp(s - lse), dv_j += p dout_i, ds = p (dout_i . v_j - D_i) * slope of the softcap, dq_i += scale ds k_j, dk_j += scale ds q_i
 * Keys and values sum over the query heads of their group. A query that sees no key adds nothing.
 * Inputs q, k, v, pos_q, seg_q, pos_k, seg_k, out, lse, dout; outputs dq, dk, dv. */
#include "ops/attention.h"
#include "ops/cases.h"

#include "base/alloc.h"
#include "base/mutant.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *q = c->in[GR_ATTN_Q], *v = c->in[GR_ATTN_V], *out = c->in[GR_ATTN_OUT], *lse = c->in[GR_ATTN_LSE];
  char a[160], b[160];
  GR_TRY(gr_attention_check(c, "attention_back", e));
  GR_TRY(gr_infer_need_f32(c, "attention_back", 7u << GR_ATTN_OUT, e));
  GR_TRY(gr_infer_need_same("attention_back", out, c->in[GR_ATTN_DOUT], e));
  if (out->ne[0] != v->ne[0] || out->ne[1] != q->ne[1] || out->ne[2] != q->ne[2] || lse->ne[0] != q->ne[1] || lse->ne[1] != q->ne[2])
    return gr_fail(e, GR_ERR_MISMATCH, "attention_back: %s and %s are not what attention gave", gr_tensor_describe(out, a, sizeof a),
                   gr_tensor_describe(lse, b, sizeof b));
  for (int i = 0; i < 3; i++) gr_infer_like(&c->out[i], c->in[i]);
  return GR_OK;
}

/* Adds what query i of head h gives: into dq of that query, and into the sums dk, dv over all keys of head hk. */
static void back_query(const gr_op_call *c, int64_t h, int64_t hk, int64_t i, double *dq, double *dk, double *dv)
{
  const struct gr_attention_params *p = c->params;
  const gr_array *q = &c->in[GR_ATTN_Q], *k = &c->in[GR_ATTN_K], *v = &c->in[GR_ATTN_V];
  const gr_array *out = &c->in[GR_ATTN_OUT], *dout = &c->in[GR_ATTN_DOUT];
  int64_t dh = q->ne[0], width = v->ne[0];
  double lse = gr_array_get(&c->in[GR_ATTN_LSE], h, i, 0, 0), along = 0;
  for (int64_t d = 0; d < width; d++) along += gr_array_get(dout, d, h, i, 0) * gr_array_get(out, d, h, i, 0);
  for (int64_t d = 0; d < dh; d++) dq[d] = 0;
  for (int64_t j = 0; j < k->ne[2]; j++) {
    if (!gr_attention_visible(c, i, j)) continue;
    double slope, prob = exp(gr_attention_score(c, h, hk, i, j, &slope) - lse), dp = 0;
    for (int64_t d = 0; d < width; d++) {
      dp += gr_array_get(dout, d, h, i, 0) * gr_array_get(v, d, hk, j, 0);
      dv[j * width + d] += prob * gr_array_get(dout, d, h, i, 0);
    }
    if (GR_MUTANT(rule_attention_no_softcap)) slope = 1;
    double ds = (double)p->scale * prob * (dp - (GR_MUTANT(rule_attention_no_flow) ? 0 : along)) * slope;
    for (int64_t d = 0; d < dh; d++) {
      dq[d] += ds * gr_array_get(k, d, hk, j, 0);
      dk[j * dh + d] += ds * gr_array_get(q, d, h, i, 0);
    }
  }
}

static void reference(const gr_op_call *c)
{
  const gr_array *q = &c->in[GR_ATTN_Q], *k = &c->in[GR_ATTN_K], *v = &c->in[GR_ATTN_V];
  int64_t dh = q->ne[0], width = v->ne[0], m = k->ne[2], group = q->ne[1] / k->ne[1];
  double *dq = gr_reference_scratch(c, dh + m * (dh + width));
  if (!dq) return;
  double *dk = dq + dh, *dv = dk + m * dh;
  for (int64_t hk = 0; hk < k->ne[1]; hk++) {
    for (int64_t n = 0; n < m * (dh + width); n++) dk[n] = 0;
    for (int64_t h = hk * group; h < (hk + 1) * group; h++)
      for (int64_t i = 0; i < q->ne[2]; i++) {
        back_query(c, h, hk, i, dq, dk, dv);
        for (int64_t d = 0; d < dh; d++) gr_array_set(&c->out[0], d, h, i, 0, dq[d]);
      }
    for (int64_t j = 0; j < m; j++) {
      for (int64_t d = 0; d < dh; d++) gr_array_set(&c->out[1], d, hk, j, 0, dk[j * dh + d]);
      for (int64_t d = 0; d < width; d++) gr_array_set(&c->out[2], d, hk, j, 0, dv[j * width + d]);
    }
  }
  gr_free(dq);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *q = &c->in[GR_ATTN_Q], *v = &c->in[GR_ATTN_V];
  double pairs = gr_attention_pairs(c), in = 0, out = 0;
  for (int i = 0; i < c->n_in; i++) in += 4 * (double)gr_array_count(&c->in[i]);
  for (int i = 0; i < 3; i++) out += 4 * (double)gr_array_count(&c->out[i]);
  *k = (gr_cost){ .flops = 2 * pairs * (double)(3 * q->ne[0] + 2 * v->ne[0]), .bytes_read = in, .bytes_written = out };
}

/* ---- cases ---- */

/* out and lse are what attention gives for these inputs. */
static void prepare_with(gr_op_call *c, const gr_array *sinks)
{
  gr_op_call forward = {
    .op = GR_OP_attention, .params = c->params, .n_in = sinks ? 8 : 7, .n_out = 2, .out = { c->in[GR_ATTN_OUT], c->in[GR_ATTN_LSE] }
  };
  for (int i = 0; i < GR_ATTN_SINKS; i++) forward.in[i] = c->in[i];
  if (sinks) forward.in[GR_ATTN_SINKS] = *sinks;
  gr_op_get(GR_OP_attention)->reference(&forward);
}

static void prepare(gr_op_call *c) { prepare_with(c, NULL); }

static void prepare_with_sinks(gr_op_call *c)
{
  double values[64];
  gr_array sinks = { .data = values, .dtype = GR_F64, .ne = { c->in[GR_ATTN_Q].ne[1], 1, 1, 1 } };
  for (int i = 0; i < 64; i++) values[i] = 0.25 * (i % 7) - 0.5;
  gr_strides_contiguous(GR_F64, sinks.ne, sinks.nb);
  prepare_with(c, &sinks);
}

static void later_inputs(gr_case *c, const gr_attention_case *a)
{
  uint8_t tokens = a->key_dim ? GR_DIM_TOKENS : GR_DIM_STATIC;
  c->in[GR_ATTN_OUT] = (gr_case_in){ .ne = { a->width, a->heads, a->n }, .dim = { 0, 0, tokens } };
  c->in[GR_ATTN_LSE] = (gr_case_in){ .ne = { a->heads, a->n }, .dim = { 0, tokens } };
  c->in[GR_ATTN_DOUT] = (gr_case_in){ .ne = { a->width, a->heads, a->n }, .dim = { 0, 0, tokens }, .layout = a->layout };
  c->in[GR_ATTN_DOUT].fill.bf16 = a->q.bf16;
}

static void shared_case(gr_case_sink *s, int i)
{
  gr_attention_case a;
  gr_case c = { .prepare = prepare };
  double room[2][GR_ATTENTION_CASE_MAX];
  if (!gr_attention_case_get(i, &a, &c.name, &c.flags)) return;
  c.params = &a.params;
  gr_attention_case_inputs(&c, &a, room);
  later_inputs(&c, &a);
  /* dout.v - dout.out cancels where one key has all the weight: 0 in the truth, a rounding in a kernel. So there is a floor, and
   * what must be exactly 0 is said. */
  c.tolerance = gr_attention_case_tolerance(&a, c.flags & GR_CASE_ZERO ? 0 : 1);
  /* Padding is exactly 0 in all three gradients. */
  for (int64_t t = 0; a.seg_q && t < a.n; t++)
    if (a.seg_q[t] < 0 && c.n_zero < GR_CASE_ZERO_SLICES) c.zero[c.n_zero].out = 0, c.zero[c.n_zero].dim = 2, c.zero[c.n_zero++].at = t;
  for (int64_t t = 0; a.seg_k && t < a.m; t++)
    for (int o = 1; o < 3 && a.seg_k[t] < 0 && c.n_zero < GR_CASE_ZERO_SLICES; o++)
      c.zero[c.n_zero].out = (int8_t)o, c.zero[c.n_zero].dim = 2, c.zero[c.n_zero++].at = t;
  gr_case_add(s, &c);
  if (c.flags & GR_CASE_ZERO) return;
  c.name = "with sinks, gradients to 1.5e5";
  c.prepare = prepare_with_sinks;
  c.tolerance = gr_attention_case_tolerance(&a, 1.5e5);
  c.in[GR_ATTN_DOUT].fill = (gr_fill){ .a = 1.5e5, .bf16 = a.q.bf16 };
  gr_case_add(s, &c);
}

static void cases(gr_case_sink *s)
{
  for (int i = 0; i < 32; i++) shared_case(s, i);
  static const gr_attention_case many = { 24, 40, 3, 1, 600, 600, .params = { 0.2f, 0, 0 } };
  gr_case long_case = { .name = "keys of several chunks",
                        .flags = GR_CASE_NO_GRAD,
                        .params = &many.params,
                        .prepare = prepare,
                        .tolerance = gr_attention_case_tolerance(&many, 1) };
  gr_attention_case_perf(&long_case, &many);
  later_inputs(&long_case, &many);
  gr_case_add(s, &long_case);
  static const gr_attention_case shapes[] = { { 64, 64, 9, 3, 512, 512, .params = { 0.125f, 0, 0 } },
                                              { 128, 128, 32, 8, 512, 512, .params = { 0.088f, 0, 0 } },
                                              { 128, 128, 8, 2, 2048, 2048, .params = { 0.088f, 0, 0 } } };
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    gr_case c = { .flags = GR_CASE_PERF, .params = &shapes[i].params };
    gr_attention_case_perf(&c, &shapes[i]);
    later_inputs(&c, &shapes[i]);
    gr_case_add(s, &c);
  }
  gr_attention_case a = shapes[0];
  a.n = a.m = 5;
  gr_case c = { .params = &a.params, .refuse = GR_ERR_MISMATCH };
  gr_attention_case_perf(&c, &a);
  later_inputs(&c, &a);
  c.in[GR_ATTN_DOUT].ne[2]++, c.says = "differ in shape", gr_case_add(s, &c);
  c.in[GR_ATTN_DOUT].ne[2]--, c.in[GR_ATTN_LSE].ne[0]--, c.says = "not what attention gave", gr_case_add(s, &c);
}

gr_tensor *gr_attention_back(gr_graph *g, const struct gr_attention_inputs *in, gr_tensor *out, gr_tensor *lse, gr_tensor *dout,
                             const struct gr_attention_params *p)
{
  gr_tensor *x[] = { in->q, in->k, in->v, in->pos_q, in->seg_q, in->pos_k, in->seg_k, out, lse, dout };
  return gr_graph_node(g, GR_OP_attention_back, x, 10, p);
}

const gr_op gr_op_attention_back = {
  .inputs_min = 10,
  .inputs_max = 10,
  .outputs = 3,
  .flags = GR_OP_NO_BACKWARD,
  .params_bytes = sizeof(struct gr_attention_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
