/* The CPU backend against the references: every op, every instruction set that runs here, 1, 2 and 7 threads bit-equal. The op
 * harness (graft ops test) goes through many more cases; here stand the promises about bits, and one case of everything. */
#include "attention_fixture.h"

/* ---- one case of everything ---- */

static void elementwise(void **state)
{
  fixture *f = *state;
  gr_tensor *x = f32(f, 1503, 3, 2), *b = f32(f, 1503, 1, 1), *c = f32(f, 501, 3, 1);
  check(f, gr_add(f->graph, x, b), 1e-6);
  check(f, gr_mul(f->graph, x, c), 1e-6);
  check(f, gr_scale(f->graph, x, 0.37f), 1e-6);
  check(f, gr_repeat(f->graph, c, x), 1e-6);
  check(f, gr_repeat_back(f->graph, x, c), 1e-6);
  gr_tensor *t = gr_transpose(f->graph, f32(f, 7, 1300, 1));
  check(f, gr_cont(f->graph, t), 0);
  check(f, gr_add(f->graph, t, f32(f, 1300, 1, 1)), 1e-6);
}

static void units(void **state)
{
  fixture *f = *state;
  gr_tensor *g = f32(f, 301, 5, 1), *u = f32(f, 301, 5, 1), *dy = f32(f, 301, 5, 1);
  float *v = g->data;
  for (int i = 0; i < 301; i++) v[i] *= 12; /* saturated ends too */
  for (int kind = GR_GLU_SWIGLU; kind <= GR_GLU_SWIGLU_OAI; kind++) {
    check(f, gr_glu(f->graph, kind, g, u), 1e-6);
    check(f, gr_glu_back(f->graph, kind, g, u, dy), 1e-6);
  }
}

static void norms_and_rope(void **state)
{
  fixture *f = *state;
  gr_tensor *x = f32(f, 577, 3, 5), *dz = f32(f, 577, 3, 5), *w = f32(f, 577, 1, 1);
  check(f, gr_rms_norm(f->graph, x, 1e-5f), 1e-6);
  check(f, gr_rms_norm_mul(f->graph, x, w, 1e-5f), 1e-6);
  check(f, gr_rms_norm_back(f->graph, x, dz, 1e-5f), 1e-6);
  gr_tensor *h = f32(f, 70, 3, 5), *co = f32(f, 32, 5, 1), *si = f32(f, 32, 5, 1);
  for (int mode = GR_ROPE_NORMAL; mode <= GR_ROPE_NEOX; mode++)
    for (int inverse = 0; inverse < 2; inverse++) check(f, gr_rope(f->graph, h, co, si, mode, inverse), 1e-6);
}

static void rows_by_id(void **state)
{
  fixture *f = *state;
  static const int32_t ids[] = { 3, 0, 3, -1, 7, 8, 3 };
  gr_tensor *table = leaf(f, GR_Q8_0, 1056, 8, 1), *floats = f32(f, 1056, 8, 1), *i = integers(f, ids, 7);
  check(f, gr_get_rows(f->graph, table, i), 0);
  check(f, gr_get_rows_back(f->graph, f32(f, 1056, 7, 1), i, floats), 1e-6);
}

static void dropout_masks(void **state)
{
  fixture *f = *state;
  static const int32_t keys[] = { 5, 0, 5, 1, 9, 0 }, run[] = { 1, 2, 3, 0 };
  gr_tensor *k = leaf(f, GR_I32, 2, 3, 1);
  memcpy(k->data, keys, sizeof keys);
  check(f, gr_dropout(f->graph, f32(f, 1031, 3, 1), k, integers(f, run, 4), 0.25f, 6), 1e-6);
}

/* ---- products ---- */

static void products_of_every_type(void **state)
{
  fixture *f = *state;
  gr_tensor *x = f32(f, 1280, 33, 1), *g = f32(f, 75, 33, 1);
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    if (gr_dtype_get((gr_dtype)t)->kind == GR_KIND_INT || t == GR_F64) continue;
    gr_tensor *w = leaf(f, (gr_dtype)t, 1280, 75, 1);
    check(f, gr_matmul(f->graph, w, x), 1e-5);
    check(f, gr_out_prod(f->graph, w, gr_transpose(f->graph, g)), 1e-5);
  }
}

