/* The CPU backend's expert ops: against the references on every instruction set with 1, 2 and 7 threads, bits that depend on the pair
 * alone, and work that follows the pairs and not the experts. The op harness goes through many more cases. */
#define _DEFAULT_SOURCE /* mmap */
#include <sys/mman.h>

#include "cpu_fixture.h"

/* A routing: each token's experts, and their grouping. */
typedef struct routing {
  gr_tensor *ids, *perm, *offsets;
  int64_t experts, used, tokens;
} routing;

static gr_tensor *table(fixture *f, const int32_t *v, int64_t a, int64_t b)
{
  gr_tensor *x = leaf(f, GR_I32, a, b, 1);
  memcpy(x->data, v, (size_t)(a * b) * sizeof *v);
  return x;
}

static routing routing_of(fixture *f, const int32_t *ids, int64_t used, int64_t tokens, int64_t experts)
{
  routing r = { .experts = experts, .used = used, .tokens = tokens, .ids = table(f, ids, used, tokens) };
  gr_tensor *perm = gr_group_experts(f->graph, r.ids, experts);
  assert_non_null(perm);
  gr_op_call call = call_of(perm->node);
  gr_op_get(call.op)->reference(&call);
  r.perm = table(f, call.out[0].data, used, tokens);
  r.offsets = table(f, call.out[1].data, experts + 1, 1);
  free_call(&call);
  return r;
}

enum { EVEN, PADDED, CROWDED }; /* all experts alike; one pair of seven goes nowhere and expert 1 has none; expert 2 has nearly all */

static routing random_routing(fixture *f, int kind, int64_t used, int64_t tokens, int64_t experts)
{
  int32_t *ids = calloc((size_t)(used * tokens), sizeof *ids);
  uint64_t stream = f->stream++;
  for (int64_t p = 0; p < used * tokens; p++) {
    uint64_t draw = gr_random_u64(42, stream, (uint64_t)p);
    int32_t id = (int32_t)(draw % (uint64_t)experts);
    if (kind == PADDED) id = draw >> 32 & 7 ? id == 1 ? 0 : id : (int32_t)(draw & 1) - 1 ? -1 : (int32_t)experts;
    if (kind == CROWDED && draw >> 32 & 31) id = (int32_t)gr_min(2, experts - 1);
    ids[p] = id;
  }
  routing r = routing_of(f, ids, used, tokens, experts);
  free(ids);
  return r;
}

static gr_tensor *forward(fixture *f, const routing *r, gr_tensor *w, gr_tensor *x)
{
  return gr_matmul_id(f->graph, w, x, r->ids, r->perm, r->offsets);
}

static gr_tensor *back(fixture *f, const routing *r, gr_tensor *w, gr_tensor *dy, int64_t slots)
{
  return gr_matmul_id_back(f->graph, w, dy, r->ids, r->perm, r->offsets, slots);
}

static gr_tensor *outer(fixture *f, const routing *r, gr_tensor *x, gr_tensor *dy)
{
  return gr_out_prod_id(f->graph, x, dy, r->ids, r->perm, r->offsets);
}

/* ---- against the references ---- */

static void stacks_of_every_type(void **state)
{
  fixture *f = *state;
  routing r = random_routing(f, PADDED, 2, 9, 5);
  gr_tensor *x = f32(f, 512, 1, 9), *dy = f32(f, 37, 2, 9);
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    if (gr_dtype_get((gr_dtype)t)->kind == GR_KIND_INT || t == GR_F64) continue;
    gr_tensor *w = leaf(f, (gr_dtype)t, 512, 37, 5);
    check(f, forward(f, &r, w, x), 1e-5);
    check(f, back(f, &r, w, dy, 1), 1e-5);
    check(f, back(f, &r, w, dy, 2), 1e-5);
  }
}

static void stacks_of_odd_shapes(void **state)
{
  fixture *f = *state;
  /* K, M, experts, used, slots, tokens: several chunks of a contraction, tiles, parts of an expert's pairs, bands of columns */
  static const int64_t sizes[][6] = { { 1, 1, 1, 1, 1, 1 },    { 17, 3, 4, 4, 2, 11 },    { 16, 70, 3, 6, 3, 40 },
                                      { 2050, 9, 5, 2, 1, 7 }, { 5, 1300, 4, 2, 2, 150 }, { 640, 16, 6, 3, 1, 200 },
                                      { 33, 64, 2, 1, 1, 3 },  { 40, 12, 5, 2, 1, 1100 } };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    const int64_t *s = sizes[i];
    for (int kind = EVEN; kind <= CROWDED; kind++) {
      if (kind == PADDED && s[2] == 1) continue; /* nothing is left */
      routing r = random_routing(f, kind, s[3], s[5], s[2]);
      gr_tensor *w = f32(f, s[0], s[1], s[2]), *x = f32(f, s[0], s[4], s[5]), *dy = f32(f, s[1], s[3], s[5]);
      check(f, forward(f, &r, w, x), 1e-5);
      check(f, back(f, &r, w, dy, s[4]), 1e-5);
      check(f, outer(f, &r, x, dy), 1e-5);
    }
  }
}

