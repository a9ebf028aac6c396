/* Attention in bf16 is attention of rounded operands, summed in F32: nothing but the rounding differs, on any instruction set. Scores are
 * not rounded, nor is the attention of a single query. */
#include "attention_fixture.h"

#include "base/half.h"
#include "ops/attention.h"

static int setup_bf16(void **state)
{
  gr_error e;
  if (setup(state) != 0) return -1;
  fixture *f = *state;
  for (int s = 0; s < SETS; s++)
    if (f->backend[s]) assert_ok(gr_backend_use_precision(f->backend[s], GR_PRECISION_BF16, &e), &e);
  return 0;
}

static double rounded(double x) { return (double)gr_bf16_to_f32(gr_f32_to_bf16((float)x)); }
static double at(const gr_array *a, int64_t i, int64_t h, int64_t t) { return rounded(gr_array_get(a, i, h, t, 0)); }

/* ---- the same in double, of rounded operands ---- */

static void forward(const gr_op_call *c, double *out)
{
  const gr_array *q = &c->in[GR_ATTN_Q], *v = &c->in[GR_ATTN_V];
  const bool sinks = c->n_in > GR_ATTN_SINKS;
  int64_t group = q->ne[1] / v->ne[1], width = v->ne[0], m = v->ne[2];
  double slope, *s = gr_alloc((size_t)m * sizeof *s);
  memset(out, 0, (size_t)gr_array_count(&c->out[0]) * sizeof *out);
  for (int64_t i = 0; i < q->ne[2]; i++)
    for (int64_t h = 0; h < q->ne[1]; h++, out += width) {
      double sink = sinks ? gr_array_get(&c->in[GR_ATTN_SINKS], h, 0, 0, 0) : -HUGE_VAL, top = sink, total = 0;
      for (int64_t j = 0; j < m; j++) {
        s[j] = gr_attention_visible(c, i, j) ? gr_attention_score(c, h, h / group, i, j, &slope) : -HUGE_VAL;
        top = fmax(top, s[j]);
      }
      if (top == -HUGE_VAL) continue;
      for (int64_t j = 0; j < m; j++) {
        double p = exp(s[j] - top);
        total += p;
        for (int64_t d = 0; d < width; d++) out[d] += rounded(p) * at(v, d, h / group, j);
      }
      total += exp(sink - top);
      for (int64_t d = 0; d < width; d++) out[d] /= total;
    }
  gr_free(s);
}

/* dq, dk, dv one after the other. */
static void backward(const gr_op_call *c, double *dq)
{
  const struct gr_attention_params *p = c->params;
  const gr_array *q = &c->in[GR_ATTN_Q], *k = &c->in[GR_ATTN_K], *v = &c->in[GR_ATTN_V], *dout = &c->in[GR_ATTN_DOUT];
  int64_t heads = q->ne[1], kv = k->ne[1], dh = q->ne[0], width = v->ne[0];
  double *dk = dq + gr_array_count(q), *dv = dk + gr_array_count(k), slope;
  memset(dq, 0, (size_t)(gr_array_count(q) + gr_array_count(k) + gr_array_count(v)) * sizeof *dq);
  for (int64_t i = 0; i < q->ne[2]; i++)
    for (int64_t h = 0; h < heads; h++) {
      int64_t hk = h / (heads / kv);
      double flow = 0;
      for (int64_t d = 0; d < width; d++) flow += at(dout, d, h, i) * gr_array_get(&c->in[GR_ATTN_OUT], d, h, i, 0);
      for (int64_t j = 0; j < k->ne[2]; j++) {
        if (!gr_attention_visible(c, i, j)) continue;
        double prob = exp(gr_attention_score(c, h, hk, i, j, &slope) - gr_array_get(&c->in[GR_ATTN_LSE], h, i, 0, 0)), along = 0;
        for (int64_t d = 0; d < width; d++) {
          along += at(dout, d, h, i) * at(v, d, hk, j);
          dv[(j * kv + hk) * width + d] += rounded(prob) * at(dout, d, h, i);
        }
        double g = rounded(prob * (along - flow) * slope);
        for (int64_t d = 0; d < dh; d++) {
          dq[(i * heads + h) * dh + d] += (double)p->scale * g * at(k, d, hk, j);
          dk[(j * kv + hk) * dh + d] += g * rounded((double)p->scale * gr_array_get(q, d, h, i, 0));
        }
      }
    }
}

/* ---- comparing ---- */

/* Sums in F32, and now and then a probability that rounds to the other neighbour because its score is off by a float's last place: 2e-4 at
 * most. Operands that are not rounded, or otherwise, are 1e-3 off and more. */