static void products_of_odd_shapes(void **state)
{
  fixture *f = *state;
  static const int64_t sizes[][3] = { { 1, 1, 1 },     { 3, 2, 5 },     { 17, 16, 15 },   { 31, 33, 14 },
                                      { 576, 16, 29 }, { 16, 100, 43 }, { 32, 160, 300 }, { 2050, 9, 2 } };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    int64_t k = sizes[i][0], m = sizes[i][1], n = sizes[i][2];
    gr_tensor *w = f32(f, k, m, 1), *x = f32(f, k, n, 1), *y = f32(f, m, n, 1);
    check(f, gr_matmul(f->graph, w, x), 1e-5);
    check(f, gr_matmul(f->graph, w, gr_transpose(f->graph, f32(f, n, k, 1))), 1e-5);
    check(f, gr_matmul_add(f->graph, y, w, x), 1e-5);
    check(f, gr_out_prod(f->graph, w, gr_transpose(f->graph, y)), 1e-5);
    check(f, gr_out_prod(f->graph, x, y), 1e-5);
    check(f, gr_out_prod_add(f->graph, w, x, y), 1e-5);
  }
}

/* Row t of a product computed with n rows, and alone. */
static void rows_alone(fixture *f, gr_tensor *w, bool across, int64_t n)
{
  int64_t depth = across ? w->ne[1] : w->ne[0], cols = across ? w->ne[0] : w->ne[1];
  gr_tensor *x = f32(f, depth, n, 1);
  gr_tensor *all = across ? gr_out_prod(f->graph, w, gr_transpose(f->graph, x)) : gr_matmul(f->graph, w, x);
  for (int s = 0; s < SETS; s++) {
    if (!f->backend[s]) continue;
    gr_op_call whole = call_of(all->node);
    run_cpu(f->backend[s], &whole, f->pool[1]);
    for (int64_t t = 0; t < n; t += 1 + n / 7) {
      gr_tensor *one = f32(f, depth, 1, 1);
      memcpy(one->data, (float *)x->data + t * depth, (size_t)depth * sizeof(float));
      gr_tensor *y = across ? gr_out_prod(f->graph, w, gr_transpose(f->graph, one)) : gr_matmul(f->graph, w, one);
      gr_op_call alone = call_of(y->node);
      run_cpu(f->backend[s], &alone, f->pool[0]);
      assert_memory_equal(alone.out[0].data, (float *)whole.out[0].data + t * cols, (size_t)cols * sizeof(float));
      free_call(&alone);
    }
    free_call(&whole);
  }
}

static void a_row_alone_has_the_same_bits(void **state)
{
  fixture *f = *state;
  gr_tensor *q = leaf(f, GR_Q4_K, 1536, 83, 1), *w = f32(f, 576, 1100, 1);
  for (int across = 0; across < 2; across++) {
    rows_alone(f, q, across, 61);
    rows_alone(f, w, across, 30);
  }
}

/* y = W x with a pool of so many threads; returns of how the product was dealt whether some panels are split and others are not. */
static bool deals_some(const gr_cpu_isa *isa, int threads, const gr_tensor *w, const gr_tensor *x, float *y)
{
  gr_error e;
  gr_pool *pool = NULL;
  assert_ok(gr_pool_create(&pool, threads, &e), &e);
  const int64_t f = sizeof(float), depth = w->ne[0], cols = w->ne[1], rows = x->ne[1];
  gr_cpu_term t = { .w = w->data, .w_row = depth * f, .w_step = f, .dtype = GR_F32, .x = x->data, .x_row = depth * f, .x_step = f };
  t.depth = depth;
  gr_cpu_product p = { .term = { t }, .terms = 1, .rows = rows, .cols = cols, .y = y, .y_row = cols };
  void *scratch = gr_alloc_aligned(gr_cpu_product_scratch(rows, cols, depth, 0, true, threads), 64);
  assert_non_null(scratch);
  memset(y, 0xff, (size_t)(rows * cols * f));
  gr_cpu_product_run(&p, isa, pool, scratch);
  gr_free(scratch);
  gr_pool_free(pool);
  return p.split > 0 && p.split < p.panels;
}

