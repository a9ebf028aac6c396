/* The graph room on whole training steps of the golden models: stopping anywhere, recompute, fusion, live sizes, memory, refusals. */
#include "golden.h"
#include "graph/plan.h"
#include "ops/params.h"

static gr_backend *open_backend(const char *name)
{
  gr_error e = { 0 };
  gr_backend *b = NULL;
  assert_ok(gr_backend_open(&b, name, NULL, &e), &e);
  return b;
}

/* All gradients of a run, one after the other. */
static float *all_gradients(golden *t, size_t *count)
{
  float *all = NULL;
  *count = 0;
  for (size_t i = 0; i < 2 * t->mg.n_pairs; i++) {
    size_t n;
    float *g = golden_read(t, t->grad_a[i], &n);
    all = gr_realloc_array(all, *count + n, sizeof(float));
    assert_non_null(all);
    memcpy(all + *count, g, n * sizeof(float));
    *count += n;
    gr_free(g);
  }
  return all;
}

static float *step(const char *model, const gr_plan_options *o, size_t *count, size_t *bytes)
{
  golden t;
  golden_open(&t, model);
  golden_plan(&t, o);
  golden_run(&t);
  if (bytes) *bytes = gr_plan_bytes(t.plan, 0);
  float *g = all_gradients(&t, count);
  golden_close(&t);
  return g;
}

static void a_run_stopped_after_any_launch_gives_the_same_bits(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_backend *cpu = open_backend("cpu");
  const gr_plan_options o = { .backends = &cpu, .n_backends = 1 };
  golden t;
  golden_open(&t, "qwen3");
  golden_plan(&t, &o);
  golden_run(&t);
  size_t n, m;
  float *want = all_gradients(&t, &n);
  size_t launches = gr_plan_launches(t.plan);
  assert_true(launches > 100);
  for (size_t pause = 1; pause < launches; pause += 7) {
    size_t cursor = 0;
    assert_ok(gr_plan_run(t.plan, &cursor, pause, &e), &e);
    assert_int_equal(cursor, pause);
    while (cursor < launches) assert_ok(gr_plan_run(t.plan, &cursor, 1, &e), &e);
    float *got = all_gradients(&t, &m);
    assert_memory_equal(got, want, n * sizeof(float));
    gr_free(got);
  }
  gr_free(want);
  golden_close(&t);
  gr_backend_close(cpu);
}

static void recompute_gives_the_same_bits_in_less_memory(void **state)
{
  (void)state;
  static const char *const models[] = { "llama", "qwen2", "qwen3", "llama-wide", "phi3", GOLDEN_EXPERTS };
  static const uint8_t choices[][2] = { { 1, 0 }, { 0, 1 }, { 1, 1 } };
  gr_backend *cpu = open_backend("cpu");
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    size_t n, m, kept, less;
    gr_plan_options o = { .backends = &cpu, .n_backends = 1, .poison = true, .n_layers = 2 };
    float *want = step(models[i], &o, &n, &kept);
    for (size_t c = 0; c < 3; c++) {
      o.recompute = choices[c];
      float *got = step(models[i], &o, &m, &less);
      assert_int_equal(n, m);
      assert_memory_equal(got, want, n * sizeof(float));
      assert_true(less <= kept);
      if (c == 2) assert_true(less < kept);
      gr_free(got);
    }
    gr_free(want);
  }
  gr_backend_close(cpu);
}

