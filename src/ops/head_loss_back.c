/* Gradients of head_loss, from the saved log-sum-exp (architectures.md 7.6). Of each token that is not masked:
 *   g_v = dnll (exp(z_v - lse) - [v == label]) * slope_v, slope_v = scale (1 - (z_v/softcap)^2)
 *   dh = sum over v of g_v W_v + sum over r of q_r A_r, q = lora_scale B^T g
 *   dA_r += q_r h, dB_v += lora_scale g_v (A h)
 * Inputs w, h, labels, lse, dnll and, where there are any, bias, a, b. Outputs dh [D,n] and, with an adapter, da, db. Rows of dh of
 * masked tokens are exactly 0. */
#include "ops/cases.h"
#include "ops/head_loss.h"

#include <string.h>

#include "base/alloc.h"
#include "base/mutant.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *h = c->in[GR_HEAD_H], *lse = c->in[GR_HEAD_BACK_LSE];
  gr_head_at at = gr_head_back_at;
  GR_TRY(gr_head_check(c, "head_loss_back", at, e));
  GR_TRY(gr_infer_need_f32(c, "head_loss_back", 1u << GR_HEAD_BACK_LSE | 1u << GR_HEAD_BACK_DNLL, e));
  GR_TRY(gr_infer_need_same("head_loss_back", lse, c->in[GR_HEAD_BACK_DNLL], e));
  if (lse->ne[0] != h->ne[1] || lse->ne[1] != 1) return gr_fail(e, GR_ERR_MISMATCH, "head_loss_back: lse and h differ in tokens");
  bool adapter = at.a < c->n_in && c->in[at.a];
  gr_infer_like(&c->out[0], h);
  c->n_out = adapter ? 3 : 1;
  if (adapter) {
    gr_infer_like(&c->out[1], c->in[at.a]);
    gr_infer_like(&c->out[2], c->in[at.b]);
  }
  return GR_OK;
}

typedef struct back_scratch {
  double *row, *u, *q, *z, *slope, *dh; /* D, r, r, V, V, D */
  double *da, *db;                      /* sums over tokens: D*r, r*V */
} back_scratch;

static void back_token(const gr_op_call *c, int64_t t, int64_t label, const back_scratch *s)
{
  const struct gr_head_params *p = c->params;
  const gr_array *w = &c->in[GR_HEAD_W], *h = &c->in[GR_HEAD_H], *a = &c->in[gr_head_back_at.a], *b = &c->in[gr_head_back_at.b];
  int64_t width = w->ne[0], rank = gr_head_has(c, gr_head_back_at.a) ? a->ne[1] : 0;
  double lse = gr_array_get(&c->in[GR_HEAD_BACK_LSE], t, 0, 0, 0), dnll = gr_array_get(&c->in[GR_HEAD_BACK_DNLL], t, 0, 0, 0);
  gr_head_logits(c, gr_head_back_at, t, s->row, s->u, s->z, s->slope);
  for (int64_t r = 0; r < rank; r++) s->q[r] = 0;
  for (int64_t v = 0; v < w->ne[1]; v++) {
    double softmax = exp(s->z[v] - lse), hit = v == label;
    double g = (GR_MUTANT(rule_head_loss_no_weight) ? softmax - dnll * hit : dnll * (softmax - hit)) * s->slope[v];
    gr_reference_row(w, v, 0, 0, s->row);
    for (int64_t i = 0; i < width; i++) s->dh[i] += g * s->row[i];
    for (int64_t r = 0; r < rank; r++) {
      s->q[r] += (GR_MUTANT(rule_head_loss_no_lora_scale) ? 1 : (double)p->lora_scale) * g * gr_array_get(b, r, v, 0, 0);
      s->db[v * rank + r] += (double)p->lora_scale * g * s->u[r];
    }
  }
  for (int64_t r = 0; r < rank; r++)
    for (int64_t i = 0; i < width; i++) {
      s->dh[i] += s->q[r] * gr_array_get(a, i, r, 0, 0);
      s->da[r * width + i] += s->q[r] * gr_array_get(h, i, t, 0, 0);
    }
}