/* However many threads there are and however panels and rows are dealt to them, every element is computed, and with the same bits. */
static void many_threads_compute_all_of_a_product(void **state)
{
  fixture *f = *state;
  static const int64_t sizes[][3] = { { 48, 1601, 90 }, { 576, 579, 130 }, { 16, 40, 300 }, { 1, 5000, 64 } };
  static const int threads[] = { 2, 3, 4, 7, 16, 33 };
  int some = 0;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    gr_tensor *w = f32(f, sizes[i][0], sizes[i][1], 1), *x = f32(f, sizes[i][0], sizes[i][2], 1);
    size_t bytes = (size_t)(sizes[i][1] * sizes[i][2]) * sizeof(float);
    float *alone = gr_alloc(bytes), *y = gr_alloc(bytes);
    assert_true(alone && y);
    for (int s = 0; s < SETS; s++) {
      if (!f->backend[s]) continue;
      const gr_cpu_isa *isa = gr_cpu_isa_of(f->backend[s]);
      deals_some(isa, 1, w, x, alone);
      for (size_t k = 0; k < sizeof threads / sizeof *threads; k++) {
        some += deals_some(isa, threads[k], w, x, y);
        assert_memory_equal(y, alone, bytes);
      }
    }
    gr_free(alone);
    gr_free(y);
  }
  assert_true(some > 0); /* or nothing was shown of it */
}

/* A3: a quantized weight and the floats it decodes to give the same bits. */
static void packed_weights_have_the_bits_of_their_floats(void **state)
{
  fixture *f = *state;
  gr_tensor *x = f32(f, 1280, 19, 1), *g = f32(f, 70, 19, 1);
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    if (gr_dtype_get((gr_dtype)t)->kind == GR_KIND_INT || t == GR_F32 || t == GR_F64) continue;
    gr_tensor *packed = leaf(f, (gr_dtype)t, 1280, 70, 1), *floats = f32(f, 1280, 70, 1);
    for (int64_t r = 0; r < 70; r++)
      gr_quant_decoder((gr_dtype)t)((char *)packed->data + r * packed->nb[1], (float *)floats->data + r * 1280, 1280);
    for (int across = 0; across < 2; across++) {
      gr_tensor *gt = gr_transpose(f->graph, g);
      gr_tensor *a = across ? gr_out_prod(f->graph, packed, gt) : gr_matmul(f->graph, packed, x);
      gr_tensor *b = across ? gr_out_prod(f->graph, floats, gt) : gr_matmul(f->graph, floats, x);
      for (int s = 0; s < SETS; s++) {
        if (!f->backend[s]) continue;
        gr_op_call one = call_of(a->node), two = call_of(b->node);
        run_cpu(f->backend[s], &one, f->pool[1]);
        run_cpu(f->backend[s], &two, f->pool[1]);
        if (!same_bits(&one, &two)) fail_msg("%s of %s, %s", gr_op_name(one.op), gr_dtype_name((gr_dtype)t), sets[s]);
        free_call(&one);
        free_call(&two);
      }
    }
  }
}