/* Rows of fused products, seen in place. */
static void slices_are_read_in_place(void **state)
{
  fixture *f = *state;
  routing r = random_routing(f, EVEN, 2, 23, 4);
  gr_tensor *w = f32(f, 40, 50, 4), *both = f32(f, 200, 2, 23), *x = gr_slice(f->graph, both, 3, 40),
            *dy = gr_slice(f->graph, both, 91, 50);
  check(f, forward(f, &r, w, x), 1e-5);
  check(f, back(f, &r, w, dy, 1), 1e-5);
  check(f, outer(f, &r, x, dy), 1e-5);
  check(f, gr_glu(f->graph, GR_GLU_SWIGLU, gr_slice(f->graph, both, 0, 100), gr_slice(f->graph, both, 100, 100)), 1e-6);
  check(f, gr_slice_back(f->graph, dy, 2020, 2100), 0);
  gr_tensor *weights = f32(f, 2, 23, 1), *out = f32(f, 40, 23, 1);
  check(f, gr_combine(f->graph, x, weights), 1e-6);
  check(f, gr_combine_back(f->graph, weights, out, x), 2e-6);
  check(f, gr_sigmoid(f->graph, x), 1e-6);
  check(f, gr_sigmoid_back(f->graph, x, gr_slice(f->graph, both, 150, 40)), 1e-6);
}

static void routers(void **state)
{
  fixture *f = *state;
  for (int gating = 0; gating < GR_GATE_KINDS; gating++)
    for (int variant = 0; variant < 4; variant++) {
      struct gr_route_params p = {
        .used = variant == 3 ? 9 : 4, .gating = gating, .renormalise = variant > 0, .clamp = variant == 2 ? 0.9f : 0, .scale = 1.5f
      };
      gr_tensor *logits = f32(f, variant == 3 ? 9 : 130, 70, 1), *bias = variant & 1 ? f32(f, logits->ne[0], 1, 1) : NULL;
      if (variant == 2) logits = gr_transpose(f->graph, f32(f, 70, 130, 1));
      gr_tensor *weights = gr_route(f->graph, logits, bias, &p);
      check(f, weights, 1e-6);
      gr_op_call routed = call_of(weights->node);
      gr_op_get(GR_OP_route)->reference(&routed);
      gr_tensor *ids = table(f, routed.out[1].data, p.used, 70);
      check(f, gr_route_back(f->graph, logits, ids, f32(f, p.used, 70, 1), &p), 1e-6);
      check(f, gr_group_experts(f->graph, ids, logits->ne[0]), 0);
      free_call(&routed);
    }
}

/* Equal logits: the lower expert first. What is not a number, or infinite, still gives distinct experts. */
static void routers_of_strange_logits(void **state)
{
  fixture *f = *state;
  const float rows[][6] = { { 2, 3, 3, 1, 3, 2 },
                            { NAN, NAN, NAN, NAN, NAN, NAN },
                            { NAN, 1, NAN, 2, NAN, NAN },
                            { -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY },
                            { INFINITY, 0, INFINITY, NAN, 1, 1 } };
  static const int32_t want[][4] = { { 1, 2, 4, 0 }, { 0, 1, 2, 3 }, { 3, 1, 0, 2 }, { 0, 1, 2, 3 }, { 0, 2, 4, 5 } };
  gr_tensor *logits = f32(f, 6, 5, 1);
  memcpy(logits->data, rows, sizeof rows);
  for (int gating = 0; gating < GR_GATE_KINDS; gating++) {
    struct gr_route_params p = { .used = 4, .gating = gating, .renormalise = 1, .clamp = 6.103515625e-5f, .scale = 1 };
    gr_op_call call = call_of(gr_route(f->graph, logits, NULL, &p)->node);
    for (int s = 0; s < SETS; s++) {
      if (!f->backend[s]) continue;
      run_cpu(f->backend[s], &call, f->pool[1]);
      assert_memory_equal(call.out[1].data, want, sizeof want);
    }
    free_call(&call);
  }
}

/* ---- bits ---- */

/* Promise 7: a token alone has the bits it has among others, forwards and backwards: also one whose slots are one expert, and which would
 * be cut in two where parts of that expert's pairs meet, with a contraction of several chunks. */
