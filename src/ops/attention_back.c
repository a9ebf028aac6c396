/* Gradients of attention in the flash form: probabilities are recomputed from the saved log-sum-exp (architectures.md 7.4).
 * With D = dout . out of each query and head (right with sinks too: a sink has no value):
 *   p = exp(s - lse), dv_j += p dout_i, ds = p (dout_i . v_j - D_i) * slope of the softcap, dq_i += scale ds k_j, dk_j += scale ds q_i
 * Keys and values sum over the query heads of their group. A query that sees no key adds nothing.
 * Inputs q, k, v, pos_q, seg_q, pos_k, seg_k, out, lse, dout; outputs dq, dk, dv. */
#include "ops/attention.h"

#include "base/alloc.h"

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
    double ds = (double)p->scale * prob * (dp - along) * slope;
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
  double pairs = (double)q->ne[1] * (double)q->ne[2] * (double)v->ne[2], in = 0, out = 0;
  for (int i = 0; i < c->n_in; i++) in += 4 * (double)gr_array_count(&c->in[i]);
  for (int i = 0; i < 3; i++) out += 4 * (double)gr_array_count(&c->out[i]);
  *k = (gr_cost){ .flops = 2 * pairs * (double)(3 * q->ne[0] + 2 * v->ne[0]), .bytes_read = in, .bytes_written = out };
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
};