/* No two places that are alive at the same launch share a byte, unless one takes over the other on purpose. */
static void no_two_living_tensors_share_memory(void **state)
{
  (void)state;
  gr_backend *cpu = open_backend("cpu");
  const uint8_t recompute[2] = { 1, 0 };
  const gr_plan_options o = { .backends = &cpu, .n_backends = 1, .recompute = recompute, .n_layers = 2 };
  golden t;
  golden_open(&t, "llama");
  golden_plan(&t, &o);
  const gr_plan *p = t.plan;
  size_t shared = 0, checked = 0;
  for (size_t i = 0; i < p->n_places; i++)
    for (size_t k = 0; k < i; k++) {
      const gr_place *a = &p->places[i], *b = &p->places[k];
      if (a->external || b->external || a->first > b->last || b->first > a->last) continue;
      bool apart = a->offset + a->bytes <= b->offset || b->offset + b->bytes <= a->offset;
      bool taken = a->shares == (int32_t)k || b->shares == (int32_t)i;
      shared += taken;
      checked++;
      if (!apart && !(taken && (a->first == b->last || b->first == a->last))) fail_msg("places %zu and %zu overlap", i, k);
      assert_true(a->offset + a->bytes <= p->arena_bytes[0]);
    }
  assert_true(checked > 1000 && shared > 10);
  golden_close(&t);
  gr_backend_close(cpu);
}

static void fusion_happens_and_can_be_left_out(void **state)
{
  (void)state;
  gr_backend *cpu = open_backend("cpu");
  for (int plain = 0; plain < 2; plain++) {
    const gr_plan_options o = { .backends = &cpu, .n_backends = 1, .no_fusion = plain };
    golden t;
    golden_open(&t, "llama");
    golden_plan(&t, &o);
    size_t fused = 0;
    for (size_t i = 0; i < gr_plan_launches(t.plan); i++) {
      gr_launch_info info;
      gr_plan_launch_info(t.plan, i, &info);
      fused += (gr_op_get(info.node->op)->flags & GR_OP_FUSED) != 0;
    }
    assert_true(plain ? fused == 0 : fused > 20);
    golden_close(&t);
  }
  gr_backend_close(cpu);
}

static void live_sizes_are_checked(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_backend *cpu = open_backend("cpu");
  const gr_plan_options o = { .backends = &cpu, .n_backends = 1 };
  golden t;
  golden_open(&t, "qwen2");
  golden_plan(&t, &o);
  assert_int_equal(gr_plan_set_dim(t.plan, GR_DIM_TOKENS, (int64_t)t.n + 1, &e), GR_ERR_MISMATCH);
  assert_int_equal(gr_plan_set_dim(t.plan, GR_DIM_TOKENS, 0, &e), GR_ERR_MISMATCH);
  assert_ok(gr_plan_set_dim(t.plan, GR_DIM_TOKENS, 3, &e), &e);
  int32_t ids[4] = { 0 };
  assert_int_equal(gr_plan_write(t.plan, t.mg.ids, ids, sizeof ids, &e), GR_ERR_MISMATCH);
  assert_ok(gr_plan_write(t.plan, t.mg.ids, ids, 3 * sizeof *ids, &e), &e);
  golden_close(&t);
  gr_backend_close(cpu);
}

static gr_tensor *leaf(gr_graph *g, gr_leaf kind, gr_dtype type, int64_t a, int64_t b, const char *name)
{
  return gr_graph_leaf(g, kind, type, (const int64_t[GR_DIMS]){ a, b, 1, 1 }, NULL, NULL, name);
}

/* r + W x, planned whole or node by node. */
static void residual_sum(gr_backend *cpu, int64_t depth, bool plain, float *z)
{
  enum { M = 5, N = 3 };
  gr_error e = { 0 };
  gr_graph *g = gr_graph_create();
  assert_non_null(g);
  gr_tensor *in[3] = { leaf(g, GR_LEAF_INPUT, GR_F32, M, N, "r"), leaf(g, GR_LEAF_INPUT, GR_F32, depth, M, "w"),
                       leaf(g, GR_LEAF_INPUT, GR_F32, depth, N, "x") };
  gr_tensor *sum = gr_add(g, in[0], gr_matmul(g, in[1], in[2]));
  const gr_plan_options o = { .backends = &cpu, .n_backends = 1, .no_fusion = plain };
  gr_plan *p = NULL;
  assert_ok(gr_plan_create(&p, g, &sum, 1, &o, &e), &e);
  assert_ok(gr_plan_allocate(p, &e), &e);
  for (int i = 0; i < 3; i++) {
    size_t n = (size_t)(in[i]->ne[0] * in[i]->ne[1]);
    float *values = gr_alloc(n * sizeof *values);
    assert_non_null(values);
    for (size_t k = 0; k < n; k++) values[k] = (float)((k * 2654435761u + (size_t)i) % 1000003) / 1000003 - 0.3f;
    assert_ok(gr_plan_write(p, in[i], values, n * sizeof *values, &e), &e);
    gr_free(values);
  }
  assert_ok(gr_plan_run_all(p, &e), &e);
  assert_ok(gr_plan_read(p, sum, z, M * N * sizeof *z, &e), &e);
  gr_plan_free(p);
  gr_graph_free(g);
}

