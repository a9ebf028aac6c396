/* Fused: head_loss and head_loss_back of a head without an adapter, where what arrives at nll is known beforehand (a seed): each logit is
 * computed once. Inputs w, h, labels, dnll and, where there is one, bias. Outputs nll [n] and dh [D,n]; the log-sum-exp stays inside.
 * Made by the fusion pass; the two nodes it replaces are its oracle. */
#include "ops/cases.h"
#include "ops/head_loss.h"

#include <string.h>

#include "base/alloc.h"

enum { DNLL = 3 };
static const gr_head_at here = { 4, 5, 6 }; /* the last two are never there */

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *h = c->in[GR_HEAD_H], *dnll = c->in[DNLL];
  GR_TRY(gr_head_check(c, "head_loss_dh", here, e));
  GR_TRY(gr_infer_need_f32(c, "head_loss_dh", 1u << DNLL, e));
  if (dnll->ne[0] != h->ne[1] || dnll->ne[1] != 1 || dnll->dim[0] != h->dim[1])
    return gr_fail(e, GR_ERR_MISMATCH, "head_loss_dh: dnll and h differ in tokens");
  gr_infer_dim(&c->out[0], 0, h, 1);
  gr_infer_like(&c->out[1], h);
  return GR_OK;
}

/* The two nodes, one after the other; their log-sum-exp is kept in double. */
static void reference(const gr_op_call *c)
{
  gr_array lse = { .dtype = GR_F64, .ne = { c->out[0].ne[0], 1, 1, 1 } };
  gr_strides_contiguous(GR_F64, lse.ne, lse.nb);
  if (!(lse.data = gr_reference_scratch(c, lse.ne[0]))) return;
  gr_op_call forward = { .op = GR_OP_head_loss, .params = c->params, .n_in = 4, .n_out = 2, .out = { c->out[0], lse } };
  gr_op_call back = { .op = GR_OP_head_loss_back, .params = c->params, .n_in = 6, .n_out = 1, .out = { c->out[1] } };
  for (int i = GR_HEAD_W; i <= GR_HEAD_LABELS; i++) forward.in[i] = back.in[i] = c->in[i];
  forward.in[gr_head_forward_at.bias] = back.in[gr_head_back_at.bias] = gr_head_has(c, here.bias) ? c->in[here.bias] : (gr_array){ 0 };
  back.in[GR_HEAD_BACK_LSE] = lse;
  back.in[GR_HEAD_BACK_DNLL] = c->in[DNLL];
  gr_op_get(GR_OP_head_loss)->reference(&forward);
  gr_op_get(GR_OP_head_loss_back)->reference(&back);
  gr_free(lse.data);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  const gr_array *w = &c->in[GR_HEAD_W], *h = &c->in[GR_HEAD_H];
  *k = (gr_cost){ .flops = 4 * (double)h->ne[1] * (double)(w->ne[0] * w->ne[1]),
                  .bytes_read = (double)gr_row_bytes(w->dtype, w->ne[0]) * (double)w->ne[1] + 4 * (double)gr_array_count(h),
                  .bytes_written = 4 * (double)(gr_array_count(h) + h->ne[1]) };
}

/* ---- cases ---- */

static void refusals(gr_case_sink *s, gr_case c)
{
  c.flags = 0, c.name = "", c.refuse = GR_ERR_MISMATCH, c.says = "differ in tokens";
  c.in[DNLL].ne[0]++;
  gr_case_add(s, &c);
  c.in[DNLL].ne[0]--, c.in[DNLL].dtype = GR_F16, c.refuse = GR_ERR_UNSUPPORTED, c.says = "must be F32";
  gr_case_add(s, &c);
}

static void cases(gr_case_sink *s)
{
  gr_head_case h;
  gr_case c = { 0 };
  for (int i = 0; gr_head_case_get(i, &h, &c.name, &c.flags); i++) {
    memset(c.in, 0, sizeof c.in);
    h.rank = 0;
    gr_head_case_inputs(&c, here, &h);
    c.tolerance = gr_head_case_tolerance(&h, true);
    c.n_in = i % 2 ? 5 : 0;
    c.in[DNLL] = (gr_case_in){ .ne = { h.n }, .dim = { GR_DIM_TOKENS }, .fill = gr_fill_normal(i % 3 ? 1 : 1.5e5) };
    gr_case_add(s, &c);
  }
  h = (gr_head_case){
    GR_Q8_0, 64, 5003, 21, gr_fill_below(5003), .params = { 1, 0, 1 }, .logits = 50
  }; /* maxima rise from block to block */
  c = (gr_case){ .name = "blocks of the vocabulary", .tolerance = gr_head_case_tolerance(&h, true) };
  gr_head_case_inputs(&c, here, &h);
  c.in[DNLL] = (gr_case_in){ .ne = { h.n }, .dim = { GR_DIM_TOKENS } };
  gr_case_add(s, &c);
  refusals(s, c);
}

gr_tensor *gr_head_loss_dh(gr_graph *g, const struct gr_head_inputs *in, gr_tensor *dnll, const struct gr_head_params *p)
{
  gr_tensor *x[] = { in->w, in->h, in->labels, dnll, in->bias };
  return gr_graph_node(g, GR_OP_head_loss_dh, x, 5, p);
}

const gr_op gr_op_head_loss_dh = {
  .inputs_min = 4,
  .inputs_max = 5,
  .outputs = 2,
  .flags = GR_OP_FUSED,
  .params_bytes = sizeof(struct gr_head_params),
  .infer = infer,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
