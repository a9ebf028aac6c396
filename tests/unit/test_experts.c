/* A block of experts as a model builds it: its gradient, whole, through router and experts, and what its ops make of data that no case can
 * hold because no comparison would stand. */
#include "optest.h"

#include <math.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "graph/graph.h"
#include "ops/params.h"
#include "optest/internal.h"

enum { WIDTH = 8, INNER = 6, EXPERTS = 5, USED = 2, TOKENS = 4 };

typedef struct block {
  gr_graph *g;
  gr_tensor *x, *router, *gate, *up, *down, *bias, *out, *seed;
} block;

static gr_tensor *leaf(gr_graph *g, gr_leaf kind, const char *name, int64_t ne0, int64_t ne1, int64_t ne2, bool tokens)
{
  int64_t ne[GR_DIMS] = { ne0, ne1, ne2, 1 };
  uint8_t dims[GR_DIMS] = { 0, tokens ? GR_DIM_TOKENS : 0 };
  return gr_graph_leaf(g, kind, GR_F32, ne, dims, NULL, name);
}

/* out = sum over the chosen experts of weight * (down (silu(gate x) * up x) + bias of the expert). */
static void build(block *b, const struct gr_route_params *p)
{
  gr_graph *g = b->g = gr_graph_create();
  assert_non_null(g);
  b->x = leaf(g, GR_LEAF_INPUT, "x", WIDTH, TOKENS, 1, true);
  b->router = leaf(g, GR_LEAF_WEIGHT, "router", WIDTH, EXPERTS, 1, false);
  b->gate = leaf(g, GR_LEAF_PARAM, "gate", WIDTH, INNER, EXPERTS, false);
  b->up = leaf(g, GR_LEAF_WEIGHT, "up", WIDTH, INNER, EXPERTS, false);
  b->down = leaf(g, GR_LEAF_PARAM, "down", INNER, WIDTH, EXPERTS, false);
  b->bias = leaf(g, GR_LEAF_WEIGHT, "bias", WIDTH, EXPERTS, 1, false);
  gr_tensor *weights = gr_route(g, gr_matmul(g, b->router, b->x), NULL, p), *ids = weights->node->out[1];
  gr_tensor *perm = gr_group_experts(g, ids, EXPERTS), *offsets = perm->node->out[1];
  gr_tensor *x = gr_reshape(g, b->x, WIDTH, 1, TOKENS, 0);
  gr_tensor *h = gr_glu(g, GR_GLU_SWIGLU, gr_matmul_id(g, b->gate, x, ids, perm, offsets), gr_matmul_id(g, b->up, x, ids, perm, offsets));
  gr_tensor *y = gr_add(g, gr_matmul_id(g, b->down, h, ids, perm, offsets), gr_get_rows(g, b->bias, ids));
  b->out = gr_combine(g, y, weights);
  b->seed = leaf(g, GR_LEAF_INPUT, "seed", WIDTH, TOKENS, 1, true);
  gr_error e = { 0 };
  assert_ok(gr_graph_status(g, &e), &e);
}

static void fill(const gr_interp *it, const gr_tensor *t, uint64_t key)
{
  gr_array a = gr_interp_array(it, t);
  gr_case_fill(&(gr_case_in){ 0 }, &a, 42, key);
}

static double loss(const gr_interp *it, const block *b, size_t n_nodes)
{
  double sum = 0;
  gr_interp_run(it, 0, n_nodes);
  gr_array y = gr_interp_array(it, b->out), seed = gr_interp_array(it, b->seed);
  for (int64_t i = 0; i < WIDTH * TOKENS; i++)
    sum += gr_array_get(&y, i % WIDTH, i / WIDTH, 0, 0) * gr_array_get(&seed, i % WIDTH, i / WIDTH, 0, 0);
  return sum;
}