/* A fresh adapter's zeros stand between a product and what it is added to: were it added to in pieces, all logits would change by a bit. */
static void a_product_has_the_same_bits_whatever_it_is_added_to(void **state)
{
  (void)state;
  static const int64_t depths[] = { 16, 1024, 1025, 1536, 5000 };
  gr_backend *cpu = open_backend("cpu");
  for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
    float fused[15], plain[15];
    residual_sum(cpu, depths[i], false, fused);
    residual_sum(cpu, depths[i], true, plain);
    if (memcmp(fused, plain, sizeof fused) != 0) fail_msg("over %d elements", (int)depths[i]);
  }
  gr_backend_close(cpu);
}

static void fill_input(gr_plan *p, const gr_tensor *t, size_t salt)
{
  gr_error e = { 0 };
  size_t n = (size_t)(t->ne[0] * t->ne[1]);
  float *values = gr_alloc(n * sizeof *values);
  assert_non_null(values);
  for (size_t k = 0; k < n; k++) values[k] = (float)((k * 2654435761u + salt) % 1000003) / 1000003 - 0.5f;
  assert_ok(gr_plan_write(p, t, values, n * sizeof *values, &e), &e);
  gr_free(values);
}

/* W x + B (s A x) whose h is read later too, and the way back through a norm on top of a gradient; returns how many nodes were fused. */
static size_t layer_pieces(gr_pool *pool, int64_t depth, bool plain, float *out)
{
  enum { M = 67, N = 35, R = 16 };
  gr_error e = { 0 };
  gr_backend *cpu = NULL;
  assert_ok(gr_backend_open(&cpu, "cpu", pool, &e), &e);
  gr_graph *g = gr_graph_create();
  assert_non_null(g);
  gr_tensor *in[] = { leaf(g, GR_LEAF_INPUT, GR_F32, depth, M, "w"), leaf(g, GR_LEAF_INPUT, GR_F32, depth, N, "x"),
                      leaf(g, GR_LEAF_INPUT, GR_F32, depth, R, "a"), leaf(g, GR_LEAF_INPUT, GR_F32, R, M, "b"),
                      leaf(g, GR_LEAF_INPUT, GR_F32, M, N, "g"),     leaf(g, GR_LEAF_INPUT, GR_F32, M, 1, "norm") };
  gr_tensor *h = gr_scale(g, gr_matmul(g, in[2], in[1]), 0.7f), *y = gr_add(g, gr_matmul(g, in[0], in[1]), gr_matmul(g, in[3], h));
  gr_tensor *dx = gr_add(g, in[4], gr_rms_norm_back(g, y, gr_mul(g, in[4], in[5]), 1e-5f)), *outputs[] = { y, gr_scale(g, h, 1), dx };
  const gr_plan_options o = { .backends = &cpu, .n_backends = 1, .no_fusion = plain, .poison = true };
  gr_plan *p = NULL;
  assert_ok(gr_plan_create(&p, g, outputs, 3, &o, &e), &e);
  assert_ok(gr_plan_allocate(p, &e), &e);
  for (size_t i = 0; i < sizeof in / sizeof *in; i++) fill_input(p, in[i], i);
  assert_ok(gr_plan_run_all(p, &e), &e);
  assert_ok(gr_plan_read(p, y, out, M * N * sizeof *out, &e), &e);
  assert_ok(gr_plan_read(p, outputs[1], out + M * N, R * N * sizeof *out, &e), &e);
  assert_ok(gr_plan_read(p, dx, out + (M + R) * N, M * N * sizeof *out, &e), &e);
  size_t fused = 0;
  for (size_t i = 0; i < gr_plan_launches(p); i++) {
    gr_launch_info info;
    gr_plan_launch_info(p, i, &info);
    fused += info.node->op == GR_OP_matmul_lora || info.node->op == GR_OP_norm_back_add;
  }
  gr_plan_free(p);
  gr_graph_free(g);
  gr_backend_close(cpu);
  return fused;
}