/* x is a unit matrix: each weight comes out alone, `rows` of x at a time, and must be what the reference decodes. */
static void pick_weights(fixture *f, gr_tensor *w, bool across, int64_t rows)
{
  const int64_t k = w->ne[0], m = w->ne[1], n = across ? m : k;
  float *row = gr_alloc((size_t)k * sizeof *row);
  for (int64_t at = 0; at < n; at += rows) {
    gr_tensor *x = f32(f, n, rows < n - at ? rows : n - at, 1);
    for (int64_t i = 0; i < n * x->ne[1]; i++) ((float *)x->data)[i] = i % n == at + i / n;
    const gr_node *node = (across ? gr_out_prod(f->graph, w, gr_transpose(f->graph, x)) : gr_matmul(f->graph, w, x))->node;
    for (int s = 0; s < SETS; s++) {
      if (!f->backend[s]) continue;
      gr_op_call picked = call_of(node);
      const float *y = picked.out[0].data;
      run_cpu(f->backend[s], &picked, f->pool[1]);
      for (int64_t j = 0; j < m; j++) {
        gr_quant_decoder(w->dtype)((char *)w->data + j * w->nb[1], row, k);
        bool right = true;
        if (across)
          for (int64_t i = 0; i < k && j >= at && j < at + x->ne[1]; i++) right = right && y[(j - at) * k + i] == row[i];
        else
          for (int64_t i = 0; i < x->ne[1]; i++) right = right && y[i * m + j] == row[at + i];
        if (!right)
          fail_msg("%s, %s: row %d, %s, is not as decoded", gr_dtype_name(w->dtype), sets[s], (int)j, across ? "across" : "along");
      }
      free_call(&picked);
    }
  }
  gr_free(row);
}

/* Bit by bit, and not only as far as sums tell: of MXFP4 powers of two from the denormal ones up. Columns and rows that fill no group of
 * lanes. */
static void unit_vectors_pick_the_weights_that_are_decoded(void **state)
{
  fixture *f = *state;
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    const gr_dtype_info *d = gr_dtype_get((gr_dtype)t);
    if (d->kind == GR_KIND_INT || t == GR_F32 || t == GR_F64) continue;
    int64_t k = d->block_elems == 256 ? 512 : 416, m = 45;
    gr_tensor *w = leaf(f, (gr_dtype)t, k, m, 1);
    for (int64_t b = 0; t == GR_MXFP4 && b < m * k / d->block_elems; b++) ((uint8_t *)w->data)[b * d->block_bytes] = (uint8_t)(b % 240);
    pick_weights(f, w, false, k);
    pick_weights(f, w, false, GR_CPU_THIN);
    pick_weights(f, w, true, m);
  }
}

/* ---- attention ---- */

static void check_attention(fixture *f, const struct gr_attention_inputs *in, struct gr_attention_params p)
{
  gr_tensor *out = gr_attention(f->graph, in, &p);
  assert_non_null(out);
  check(f, out, 5e-6);
  gr_op_call forward = call_of(out->node);
  gr_op_get(GR_OP_attention)->reference(&forward);
  gr_tensor *saved = f32(f, out->ne[0], out->ne[1], out->ne[2]), *lse = f32(f, out->ne[1], out->ne[2], 1);
  memcpy(saved->data, forward.out[0].data, (size_t)gr_array_count(&forward.out[0]) * sizeof(float));
  memcpy(lse->data, forward.out[1].data, (size_t)gr_array_count(&forward.out[1]) * sizeof(float));
  struct gr_attention_inputs back = *in;
  back.sinks = NULL;
  check(f, gr_attention_back(f->graph, &back, saved, lse, f32(f, out->ne[0], out->ne[1], out->ne[2]), &p), 2e-5);
  free_call(&forward);
}

static void attention_kinds(void **state)
{
  fixture *f = *state;
  struct gr_attention_inputs plain = packed_samples(f, 64, 64, false), odd = packed_samples(f, 40, 24, true);
  check_attention(f, &plain, (struct gr_attention_params){ .scale = 0.125f });
  check_attention(f, &plain, (struct gr_attention_params){ .scale = 0.125f, .window = 37 });
  check_attention(f, &odd, (struct gr_attention_params){ .scale = 0.2f, .softcap = 3, .window = 100 });
}