static void compare(const gr_op_call *c, int first, int n, const double *want, const char *set)
{
  for (int o = first; o < first + n; o++) {
    double wrong = 0, square = 0;
    int64_t count = gr_array_count(&c->out[o]);
    for (int64_t i = 0; i < count; i++, want++) wrong += pow((double)((float *)c->out[o].data)[i] - *want, 2), square += *want * *want;
    double error = sqrt(wrong / square);
    if (!(error < 5e-4)) fail_msg("%s, output %d: error %.3g", set, o, error);
  }
}

static void check_node(fixture *f, gr_tensor *t, int n, void (*reference)(const gr_op_call *, double *))
{
  gr_op_call shape = call_of(t->node);
  int64_t count = 0;
  for (int o = 0; o < n; o++) count += gr_array_count(&shape.out[o]);
  double *want = gr_alloc((size_t)count * sizeof *want);
  reference(&shape, want);
  for (int s = 0; s < SETS; s++) {
    if (!f->backend[s]) continue;
    gr_op_call first = call_of(t->node);
    assert_true(gr_backend_find(f->backend[s], &first)->bf16);
    run_cpu(f->backend[s], &first, f->pool[0]);
    for (int p = 1; p < POOLS; p++) {
      gr_op_call again = call_of(t->node);
      run_cpu(f->backend[s], &again, f->pool[p]);
      if (!same_bits(&again, &first)) fail_msg("%s: %d threads give other bits", sets[s], thread_counts[p]);
      free_call(&again);
    }
    compare(&first, 0, n, want, sets[s]);
    free_call(&first);
  }
  free_call(&shape);
  gr_free(want);
}

static void check_both(fixture *f, struct gr_attention_inputs in, struct gr_attention_params p)
{
  gr_tensor *out = gr_attention(f->graph, &in, &p);
  check_node(f, out, 1, forward);
  gr_op_call c = call_of(out->node);
  gr_op_get(GR_OP_attention)->reference(&c);
  gr_tensor *saved = f32(f, out->ne[0], out->ne[1], out->ne[2]), *lse = f32(f, out->ne[1], out->ne[2], 1);
  memcpy(saved->data, c.out[0].data, (size_t)gr_array_count(&c.out[0]) * sizeof(float));
  memcpy(lse->data, c.out[1].data, (size_t)gr_array_count(&c.out[1]) * sizeof(float));
  free_call(&c);
  in.sinks = NULL;
  check_node(f, gr_attention_back(f->graph, &in, saved, lse, f32(f, out->ne[0], out->ne[1], out->ne[2]), &p), 3, backward);
}

static void of_rounded_operands(void **state)
{
  fixture *f = *state;
  struct gr_attention_inputs plain = packed_samples(f, 64, 64, false), odd = packed_samples(f, 37, 23, true);
  check_both(f, plain, (struct gr_attention_params){ .scale = 0.125f });
  check_both(f, plain, (struct gr_attention_params){ .scale = 0.1f, .window = 37 });
  check_both(f, odd, (struct gr_attention_params){ .scale = 0.2f, .softcap = 3, .window = 100 });
}

/* Samples begin at odd keys: what stands in one word must not depend on that. */
static void a_sample_alone_has_the_same_bits(void **state) { check_sample_alone(*state); }

static void a_single_query_stays_in_f32(void **state)
{
  fixture *f = *state;
  int32_t pos[90], seg[90] = { 0 };
  for (int i = 0; i < 90; i++) pos[i] = i;
  for (int n = 1; n < 3; n++) {
    struct gr_attention_inputs in = { .q = f32(f, 32, HEADS, n), .k = f32(f, 32, KV_HEADS, 90), .v = f32(f, 32, KV_HEADS, 90) };
    in.pos_q = integers(f, pos + 90 - n, n), in.seg_q = integers(f, seg, n), in.pos_k = integers(f, pos, 90),
    in.seg_k = integers(f, seg, 90);
    gr_op_call c = call_of(gr_attention(f->graph, &in, &(struct gr_attention_params){ .scale = 0.2f })->node);
    for (int s = 0; s < SETS; s++)
      if (f->backend[s]) assert_int_equal(gr_backend_find(f->backend[s], &c)->bf16, n > 1);
    free_call(&c);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    GRAPH_TEST(of_rounded_operands),
    GRAPH_TEST(a_sample_alone_has_the_same_bits),
    GRAPH_TEST(a_single_query_stays_in_f32),
  };
  return cmocka_run_group_tests(tests, setup_bf16, teardown);
}