static void a_linear_and_its_adapter_have_the_same_bits_in_one(void **state)
{
  (void)state;
  gr_error e = { 0 };
  static const int64_t depths[] = { 16, 576, 1024, 5000 };
  static float fused[(67 + 16 + 67) * 35], plain[(67 + 16 + 67) * 35];
  for (size_t i = 0; i < sizeof depths / sizeof *depths; i++)
    for (int threads = 1; threads <= 7; threads += 3) {
      gr_pool *pool = NULL;
      assert_ok(gr_pool_create(&pool, threads, &e), &e);
      assert_int_equal(layer_pieces(pool, depths[i], true, plain), 0);
      assert_int_equal(layer_pieces(pool, depths[i], false, fused), 2);
      if (memcmp(fused, plain, sizeof fused) != 0) fail_msg("over %d elements, %d threads", (int)depths[i], threads);
      gr_pool_free(pool);
    }
}

/* Gradients to x, A and B of two linears that read one x, each with its adapter; returns how many were fused with what theirs is added to.
 * read: the low-rank gradient of the second is wanted by itself, so that it cannot be. */
static size_t two_adapted(gr_pool *pool, int64_t depth, bool plain, bool read, float *out)
{
  enum { M = 67, N = 35, R = 16, LINEARS = 2 };
  gr_error e = { 0 };
  gr_backend *cpu = NULL;
  assert_ok(gr_backend_open(&cpu, "cpu", pool, &e), &e);
  gr_graph *g = gr_graph_create();
  assert_non_null(g);
  gr_tensor *x = leaf(g, GR_LEAF_INPUT, GR_F32, M, N, "x"), *wrt[2 * LINEARS + 1] = { x }, *in[3 * LINEARS + 2] = { x }, *y = NULL;
  gr_tensor *grads[2 * LINEARS + 2] = { 0 };
  for (size_t i = 0; i < LINEARS; i++) {
    gr_tensor *w = leaf(g, GR_LEAF_INPUT, GR_F32, M, depth, "w"), *a = leaf(g, GR_LEAF_INPUT, GR_F32, M, R, "a"),
              *b = leaf(g, GR_LEAF_INPUT, GR_F32, R, depth, "b"), *base = gr_matmul(g, w, x);
    gr_tensor *z = gr_add(g, base, gr_matmul(g, b, gr_scale(g, gr_matmul(g, a, x), 0.7f)));
    y = y ? gr_mul(g, y, z) : z;
    wrt[1 + 2 * i] = a, wrt[2 + 2 * i] = b;
    in[1 + 3 * i] = w, in[2 + 3 * i] = a, in[3 + 3 * i] = b;
  }
  gr_tensor *seed = leaf(g, GR_LEAF_INPUT, GR_F32, depth, N, "seed");
  in[3 * LINEARS + 1] = seed;
  assert_ok(gr_graph_backward(g, y, seed, wrt, 2 * LINEARS + 1, grads, &e), &e);
  size_t n_out = 2 * LINEARS + 1;
  for (size_t i = 0; i < g->n_nodes && read; i++) /* B^T dy */
    if (g->nodes[i]->op == GR_OP_out_prod && g->nodes[i]->in[0] == in[3])
      grads[n_out++] = gr_scale(g, g->nodes[i]->out[0], 1), read = false;
  const gr_plan_options o = { .backends = &cpu, .n_backends = 1, .no_fusion = plain, .poison = true };
  gr_plan *p = NULL;
  assert_ok(gr_plan_create(&p, g, grads, n_out, &o, &e), &e);
  assert_ok(gr_plan_allocate(p, &e), &e);
  for (size_t i = 0; i < sizeof in / sizeof *in; i++) fill_input(p, in[i], i);
  assert_ok(gr_plan_run_all(p, &e), &e);
  for (size_t i = 0; i < 2 * LINEARS + 1; i++) {
    size_t n = (size_t)(grads[i]->ne[0] * grads[i]->ne[1]);
    assert_ok(gr_plan_read(p, grads[i], out, n * sizeof *out, &e), &e);
    out += n;
  }
  size_t fused = 0;
  for (size_t i = 0; i < gr_plan_launches(p); i++) {
    gr_launch_info info;
    gr_plan_launch_info(p, i, &info);
    fused += info.node->op == GR_OP_matmul_lora_back;
  }
  gr_plan_free(p);
  gr_graph_free(g);
  gr_backend_close(cpu);
  return fused;
}