static void reference(const gr_op_call *c)
{
  const gr_array *w = &c->in[GR_HEAD_W], *labels = &c->in[GR_HEAD_LABELS], *dh = &c->out[0];
  int64_t width = w->ne[0], vocab = w->ne[1], rank = gr_head_has(c, gr_head_back_at.a) ? c->in[gr_head_back_at.a].ne[1] : 0;
  double *p = gr_reference_scratch(c, 2 * width + 2 * rank + 2 * vocab + rank * (width + vocab));
  if (!p) return;
  back_scratch s = { .row = p, .u = p + width };
  s.q = s.u + rank, s.z = s.q + rank, s.slope = s.z + vocab, s.dh = s.slope + vocab, s.da = s.dh + width, s.db = s.da + rank * width;
  for (int64_t t = 0; t < dh->ne[1]; t++) {
    int64_t label = (int64_t)gr_array_get(labels, t, 0, 0, 0);
    for (int64_t i = 0; i < width; i++) s.dh[i] = 0;
    if (label >= 0 && label < vocab) back_token(c, t, label, &s);
    for (int64_t i = 0; i < width; i++) gr_array_set(dh, i, t, 0, 0, s.dh[i]);
  }
  for (int64_t r = 0; r < rank; r++) {
    for (int64_t i = 0; i < width; i++) gr_array_set(&c->out[1], i, r, 0, 0, s.da[r * width + i]);
    for (int64_t v = 0; v < vocab; v++) gr_array_set(&c->out[2], r, v, 0, 0, s.db[v * rank + r]);
  }
  gr_free(p);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *w = &c->in[GR_HEAD_W], *h = &c->in[GR_HEAD_H];
  double n = (double)h->ne[1], rank = gr_head_has(c, gr_head_back_at.a) ? (double)c->in[gr_head_back_at.a].ne[1] : 0;
  double factors = rank * (double)(w->ne[0] + w->ne[1]);
  *k = (gr_cost){ .flops = 4 * n * (double)(w->ne[0] * w->ne[1]) + 6 * n * factors,
                  .bytes_read = (double)gr_row_bytes(w->dtype, w->ne[0]) * (double)w->ne[1] + 4 * (double)gr_array_count(h) + 4 * factors,
                  .bytes_written = 4 * (double)gr_array_count(h) + 4 * factors };
}

/* ---- cases ---- */

/* lse is what head_loss gives for these inputs. */
static void prepare(gr_op_call *c)
{
  gr_head_at at = gr_head_back_at;
  gr_op_call forward = { .op = GR_OP_head_loss,
                         .params = c->params,
                         .n_in = 6,
                         .n_out = 2,
                         .in = { c->in[GR_HEAD_W], c->in[GR_HEAD_H], c->in[GR_HEAD_LABELS], c->in[at.bias], c->in[at.a], c->in[at.b] },
                         .out = { c->in[GR_HEAD_BACK_LSE], c->in[GR_HEAD_BACK_LSE] } };
  double *nll = gr_alloc((size_t)c->in[GR_HEAD_BACK_LSE].ne[0] * sizeof *nll);
  forward.out[0].data = nll;
  forward.out[0].dtype = GR_F64;
  gr_strides_contiguous(GR_F64, forward.out[0].ne, forward.out[0].nb);
  if (nll) gr_op_get(GR_OP_head_loss)->reference(&forward);
  gr_free(nll);
}

static void cases(gr_case_sink *s)
{
  gr_head_case h;
  gr_case c = { .prepare = prepare };
  for (int i = 0; gr_head_case_get(i, &h, &c.name, &c.flags); i++) {
    memset(c.in, 0, sizeof c.in);
    gr_head_case_inputs(&c, gr_head_back_at, &h);
    c.tolerance = gr_head_case_tolerance(&h, true);
    c.n_in = i % 2 ? 8 : 0;
    c.in[GR_HEAD_BACK_LSE] = (gr_case_in){ .ne = { h.n }, .dim = { GR_DIM_TOKENS } };
    c.in[GR_HEAD_BACK_DNLL] = (gr_case_in){ .ne = { h.n }, .dim = { GR_DIM_TOKENS }, .fill = gr_fill_normal(i % 3 ? 1 : 1.5e5) };
    gr_case_add(s, &c);
  }
  c.flags = 0, c.refuse = GR_ERR_MISMATCH, c.says = "differ in shape", c.name = "";
  c.in[GR_HEAD_BACK_DNLL].ne[0]++;
  gr_case_add(s, &c);
  c.in[GR_HEAD_BACK_DNLL].ne[0]--, c.in[GR_HEAD_BACK_DNLL].dtype = GR_F16, c.refuse = GR_ERR_UNSUPPORTED, c.says = "must be F32";
  gr_case_add(s, &c);
}

gr_tensor *gr_head_loss_back(gr_graph *g, const struct gr_head_inputs *in, gr_tensor *lse, gr_tensor *dnll, const struct gr_head_params *p)
{
  gr_tensor *x[] = { in->w, in->h, in->labels, lse, dnll, in->bias, in->a, in->b };
  return gr_graph_node(g, GR_OP_head_loss_back, x, 8, p);
}

const gr_op gr_op_head_loss_back = {
  .inputs_min = 5,
  .inputs_max = 8,
  .outputs = 3,
  .flags = GR_OP_NO_BACKWARD,
  .params_bytes = sizeof(struct gr_head_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