/* A6: the gradient to x is whole, through experts that are frozen and through the weights of a frozen router. */
static void the_gradient_of_a_block_is_whole(void **state)
{
  (void)state;
  static const struct gr_route_params gates[] = { { USED, GR_GATE_SOFTMAX, 1, 6.103515625e-5f, 1 },
                                                  { USED, GR_GATE_SOFTMAX, 0, 0, 1 },
                                                  { USED, GR_GATE_SIGMOID, 1, 0, 2.5f },
                                                  { USED, GR_GATE_SELECTED, 0, 0, 1 } };
  for (size_t n = 0; n < sizeof gates / sizeof *gates; n++) {
    block b;
    gr_interp it;
    gr_error e = { 0 };
    build(&b, &gates[n]);
    gr_tensor *wrt[] = { b.x, b.gate, b.down }, *grads[3];
    size_t n_nodes = b.g->n_nodes;
    assert_ok(gr_graph_backward(b.g, b.out, b.seed, wrt, 3, grads, &e), &e);
    assert_ok(gr_interp_open(&it, b.g, true, NULL, &e), &e);
    gr_tensor *leaves[] = { b.x, b.router, b.gate, b.up, b.down, b.bias, b.seed };
    for (size_t i = 0; i < sizeof leaves / sizeof *leaves; i++) fill(&it, leaves[i], i);
    gr_interp_run(&it, 0, b.g->n_nodes);
    for (int w = 0; w < 3; w++) {
      gr_array x = gr_interp_array(&it, wrt[w]), d = gr_interp_array(&it, grads[w]);
      double *v = x.data, truth = 0, difference = 0;
      for (int64_t i = 0; i < gr_array_count(&x); i++) {
        double keep = v[i], h = 1e-5, got = ((double *)d.data)[i];
        v[i] = keep + h;
        double above = loss(&it, &b, n_nodes);
        v[i] = keep - h;
        double slope = (above - loss(&it, &b, n_nodes)) / (2 * h);
        v[i] = keep;
        truth += slope * slope, difference += (slope - got) * (slope - got);
      }
      assert_true(truth > 0);
      if (!(difference < 1e-14 * truth)) fail_msg("gate %zu, gradient %d: off by %g", n, w, sqrt(difference / truth));
    }
    gr_interp_close(&it);
    gr_graph_free(b.g);
  }
}

/* Ids stay within the experts and distinct whatever the logits hold, on every row of every backend. */
static void route_survives_any_logits(void **state)
{
  (void)state;
  static const float wild[] = { NAN, INFINITY, -INFINITY, 0, 1, -0.0f, 3e38f, -3e38f };
  float logits[EXPERTS * 64];
  for (int i = 0; i < EXPERTS * 64; i++) logits[i] = wild[gr_random_below(42, 1, (uint64_t)i, i < EXPERTS * 8 ? 1 : 8)];
  for (size_t n = 0; gr_backend_name(n); n++) {
    gr_error e = { 0 };
    gr_backend *backend;
    assert_ok(gr_backend_open(&backend, gr_backend_name(n), NULL, &e), &e);
    for (const gr_kernel_row *row = backend->ops->rows; row->op != GR_OP_NONE; row++)
      for (int gating = 0; gating < GR_GATE_KINDS && row->op == GR_OP_route && backend->ops->host_memory; gating++) {
        struct gr_route_params p = { 4, gating, 1, 0, 1 };
        float weights[4 * 64];
        int32_t ids[4 * 64];
        memset(ids, 0x7b, sizeof ids);
        gr_op_call c = { .op = GR_OP_route, .params = &p, .n_in = 1, .n_out = 2 };
        c.in[0] = (gr_array){ .data = logits, .dtype = GR_F32, .ne = { EXPERTS, 64, 1, 1 } };
        c.out[0] = (gr_array){ .data = weights, .dtype = GR_F32, .ne = { 4, 64, 1, 1 } };
        c.out[1] = (gr_array){ .data = ids, .dtype = GR_I32, .ne = { 4, 64, 1, 1 } };
        gr_strides_contiguous(GR_F32, c.in[0].ne, c.in[0].nb);
        for (int i = 0; i < 2; i++) gr_strides_contiguous(c.out[i].dtype, c.out[i].ne, c.out[i].nb);
        if (row->scratch) assert_non_null(c.scratch = gr_alloc_aligned(row->scratch(&c, 1), 64));
        assert_ok(row->run(backend, &c, &e), &e);
        for (int t = 0; t < 64; t++) {
          unsigned seen = 0;
          for (int i = 0; i < 4; i++) {
            assert_in_range(ids[4 * t + i], 0, EXPERTS - 1);
            seen |= 1u << ids[4 * t + i];
          }
          assert_int_equal(__builtin_popcount(seen), 4);
          if (t < 8) assert_int_equal(seen, 0xf); /* all NaN: the lower expert first */
        }
        gr_free(c.scratch);
      }
    gr_backend_close(backend);
  }
}