static void a_gradient_through_a_linear_and_its_adapter_is_one_sum(void **state)
{
  (void)state;
  enum { FLOATS = 67 * 35 + 2 * 16 * (67 + 2600) };
  gr_error e = { 0 };
  static const int64_t depths[] = { 19, 576, 2600 };
  static float fused[FLOATS], plain[FLOATS], again[FLOATS];
  for (size_t i = 0; i < sizeof depths / sizeof *depths; i++) {
    size_t n = 67 * 35 + 2 * 16 * (67 + (size_t)depths[i]);
    assert_int_equal(two_adapted(NULL, depths[i], true, false, plain), 0);
    assert_int_equal(two_adapted(NULL, depths[i], false, false, fused), 2);
    assert_int_equal(two_adapted(NULL, depths[i], false, true, again), 1);
    double off = 0, norm = 0, other = 0;
    for (size_t k = 0; k < n; k++) {
      off += pow((double)fused[k] - (double)plain[k], 2);
      other += pow((double)again[k] - (double)plain[k], 2);
      norm += pow((double)plain[k], 2);
    }
    if (!(sqrt(off) <= 1e-6 * sqrt(norm) && sqrt(other) <= 1e-6 * sqrt(norm)))
      fail_msg("over %d elements: off by %.2e and %.2e", (int)depths[i], sqrt(off / norm), sqrt(other / norm));
    for (int threads = 2; threads <= 7; threads += 5) {
      gr_pool *pool = NULL;
      assert_ok(gr_pool_create(&pool, threads, &e), &e);
      assert_int_equal(two_adapted(pool, depths[i], false, false, again), 2);
      if (memcmp(fused, again, n * sizeof *fused) != 0) fail_msg("over %d elements, %d threads", (int)depths[i], threads);
      gr_pool_free(pool);
    }
  }
}

/* How many launches of op the training of one head has, and its gradient to h. */
enum head_kind { HEAD_PLAIN, HEAD_FUSED, HEAD_NLL_READ, HEAD_SEED_COMPUTED, HEAD_ADAPTED, HEAD_KINDS };