/* Keys of the cache stand before those of the chunk. */
/* From so many queries on the backward is dealt to more parts. */
static void attention_of_many_queries(void **state)
{
  fixture *f = *state;
  enum { MANY = 2053 };
  int32_t pos[MANY], seg[MANY];
  for (int i = 0; i < MANY; i++) pos[i] = i < 3 ? i : i - 3, seg[i] = i >= 3;
  struct gr_attention_inputs in = { .q = f32(f, 16, HEADS, MANY), .k = f32(f, 16, KV_HEADS, MANY), .v = f32(f, 8, KV_HEADS, MANY) };
  in.pos_q = in.pos_k = integers(f, pos, MANY), in.seg_q = in.seg_k = integers(f, seg, MANY);
  check_attention(f, &in, (struct gr_attention_params){ .scale = 0.2f, .window = 40 });
}

static void attention_over_a_cache(void **state)
{
  fixture *f = *state;
  int32_t pos[90], seg[90] = { 0 };
  for (int i = 0; i < 90; i++) pos[i] = i;
  struct gr_attention_inputs in = { .q = f32(f, 32, HEADS, 3), .k = f32(f, 32, KV_HEADS, 90), .v = f32(f, 32, KV_HEADS, 90) };
  in.pos_q = integers(f, pos + 87, 3), in.seg_q = integers(f, seg, 3), in.pos_k = integers(f, pos, 90), in.seg_k = integers(f, seg, 90);
  check_attention(f, &in, (struct gr_attention_params){ .scale = 0.2f });
}

/* One query over several chunks of keys goes its own way, by pieces and columns: what it gives is what it gives among others. */
static void single_query(fixture *f, int64_t dk, int64_t dv, int64_t from, bool sinks, struct gr_attention_params p)
{
  enum { KEYS = 1150, QUERIES = 40 };
  static int32_t pos[KEYS], seg[KEYS];
  for (int i = 0; i < KEYS; i++) pos[i] = i < from ? i : i - (int32_t)from, seg[i] = i >= from;
  struct gr_attention_inputs in = { .q = f32(f, dk, HEADS, QUERIES), .k = f32(f, dk, KV_HEADS, KEYS), .v = f32(f, dv, KV_HEADS, KEYS) },
                             one;
  in.pos_q = integers(f, pos + KEYS - QUERIES, QUERIES), in.seg_q = integers(f, seg + KEYS - QUERIES, QUERIES);
  in.pos_k = integers(f, pos, KEYS), in.seg_k = integers(f, seg, KEYS);
  if (sinks) in.sinks = f32(f, HEADS, 1, 1);
  one = in;
  one.q = slice(f, in.q, QUERIES - 1, 1), one.pos_q = integers(f, pos + KEYS - 1, 1), one.seg_q = integers(f, seg + KEYS - 1, 1);
  gr_tensor *many = gr_attention(f->graph, &in, &p), *single = gr_attention(f->graph, &one, &p);
  check(f, single, 5e-6);
  for (int s = 0; s < SETS; s++) {
    if (!f->backend[s]) continue;
    gr_op_call all = call_of(many->node), alone = call_of(single->node);
    run_cpu(f->backend[s], &all, f->pool[1]);
    run_cpu(f->backend[s], &alone, f->pool[1]);
    int64_t row = dv * HEADS, last = QUERIES - 1;
    assert_memory_equal(alone.out[0].data, (float *)all.out[0].data + last * row, (size_t)row * sizeof(float));
    assert_memory_equal(alone.out[1].data, (float *)all.out[1].data + last * HEADS, HEADS * sizeof(float));
    free_call(&all), free_call(&alone);
  }
}

static void a_single_query_has_the_bits_of_many(void **state)
{
  fixture *f = *state;
  single_query(f, 64, 64, 0, false, (struct gr_attention_params){ .scale = 0.125f });
  single_query(f, 40, 80, 77, true, (struct gr_attention_params){ .scale = 0.3f, .softcap = 5 });
  single_query(f, 128, 16, 5, false, (struct gr_attention_params){ .scale = 0.2f, .window = 700 });
}

static void a_sample_alone_has_the_same_bits(void **state) { check_sample_alone(*state); }

/* ---- head ---- */

