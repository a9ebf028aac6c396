/* Packed samples for attention, shared by the tests of F32 and bf16. */
#ifndef GR_TESTS_ATTENTION_FIXTURE_H
#define GR_TESTS_ATTENTION_FIXTURE_H
#include "cpu_fixture.h"

enum { HEADS = 6, KV_HEADS = 2, SAMPLES = 4 };
static const int lengths[SAMPLES] = { 70, 1, 133, 9 };

/* Samples one after the other; the last token belongs to none (padding). */
static inline struct gr_attention_inputs packed_samples(fixture *f, int64_t dk, int64_t dv, bool sinks)
{
  int32_t pos[256], seg[256];
  int64_t n = 0;
  for (int s = 0; s < SAMPLES; s++)
    for (int i = 0; i < lengths[s]; i++, n++) pos[n] = i, seg[n] = s;
  struct gr_attention_inputs in = { .q = f32(f, dk, HEADS, n), .k = f32(f, dk, KV_HEADS, n), .v = f32(f, dv, KV_HEADS, n) };
  seg[n - 1] = -1;
  in.pos_q = integers(f, pos, n), in.seg_q = integers(f, seg, n), in.pos_k = integers(f, pos, n), in.seg_k = integers(f, seg, n);
  if (sinks) in.sinks = f32(f, HEADS, 1, 1);
  return in;
}

static inline gr_tensor *slice(fixture *f, const gr_tensor *t, int64_t from, int64_t n)
{
  gr_tensor *x = f32(f, t->ne[0], t->ne[1], n);
  memcpy(x->data, (char *)t->data + from * t->nb[2], (size_t)(n * t->nb[2]));
  return x;
}

/* Promise 7: outputs and gradients of a sample are bit-equal packed or alone. */
static inline void check_sample_alone(fixture *f)
{
  const int64_t dim = 40;
  struct gr_attention_inputs in = packed_samples(f, dim, dim, false);
  struct gr_attention_params p = { .scale = 0.2f, .window = 90 };
  gr_tensor *out = gr_attention(f->graph, &in, &p);
  gr_tensor *saved = f32(f, dim, HEADS, out->ne[2]), *lse = f32(f, HEADS, out->ne[2], 1), *dout = f32(f, dim, HEADS, out->ne[2]);
  gr_tensor *dq = gr_attention_back(f->graph, &in, saved, lse, dout, &p);
  const int64_t from = 71, n = 133; /* the third sample */
  int32_t pos[133], seg[133] = { 0 };
  for (int i = 0; i < n; i++) pos[i] = i;
  struct gr_attention_inputs own = { .q = slice(f, in.q, from, n), .k = slice(f, in.k, from, n), .v = slice(f, in.v, from, n) };
  own.pos_q = own.pos_k = integers(f, pos, n), own.seg_q = own.seg_k = integers(f, seg, n);
  gr_tensor *own_out = gr_attention(f->graph, &own, &p);
  for (int s = 0; s < SETS; s++) {
    if (!f->backend[s]) continue;
    gr_op_call all = call_of(out->node), one = call_of(own_out->node);
    run_cpu(f->backend[s], &all, f->pool[1]);
    run_cpu(f->backend[s], &one, f->pool[0]);
    int64_t row = dim * HEADS;
    assert_memory_equal(one.out[0].data, (float *)all.out[0].data + from * row, (size_t)(n * row) * sizeof(float));
    assert_memory_equal(one.out[1].data, (float *)all.out[1].data + from * HEADS, (size_t)(n * HEADS) * sizeof(float));
    memcpy(saved->data, all.out[0].data, (size_t)gr_array_count(&all.out[0]) * sizeof(float));
    memcpy(lse->data, all.out[1].data, (size_t)gr_array_count(&all.out[1]) * sizeof(float));
    gr_tensor *own_lse = f32(f, HEADS, n, 1);
    memcpy(own_lse->data, one.out[1].data, (size_t)(n * HEADS) * sizeof(float));
    gr_tensor *own_dq = gr_attention_back(f->graph, &own, slice(f, saved, from, n), own_lse, slice(f, dout, from, n), &p);
    gr_op_call all_back = call_of(dq->node), one_back = call_of(own_dq->node);
    run_cpu(f->backend[s], &all_back, f->pool[2]);
    run_cpu(f->backend[s], &one_back, f->pool[0]);
    for (int i = 0; i < 3; i++) {
      int64_t wide = one_back.out[i].ne[0] * one_back.out[i].ne[1];
      assert_memory_equal(one_back.out[i].data, (float *)all_back.out[i].data + from * wide, (size_t)(n * wide) * sizeof(float));
    }
    free_call(&all), free_call(&one), free_call(&all_back), free_call(&one_back);
  }
}

#endif