static size_t head_step(gr_backend *cpu, enum head_kind kind, float *nll_and_dh)
{
  enum { D = 19, V = 4099, N = 5, R = 2 };
  gr_error e = { 0 };
  gr_graph *g = gr_graph_create();
  assert_non_null(g);
  gr_tensor *seed = leaf(g, GR_LEAF_INPUT, GR_F32, N, 1, "seed"), *labels = leaf(g, GR_LEAF_INPUT, GR_I32, N, 1, "labels");
  struct gr_head_inputs in = { .w = leaf(g, GR_LEAF_INPUT, GR_F32, D, V, "w"),
                               .h = leaf(g, GR_LEAF_INPUT, GR_F32, D, N, "h"),
                               .labels = labels };
  if (kind == HEAD_ADAPTED) in.a = leaf(g, GR_LEAF_INPUT, GR_F32, D, R, "a"), in.b = leaf(g, GR_LEAF_INPUT, GR_F32, R, V, "b");
  gr_tensor *nll = gr_head_loss(g, &in, &(struct gr_head_params){ .scale = 1, .lora_scale = 1 }), *out[3] = { nll };
  assert_ok(gr_graph_backward(g, nll, kind == HEAD_SEED_COMPUTED ? gr_scale(g, seed, 1) : seed, &in.h, 1, &out[1], &e), &e);
  out[2] = kind == HEAD_NLL_READ ? gr_scale(g, nll, 2) : out[1];
  const gr_plan_options o = { .backends = &cpu, .n_backends = 1, .no_fusion = kind == HEAD_PLAIN, .poison = true };
  gr_plan *p = NULL;
  assert_ok(gr_plan_create(&p, g, out, 3, &o, &e), &e);
  assert_ok(gr_plan_allocate(p, &e), &e);
  gr_tensor *inputs[] = { in.w, in.h, seed, in.a, in.b };
  for (size_t i = 0; i < 5 && inputs[i]; i++) fill_input(p, inputs[i], i);
  assert_ok(gr_plan_write(p, labels, (const int32_t[N]){ 0, 4098, -1, 17, 2048 }, N * sizeof(int32_t), &e), &e);
  assert_ok(gr_plan_run_all(p, &e), &e);
  assert_ok(gr_plan_read(p, nll, nll_and_dh, N * sizeof(float), &e), &e);
  assert_ok(gr_plan_read(p, out[1], nll_and_dh + N, D * N * sizeof(float), &e), &e);
  size_t fused = 0;
  for (size_t i = 0; i < gr_plan_launches(p); i++) {
    gr_launch_info info;
    gr_plan_launch_info(p, i, &info);
    fused += info.node->op == GR_OP_head_loss_dh;
  }
  gr_plan_free(p);
  gr_graph_free(g);
  return fused;
}

/* Where nll is needed before its gradient can be known, or B is, the two nodes stay. */
static void a_head_is_fused_with_its_gradient_where_nothing_waits(void **state)
{
  (void)state;
  gr_backend *cpu = open_backend("cpu");
  float all[HEAD_KINDS][100];
  for (int kind = 0; kind < HEAD_KINDS; kind++) assert_int_equal(head_step(cpu, kind, all[kind]), kind == HEAD_FUSED);
  assert_memory_equal(all[HEAD_PLAIN], all[HEAD_NLL_READ], sizeof all[0]);
  assert_memory_equal(all[HEAD_PLAIN], all[HEAD_SEED_COMPUTED], sizeof all[0]);
  for (int i = 0; i < 100; i++)
    if (!(fabsf(all[HEAD_FUSED][i] - all[HEAD_PLAIN][i]) <= 1e-5f * fabsf(all[HEAD_PLAIN][i]) + 1e-7f))
      fail_msg("%d: %g fused, %g plain", i, (double)all[HEAD_FUSED][i], (double)all[HEAD_PLAIN][i]);
  gr_backend_close(cpu);
}