static void a_token_alone_has_the_same_bits(void **state)
{
  fixture *f = *state;
  enum { K = 512, M = 1100, E = 6, USED = 3, N = 301 };
  routing r = random_routing(f, CROWDED, USED, N, E);
  for (int quantized = 0; quantized < 2; quantized++) {
    gr_tensor *w = leaf(f, quantized ? GR_Q4_K : GR_F32, K, M, E), *x = f32(f, K, 1, N), *dy = f32(f, M, USED, N);
    gr_tensor *y = forward(f, &r, w, x), *dx = back(f, &r, w, dy, 1);
    for (int s = 0; s < SETS; s++) {
      if (!f->backend[s]) continue;
      gr_op_call all = call_of(y->node), all_back = call_of(dx->node);
      run_cpu(f->backend[s], &all, f->pool[1]);
      run_cpu(f->backend[s], &all_back, f->pool[2]);
      for (int64_t t = 0; t < N; t++) {
        if (t % 75 > 5 && t % 75 < 70) continue; /* four parts meet near 75, 150 and 225 */
        routing own = routing_of(f, (const int32_t *)r.ids->data + t * USED, USED, 1, E);
        gr_tensor *x1 = f32(f, K, 1, 1), *dy1 = f32(f, M, USED, 1);
        memcpy(x1->data, (float *)x->data + t * K, K * sizeof(float));
        memcpy(dy1->data, (float *)dy->data + t * M * USED, M * USED * sizeof(float));
        gr_op_call one = call_of(forward(f, &own, w, x1)->node), one_back = call_of(back(f, &own, w, dy1, 1)->node);
        run_cpu(f->backend[s], &one, f->pool[0]);
        run_cpu(f->backend[s], &one_back, f->pool[1]);
        assert_memory_equal(one.out[0].data, (float *)all.out[0].data + t * M * USED, M * USED * sizeof(float));
        assert_memory_equal(one_back.out[0].data, (float *)all_back.out[0].data + t * K, K * sizeof(float));
        free_call(&one), free_call(&one_back);
      }
      free_call(&all), free_call(&all_back);
    }
  }
}

/* A stack of one is a matrix. */
static void a_stack_of_one_has_the_bits_of_its_matrix(void **state)
{
  fixture *f = *state;
  enum { K = 1536, M = 83, N = 141 };
  int32_t ids[N] = { 0 };
  routing r = routing_of(f, ids, 1, N, 1);
  gr_tensor *w = leaf(f, GR_Q4_K, K, M, 1), *x = f32(f, K, 1, N), *x2 = f32(f, K, N, 1), *dy = f32(f, M, 1, N), *dy2 = f32(f, M, N, 1);
  memcpy(x2->data, x->data, sizeof(float) * K * N);
  memcpy(dy2->data, dy->data, sizeof(float) * M * N);
  gr_tensor *pairs[][2] = { { forward(f, &r, w, x), gr_matmul(f->graph, w, x2) },
                            { back(f, &r, w, dy, 1), gr_out_prod(f->graph, w, gr_transpose(f->graph, dy2)) },
                            { outer(f, &r, x, dy), gr_out_prod(f->graph, x2, dy2) } };
  for (int i = 0; i < 3; i++)
    for (int s = 0; s < SETS; s++) {
      if (!f->backend[s]) continue;
      gr_op_call stack = call_of(pairs[i][0]->node), matrix = call_of(pairs[i][1]->node);
      run_cpu(f->backend[s], &stack, f->pool[1]);
      run_cpu(f->backend[s], &matrix, f->pool[1]);
      if (!same_bits(&stack, &matrix)) fail_msg("%s and %s differ on %s", gr_op_name(stack.op), gr_op_name(matrix.op), sets[s]);
      free_call(&stack), free_call(&matrix);
    }
}

/* A3: a packed stack and the floats it decodes to give the same bits. */
static void packed_stacks_have_the_bits_of_their_floats(void **state)
{
  fixture *f = *state;
  routing r = random_routing(f, PADDED, 2, 19, 3);
  gr_tensor *x = f32(f, 1280, 1, 19), *dy = f32(f, 70, 2, 19);
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    if (gr_dtype_get((gr_dtype)t)->kind == GR_KIND_INT || t == GR_F32 || t == GR_F64) continue;
    gr_tensor *packed = leaf(f, (gr_dtype)t, 1280, 70, 3), *floats = f32(f, 1280, 70, 3);
    for (int64_t i = 0; i < 70 * 3; i++)
      gr_quant_decoder((gr_dtype)t)((char *)packed->data + i * packed->nb[1], (float *)floats->data + i * 1280, 1280);
    for (int across = 0; across < 2; across++) {
      gr_tensor *a = across ? back(f, &r, packed, dy, 1) : forward(f, &r, packed, x);
      gr_tensor *b = across ? back(f, &r, floats, dy, 1) : forward(f, &r, floats, x);
      for (int s = 0; s < SETS; s++) {
        if (!f->backend[s]) continue;
        gr_op_call one = call_of(a->node), two = call_of(b->node);
        run_cpu(f->backend[s], &one, f->pool[1]);
        run_cpu(f->backend[s], &two, f->pool[1]);
        if (!same_bits(&one, &two)) fail_msg("%s of %s, %s", gr_op_name(one.op), gr_dtype_name((gr_dtype)t), sets[s]);
        free_call(&one), free_call(&two);
      }
    }
  }
}

