/* y[c,t] = x[c,t] / (1 - rate) where the mask keeps it, else 0; the mask is stated in ops/dropout.h: a function of (seed, step,
 * sample, token, adapter, channel), recomputed rather than saved. x [C,n], keys [2,n] I32, run [4] I32.
 * Gradient: dx = dropout(dy) with the same mask. */
#include "ops/dropout.h"
#include "ops/cases.h"

#include "base/mutant.h"
#include "ops/params.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const struct gr_dropout_params *p = c->params;
  const gr_tensor *x = c->in[0], *keys = c->in[1], *run = c->in[2];
  char a[160], b[160];
  GR_TRY(gr_infer_need_f32(c, "dropout", 1, e));
  gr_tensor_describe(x, a, sizeof a);
  if (!(p->rate >= 0 && p->rate < 1)) return gr_fail(e, GR_ERR_NUMERIC, "dropout: the rate is %g, it must be in [0, 1)", (double)p->rate);
  if (x->ne[2] != 1 || x->ne[3] != 1) return gr_fail(e, GR_ERR_UNSUPPORTED, "dropout: takes [channels, tokens], not %s", a);
  if (keys->dtype != GR_I32 || keys->ne[0] != 2 || keys->ne[1] != x->ne[1] || keys->dim[1] != x->dim[1] || keys->ne[2] != 1 ||
      keys->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "dropout: keys %s must be I32 [2, tokens] for %s", gr_tensor_describe(keys, b, sizeof b), a);
  if (run->dtype != GR_I32 || run->ne[0] != 4 || run->ne[1] != 1 || run->ne[2] != 1 || run->ne[3] != 1)
    return gr_fail(e, GR_ERR_MISMATCH, "dropout: run %s must be I32 [4]", gr_tensor_describe(run, b, sizeof b));
  gr_infer_like(&c->out[0], x);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  const struct gr_dropout_params *p = (const void *)b->node->params;
  GR_TRY(gr_backward_refuse(b, 6, "keys are integers", e));
  if (b->wants[0])
    b->din[0] = gr_dropout(b->graph, b->dout[0], b->node->in[1], b->node->in[2], p->rate, p->adapter + GR_MUTANT(rule_dropout_other_mask));
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const struct gr_dropout_params *p = c->params;
  const gr_array *x = &c->in[0], *keys = &c->in[1], *y = &c->out[0];
  int32_t run[4];
  for (int i = 0; i < 4; i++) run[i] = (int32_t)gr_array_get(&c->in[2], i, 0, 0, 0);
  uint64_t key = gr_dropout_key(run, p->adapter);
  uint32_t threshold = gr_dropout_threshold(p->rate), words[4] = { 0 };
  for (int64_t t = 0; t < y->ne[1]; t++)
    for (int64_t i = 0; i < y->ne[0]; i++) {
      if (i % 4 == 0)
        gr_dropout_words(key, (int32_t)gr_array_get(keys, 0, t, 0, 0), (int32_t)gr_array_get(keys, 1, t, 0, 0), (uint32_t)(i / 4), words);
      bool kept = words[i % 4] >= threshold;
      gr_array_set(y, i, t, 0, 0, kept ? gr_array_get(x, i, t, 0, 0) * gr_dropout_scale(p->rate) : 0);
    }
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->out[0]);
  *k = (gr_cost){ .flops = n, .bytes_read = 4 * n, .bytes_written = 4 * n };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 1e-7, .defect = 2e-4 };
  struct gr_dropout_params p[] = { { 0.1f, 0 }, { 0.5f, 3 }, { 0.9f, 1 << 30 }, { 0, 1 } }, wrong = { 1, 0 }, nan = { NAN, 0 };
  gr_case_in x = { .ne = { 67, 5 }, .dim = { 0, GR_DIM_TOKENS }, .grad = true };
  gr_case_in keys = {
    .dtype = GR_I32, .ne = { 2, 5 }, .dim = { 0, GR_DIM_TOKENS }, .fill = GR_FILL_LIST(3, 0, 3, 1, 3, 2, -7, 0, 2147483647, 1)
  };
  gr_case_in run = { .dtype = GR_I32, .ne = { 4 }, .fill = GR_FILL_LIST(42, -1, 17, 0) };
  for (int i = 0; i < 4; i++) {
    gr_case_add(s, &(gr_case){ .params = &p[i], .in = { x, keys, run } });
    gr_case_add(
        s,
        &(gr_case){ .name = "one token",
                    .params = &p[i],
                    .in = { { .ne = { 130, 1 }, .grad = true }, { .dtype = GR_I32, .ne = { 2, 1 }, .fill = GR_FILL_LIST(1, 2) }, run } });
    for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++) {
      gr_case_in other = x;
      other.layout = (gr_layout)a;
      gr_case_add(s, &(gr_case){ .params = &p[i], .in = { other, keys, run } });
    }
  }
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF,
                             .params = &p[0],
                             .in = { { .ne = { 2048, 512 } }, { .dtype = GR_I32, .ne = { 2, 512 }, .fill = gr_fill_count() }, run } });
  gr_case_add(s, &(gr_case){ .params = &wrong, .in = { x, keys, run }, .refuse = GR_ERR_NUMERIC, .says = "rate" });
  gr_case_add(s, &(gr_case){ .params = &nan, .in = { x, keys, run }, .refuse = GR_ERR_NUMERIC, .says = "rate" });
  gr_case_add(s, &(gr_case){ .params = &p[0], .in = { { .ne = { 67, 4 } }, keys, run }, .refuse = GR_ERR_MISMATCH, .says = "keys" });
  gr_case_add(
      s, &(gr_case){ .params = &p[0], .in = { x, keys, { .dtype = GR_I32, .ne = { 3 } } }, .refuse = GR_ERR_MISMATCH, .says = "I32 [4]" });
  gr_case_add(
      s, &(gr_case){
             .params = &p[0], .in = { { .ne = { 67, 5, 2 } }, keys, run }, .refuse = GR_ERR_UNSUPPORTED, .says = "[channels, tokens]" });
  gr_case_add(s,
              &(gr_case){ .params = &p[0], .in = { x, keys, run }, .wants = 3, .refuse = GR_ERR_UNSUPPORTED, .says = "keys are integers" });
}

gr_tensor *gr_dropout(gr_graph *g, gr_tensor *x, gr_tensor *keys, gr_tensor *run, float rate, int adapter)
{
  struct gr_dropout_params p = { .rate = rate, .adapter = adapter };
  return gr_graph_node(g, GR_OP_dropout, (gr_tensor *[]){ x, keys, run }, 3, &p);
}

const gr_op gr_op_dropout = {
  .inputs_min = 3,
  .inputs_max = 3,
  .outputs = 1,
  .saves_in = 6,
  .params_bytes = sizeof(struct gr_dropout_params),
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