static void what_cannot_be_is_refused_by_name(void **state)
{
  (void)state;
  gr_error e = { 0 };
  gr_graph *g = gr_graph_create();
  assert_non_null(g);
  gr_tensor *w = leaf(g, GR_LEAF_WEIGHT, GR_Q8_0, 64, 8, "packed"), *x = leaf(g, GR_LEAF_INPUT, GR_F32, 64, 3, "x");
  gr_tensor *y = gr_matmul(g, w, x), *seed = leaf(g, GR_LEAF_INPUT, GR_F32, 8, 3, "seed"), *grad = NULL;
  assert_int_equal(gr_graph_backward(g, y, seed, &w, 1, &grad, &e), GR_ERR_UNSUPPORTED); /* A5 */
  assert_non_null(strstr(e.text, "packed"));
  assert_int_equal(gr_graph_backward(g, y, x, &x, 1, &grad, &e), GR_ERR_MISMATCH); /* the seed's shape */
  gr_tensor *apart = leaf(g, GR_LEAF_PARAM, GR_F32, 64, 3, "apart");
  assert_ok(gr_graph_backward(g, y, seed, &apart, 1, &grad, &e), &e);
  assert_null(grad); /* not reached: the caller names it */
  /* Errors stick: what is built on a failure is nothing, and the first sentence stays. */
  assert_null(gr_add(g, y, gr_matmul(g, x, w)));
  assert_null(gr_scale(g, y, 2));
  assert_int_equal(gr_graph_status(g, &e), GR_ERR_UNSUPPORTED);
  gr_graph_free(g);

  g = gr_graph_create();
  assert_non_null(g);
  gr_backend *emu = open_backend("emu"), *ref = open_backend("ref");
  gr_tensor *labels = leaf(g, GR_LEAF_INPUT, GR_I32, 3, 1, "labels");
  struct gr_head_inputs in = { .w = leaf(g, GR_LEAF_WEIGHT, GR_F32, 64, 9, "head"),
                               .h = leaf(g, GR_LEAF_INPUT, GR_F32, 64, 3, "h"),
                               .labels = labels };
  gr_tensor *nll = gr_head_loss(g, &in, &(struct gr_head_params){ .scale = 1 });
  gr_plan *p = NULL;
  /* A cache is written where it lives: on the host. */
  gr_tensor *stored = gr_store_rows(g, leaf(g, GR_LEAF_STATE, GR_F32, 64, 3, "cache"), leaf(g, GR_LEAF_INPUT, GR_F32, 64, 3, "row"),
                                    leaf(g, GR_LEAF_INPUT, GR_I32, 1, 1, "slot"));
  assert_int_equal(gr_plan_create(&p, g, &stored, 1, &(gr_plan_options){ .backends = &emu, .n_backends = 1 }, &e), GR_ERR_UNSUPPORTED);
  assert_non_null(strstr(e.text, "store_rows"));
  /* The double reference is not a fallback unless it is asked for. */
  assert_int_equal(gr_plan_create(&p, g, &nll, 1, &(gr_plan_options){ .backends = &ref, .n_backends = 1 }, &e), GR_ERR_UNSUPPORTED);
  assert_ok(gr_plan_create(&p, g, &nll, 1, &(gr_plan_options){ .backends = &ref, .n_backends = 1, .allow_ref = true }, &e), &e);
  gr_plan_free(p);
  gr_backend_close(emu);
  gr_backend_close(ref);
  gr_graph_free(g);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_run_stopped_after_any_launch_gives_the_same_bits),
    cmocka_unit_test(recompute_gives_the_same_bits_in_less_memory),
    cmocka_unit_test(no_two_living_tensors_share_memory),
    cmocka_unit_test(fusion_happens_and_can_be_left_out),
    cmocka_unit_test(live_sizes_are_checked),
    cmocka_unit_test(a_product_has_the_same_bits_whatever_it_is_added_to),
    cmocka_unit_test(a_linear_and_its_adapter_have_the_same_bits_in_one),
    cmocka_unit_test(a_gradient_through_a_linear_and_its_adapter_is_one_sum),
    cmocka_unit_test(a_head_is_fused_with_its_gradient_where_nothing_waits),
    cmocka_unit_test(what_cannot_be_is_refused_by_name),
  };
  return cmocka_run_group_tests_name("graph", tests, NULL, NULL);
}