static void check_head(fixture *f, gr_dtype t, int64_t vocab, bool adapter, struct gr_head_params p)
{
  const int64_t width = 256, n = 37;
  int32_t labels[37];
  for (int i = 0; i < n; i++) labels[i] = i % 3 ? (int32_t)((i * 977) % vocab) : -1;
  struct gr_head_inputs in = { .w = leaf(f, t, width, vocab, 1), .h = f32(f, width, n, 1), .labels = integers(f, labels, n) };
  if (adapter) in.bias = f32(f, vocab, 1, 1), in.a = f32(f, width, 5, 1), in.b = f32(f, 5, vocab, 1);
  gr_tensor *nll = gr_head_loss(f->graph, &in, &p);
  assert_non_null(nll);
  check(f, nll, 2e-6);
  gr_op_call forward = call_of(nll->node);
  gr_op_get(GR_OP_head_loss)->reference(&forward);
  gr_tensor *lse = f32(f, n, 1, 1);
  memcpy(lse->data, forward.out[1].data, (size_t)n * sizeof(float));
  check(f, gr_head_loss_back(f->graph, &in, lse, f32(f, n, 1, 1), &p), 5e-5);
  free_call(&forward);
}

static void heads(void **state)
{
  fixture *f = *state;
  check_head(f, GR_Q4_K, 1003, false, (struct gr_head_params){ .scale = 0.02f });
  check_head(f, GR_Q8_0, 4500, true, (struct gr_head_params){ .scale = 0.02f, .lora_scale = 0.5f }); /* several blocks of the vocabulary */
  check_head(f, GR_F32, 531, true, (struct gr_head_params){ .scale = 0.1f, .softcap = 4, .lora_scale = 1.5f });
}

/* ---- exp and tanh ---- */

/* Largest error in units in the last place of the true value, over a sweep of all floats of magnitude below `most`; results below the
 * smallest normal number are counted in its units. */
static double worst_ulp(void (*f)(float *, const float *, int64_t), double (*truth)(double), float most)
{
  enum { N = 1 << 15 };
  static float x[N], y[N];
  double worst = 0;
  for (uint32_t start = 0; start < 61; start++) {
    for (uint32_t i = 0; i < N; i++) {
      uint32_t bits = (start + i * 61) * 2147; /* 61 * 32768 * 2147 is just below 2^32 */
      memcpy(&x[i], &bits, sizeof bits);
      if (!(fabsf(x[i]) < most)) x[i] = most * (float)i / N;
    }
    f(y, x, N);
    for (int i = 0; i < N; i++) {
      double t = truth((double)x[i]), unit = ldexp(1, (fabs(t) < 0x1p-126 ? -126 : ilogb(t)) - 23), e = fabs((double)y[i] - t) / unit;
      if (!(e <= worst)) worst = e;
    }
  }
  return worst;
}

static void functions_are_within_their_bounds(void **state)
{
  fixture *f = *state;
  for (int s = 0; s < SETS; s++) {
    if (!f->backend[s]) continue;
    const gr_cpu_isa *isa = ((const gr_cpu *)f->backend[s])->isa;
    double e = worst_ulp(isa->exp, exp, 88.5f), t = worst_ulp(isa->tanh, tanh, 100);
    if (!(e < 2 && t < 3)) fail_msg("%s: exp errs by %.2f ulp, tanh by %.2f", sets[s], e, t);
    const float special[] = { INFINITY, -INFINITY, NAN, 100, -120, 0, -0.0f };
    float y[7];
    isa->exp(y, special, 7);
    assert_true(isinf(y[0]) && y[1] == 0 && isnan(y[2]) && isinf(y[3]) && y[4] == 0 && y[5] == 1 && y[6] == 1);
    isa->tanh(y, special, 7);
    assert_true(y[0] == 1 && y[1] == -1 && isnan(y[2]) && y[5] == 0 && signbit(y[6]));
  }
}

/* ---- choosing an instruction set ---- */