/* Two experts change places within reach of a difference: the gradient check says that the case is at fault, not the rule. */
static void tie_case(struct gr_case_sink *s)
{
  static const struct gr_route_params p = { 2, GR_GATE_SOFTMAX, 0, 0, 1 };
  gr_case_add(s, &(gr_case){ .params = &p, .in = { { .ne = { 4, 1 }, .fill = GR_FILL_LIST(2, 1, 1.002, -1), .grad = true } } });
}

static void ties_of_a_router_are_told_apart(void **state)
{
  (void)state;
  gr_op route = *gr_op_get(GR_OP_route);
  gr_optest_swap swap = { GR_OP_route, &route };
  gr_optest o = only(GR_OP_route);
  route.cases = tie_case;
  o.swap = &swap;
  fails(gr_optest_grad, &o, "sits on a kink");
}

/* References do not take a grouping that belongs to other ids for right. */
static void a_stale_grouping_is_not_taken_for_right(void **state)
{
  (void)state;
  float w[2 * 3] = { 1, 2, 3, 4, 5, 6 }, x[2 * 2] = { 1, 1, 1, 1 }, y[2];
  int32_t ids[2] = { 2, 0 }, perm[2] = { 1, 0 }, offsets[4] = { 0, 1, 1, 2 };
  gr_op_call c = { .op = GR_OP_matmul_id, .n_in = 5, .n_out = 1 };
  c.in[0] = (gr_array){ .data = w, .dtype = GR_F32, .ne = { 2, 1, 3, 1 } };
  c.in[1] = (gr_array){ .data = x, .dtype = GR_F32, .ne = { 2, 1, 2, 1 } };
  c.in[2] = (gr_array){ .data = ids, .dtype = GR_I32, .ne = { 1, 2, 1, 1 } };
  c.in[3] = (gr_array){ .data = perm, .dtype = GR_I32, .ne = { 1, 2, 1, 1 } };
  c.in[4] = (gr_array){ .data = offsets, .dtype = GR_I32, .ne = { 4, 1, 1, 1 } };
  c.out[0] = (gr_array){ .data = y, .dtype = GR_F32, .ne = { 1, 1, 2, 1 } };
  for (int i = 0; i < 5; i++) gr_strides_contiguous(c.in[i].dtype, c.in[i].ne, c.in[i].nb);
  gr_strides_contiguous(GR_F32, c.out[0].ne, c.out[0].nb);
  gr_op_get(c.op)->reference(&c);
  assert_true(y[0] == 11 && y[1] == 3);
  ids[1] = 1;
  gr_op_get(c.op)->reference(&c);
  assert_true(isnan(y[0]) && isnan(y[1]));
  ids[1] = 0, perm[0] = 0, perm[1] = 1;
  gr_op_get(c.op)->reference(&c);
  assert_true(isnan(y[0]) && isnan(y[1]));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(the_gradient_of_a_block_is_whole),
    cmocka_unit_test(route_survives_any_logits),
    cmocka_unit_test(ties_of_a_router_are_told_apart),
    cmocka_unit_test(a_stale_grouping_is_not_taken_for_right),
  };
  return cmocka_run_group_tests_name("experts", tests, NULL, NULL);
}