/* ---- work ---- */

/* A stack whose experts stand on pages of their own; those that nobody asks for cannot be read at all. */
static void experts_that_nobody_asks_for_are_not_read(void **state)
{
  fixture *f = *state;
  enum { K = 256, M = 64, E = 40, N = 6 }; /* 64 KiB an expert */
  static const int32_t ids[N * 2] = { 7, 31, 31, 7, 7, 31, 31, -1, 7, 31, 7, 31 };
  routing r = routing_of(f, ids, 2, N, E);
  const size_t each = (size_t)K * M * sizeof(float);
  char *stack = mmap(NULL, each * E, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(stack != MAP_FAILED);
  for (int e = 0; e < E; e++)
    if (e != 7 && e != 31) assert_int_equal(mprotect(stack + each * (size_t)e, each, PROT_NONE), 0);
  for (size_t i = 0; i < each / sizeof(float); i++)
    ((float *)(stack + 7 * each))[i] = ((float *)(stack + 31 * each))[i] = (float)gr_random_normal(1, 2, i);
  gr_tensor *w = gr_graph_leaf(f->graph, GR_LEAF_WEIGHT, GR_F32, (const int64_t[GR_DIMS]){ K, M, E, 1 }, NULL, stack, "stack");
  gr_tensor *x = f32(f, K, 1, N), *dy = f32(f, M, 2, N),
            *results[] = { forward(f, &r, w, x), back(f, &r, w, dy, 1), back(f, &r, w, dy, 2) };
  for (int i = 0; i < 3; i++)
    for (int s = 0; s < SETS; s++) {
      if (!f->backend[s]) continue;
      gr_op_call call = call_of(results[i]->node);
      run_cpu(f->backend[s], &call, f->pool[1]);
      free_call(&call);
    }
  w->data = NULL; /* not the graph's to free */
  munmap(stack, each * E);
}

/* Scratch and cost of a step's products follow the pairs: the same with 8 times as many experts. */
static void scratch_and_cost_do_not_grow_with_experts(void **state)
{
  fixture *f = *state;
  enum { K = 256, M = 96, N = 4, USED = 8 };
  size_t scratch[2][3];
  double flops[2][3], bytes[2][3];
  for (int many = 0; many < 2; many++) {
    int64_t e = many ? 256 : 32;
    routing r = random_routing(f, EVEN, USED, N, e);
    gr_tensor *w = leaf(f, GR_Q4_K, K, M, e), *x = f32(f, K, 1, N), *dy = f32(f, M, USED, N);
    gr_tensor *results[] = { forward(f, &r, w, x), back(f, &r, w, dy, 1), outer(f, &r, x, dy) };
    for (int i = 0; i < 3; i++) {
      gr_cost cost = { 0 };
      gr_op_call call = call_of(results[i]->node);
      const gr_kernel_row *row = gr_backend_find(f->backend[SETS - 1], &call);
      scratch[many][i] = row->scratch(&call, 2);
      gr_op_get(call.op)->cost(&call, &cost);
      flops[many][i] = cost.flops, bytes[many][i] = cost.bytes_read;
      free_call(&call);
    }
  }
  for (int i = 0; i < 3; i++) {
    assert_int_equal(scratch[0][i], scratch[1][i]);
    assert_true(flops[0][i] <= flops[1][i] && flops[1][i] <= flops[0][i]);
    assert_true(bytes[0][i] <= bytes[1][i] && bytes[1][i] <= bytes[0][i]);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    GRAPH_TEST(stacks_of_every_type),
    GRAPH_TEST(stacks_of_odd_shapes),
    GRAPH_TEST(slices_are_read_in_place),
    GRAPH_TEST(routers),
    GRAPH_TEST(routers_of_strange_logits),
    GRAPH_TEST(a_token_alone_has_the_same_bits),
    GRAPH_TEST(a_stack_of_one_has_the_bits_of_its_matrix),
    GRAPH_TEST(packed_stacks_have_the_bits_of_their_floats),
    GRAPH_TEST(experts_that_nobody_asks_for_are_not_read),
    GRAPH_TEST(scratch_and_cost_do_not_grow_with_experts),
  };
  return cmocka_run_group_tests_name("cpu_experts", tests, setup, teardown);
}