static void the_environment_names_a_set(void **state)
{
  (void)state;
  gr_error e;
  gr_backend *b = NULL;
  setenv("GRAFT_CPU", "mmx", 1);
  assert_int_equal(gr_backend_open(&b, "cpu", NULL, &e), GR_ERR_USAGE);
  assert_non_null(strstr(e.text, "generic"));
  setenv("GRAFT_CPU", "generic", 1);
  assert_ok(gr_backend_open(&b, "cpu", NULL, &e), &e);
  gr_backend_close(b);
  unsetenv("GRAFT_CPU");
}

/* Of the processor that the system names, whether its maker's is known to gain nothing by pairs of bf16. */
static bool pairs_lose_here(void)
{
  char line[256];
  bool intel = false;
  FILE *f = fopen("/proc/cpuinfo", "r");
  while (f && fgets(line, sizeof line, f)) intel = intel || (strncmp(line, "vendor_id", 9) == 0 && strstr(line, "GenuineIntel"));
  if (f) fclose(f);
  return intel;
}

/* vdpbf16ps does twice what multiply-adds of floats do on AMD's processors, and half on the Xeon it was measured on. */
static void pairs_are_taken_only_where_they_gain(void **state)
{
  (void)state;
  assert_true(gr_cpu_pairs_gain("AuthenticAMD"));
  assert_false(gr_cpu_pairs_gain("GenuineIntel"));
  assert_false(gr_cpu_pairs_gain("KVMKVMKVM"));
  assert_false(gr_cpu_pairs_gain(""));
}

/* Every set is the one that was named, or refused in words; without a name the first that runs and gains something is taken. */
static void the_best_set_is_chosen(void **state)
{
  fixture *f = *state;
  gr_error e;
  gr_backend *b = NULL;
  const char *best = NULL;
  for (int s = 0; s < SETS; s++) {
    if (f->backend[s]) {
      const gr_cpu_isa *isa = gr_cpu_isa_of(f->backend[s]);
      assert_string_equal(isa->name, sets[s]);
      assert_int_equal(isa->words, strstr(sets[s], "_bf16") != NULL);
      if (!best && !(strcmp(sets[s], "avx512_bf16") == 0 && pairs_lose_here())) best = sets[s];
      continue;
    }
    setenv("GRAFT_CPU", sets[s], 1);
    assert_int_equal(gr_backend_open(&b, "cpu", NULL, &e), GR_ERR_USAGE);
    assert_non_null(strstr(e.text, sets[s]));
    unsetenv("GRAFT_CPU");
  }
  assert_ok(gr_backend_open(&b, "cpu", NULL, &e), &e);
  assert_string_equal(gr_cpu_isa_of(b)->name, best);
  gr_backend_close(b);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    GRAPH_TEST(elementwise),
    GRAPH_TEST(units),
    GRAPH_TEST(norms_and_rope),
    GRAPH_TEST(rows_by_id),
    GRAPH_TEST(dropout_masks),
    GRAPH_TEST(products_of_every_type),
    GRAPH_TEST(products_of_odd_shapes),
    GRAPH_TEST(a_row_alone_has_the_same_bits),
    GRAPH_TEST(many_threads_compute_all_of_a_product),
    GRAPH_TEST(packed_weights_have_the_bits_of_their_floats),
    GRAPH_TEST(unit_vectors_pick_the_weights_that_are_decoded),
    GRAPH_TEST(attention_kinds),
    GRAPH_TEST(attention_of_many_queries),
    GRAPH_TEST(attention_over_a_cache),
    GRAPH_TEST(a_single_query_has_the_bits_of_many),
    GRAPH_TEST(a_sample_alone_has_the_same_bits),
    GRAPH_TEST(heads),
    cmocka_unit_test(functions_are_within_their_bounds),
    cmocka_unit_test(the_environment_names_a_set),
    cmocka_unit_test(pairs_are_taken_only_where_they_gain),
    cmocka_unit_test(the_best_set_is_chosen),
  };
  return cmocka_run_group_tests_name("cpu", tests, setup, teardown);
}
