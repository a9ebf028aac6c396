/* What a step through a layer of 128 experts takes: memory and work follow the experts that are used, not those that there are.
 * What does grow is said: the router, its logits, and the gradients of adapted stacks. */
#include <math.h>
#include <time.h>

#include "check.h"

#include "base/alloc.h"
#include "graph/graph.h"
#include "ops/params.h"

enum { WIDTH = 256, INNER = 96, USED = 8, TOKENS = 512, RANK = 4, RUNS = 15, LIVE = 64 };

typedef struct layer {
  gr_graph *graph;
  gr_plan *plan;
  void *packed;
  float *floats;
} layer;

typedef struct taken {
  double bytes;           /* planned: arena and scratch */
  double products, moved; /* flops, and bytes of activations written, of the ops over stacks */
  double rest;            /* flops of everything else */
  double seconds;         /* of a processor, at best */
} taken;

static gr_tensor *leaf(gr_graph *g, gr_leaf kind, gr_dtype t, void *data, int64_t ne0, int64_t ne1, int64_t ne2, bool tokens)
{
  return gr_graph_leaf(g, kind, t, (const int64_t[]){ ne0, ne1, ne2, 1 }, (const uint8_t[GR_DIMS]){ 0, tokens ? GR_DIM_TOKENS : 0 }, data,
                       "");
}

/* y = W x + B (A x) of a stack; a and b get the leaves, or are NULL where it is frozen and bare. */
static gr_tensor *stack(layer *l, gr_tensor *x, gr_tensor *const group[3], int64_t out, int64_t experts, gr_tensor **a, gr_tensor **b)
{
  gr_graph *g = l->graph;
  gr_tensor *w = leaf(g, GR_LEAF_WEIGHT, GR_Q8_0, l->packed, x->ne[0], out, experts, false);
  gr_tensor *y = gr_matmul_id(g, w, x, group[0], group[1], group[2]);
  if (!a) return y;
  *a = leaf(g, GR_LEAF_PARAM, GR_F32, l->floats, x->ne[0], RANK, experts, false);
  *b = leaf(g, GR_LEAF_PARAM, GR_F32, l->floats, RANK, out, experts, false);
  gr_tensor *low = gr_matmul_id(g, *a, x, group[0], group[1], group[2]);
  return gr_add(g, y, gr_matmul_id(g, *b, low, group[0], group[1], group[2]));
}

static double processor_seconds(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Every logit is 0, so that each token goes to the first experts, however many there are; few tokens, beside which work for the others
 * shows. */
static double time_runs(layer *l, gr_tensor *h, gr_tensor *seed)
{
  gr_error e = { 0 };
  double best = HUGE_VAL;
  float *values = gr_calloc(WIDTH * LIVE, sizeof *values);
  assert_non_null(values);
  assert_ok(gr_plan_allocate(l->plan, &e), &e);
  assert_ok(gr_plan_set_dim(l->plan, GR_DIM_TOKENS, LIVE, &e), &e);
  assert_ok(gr_plan_write(l->plan, h, values, WIDTH * LIVE * sizeof *values, &e), &e);
  assert_ok(gr_plan_write(l->plan, seed, values, WIDTH * LIVE * sizeof *values, &e), &e);
  for (int i = 0; i < RUNS; i++) {
    double start = processor_seconds();
    assert_ok(gr_plan_run_all(l->plan, &e), &e);
    best = fmin(best, processor_seconds() - start);
  }
  gr_free(values);
  return best;
}

static taken measure(int64_t experts, bool adapted)
{
  gr_error e = { 0 };
  gr_backend *cpu = NULL;
  layer l = { .graph = gr_graph_create() };
  gr_graph *g = l.graph;
  assert_ok(gr_backend_open(&cpu, "cpu", NULL, &e), &e);
  l.packed = gr_calloc(gr_row_bytes(GR_Q8_0, WIDTH), (size_t)(INNER * experts)); /* all stacks: their values do not matter */
  l.floats = gr_calloc((size_t)(WIDTH * experts), RANK < INNER ? INNER * sizeof(float) : RANK * sizeof(float));
  assert_non_null(l.packed);
  assert_non_null(l.floats);
  gr_tensor *h = leaf(g, GR_LEAF_INPUT, GR_F32, NULL, WIDTH, TOKENS, 1, true),
            *in = leaf(g, GR_LEAF_PARAM, GR_F32, l.floats, WIDTH, 1, 1, false);
  gr_tensor *router = leaf(g, GR_LEAF_WEIGHT, GR_F32, l.floats, WIDTH, experts, 1, false), *wrt[5] = { in };
  gr_tensor *x = gr_mul(g, h, in); /* so that the gradient has to come all the way down */
  gr_tensor *weights = gr_route(g, gr_matmul(g, router, x), NULL, &(struct gr_route_params){ USED, GR_GATE_SOFTMAX, 1, 0, 1 });
  gr_tensor *ids = weights->node->out[1], *perm = gr_group_experts(g, ids, experts), *group[3] = { ids, perm, perm->node->out[1] };
  gr_tensor *token = gr_reshape(g, x, WIDTH, 1, TOKENS, 0);
  gr_tensor *inner = gr_glu(g, GR_GLU_SWIGLU, stack(&l, token, group, INNER, experts, adapted ? &wrt[1] : NULL, &wrt[2]),
                            stack(&l, token, group, INNER, experts, NULL, NULL));
  gr_tensor *y = gr_combine(g, stack(&l, inner, group, WIDTH, experts, adapted ? &wrt[3] : NULL, &wrt[4]), weights);
  gr_tensor *seed = leaf(g, GR_LEAF_INPUT, GR_F32, NULL, WIDTH, TOKENS, 1, true), *outputs[6] = { y };
  assert_ok(gr_graph_status(g, &e), &e);
  size_t n = adapted ? 5 : 1;
  assert_ok(gr_graph_backward(g, y, seed, wrt, n, outputs + 1, &e), &e);
  for (size_t i = 0; i < n; i++) assert_non_null(outputs[1 + i]);
  assert_ok(gr_plan_create(&l.plan, g, outputs, n + 1, &(gr_plan_options){ .backends = &cpu, .n_backends = 1 }, &e), &e);
  taken t = { .bytes = (double)gr_plan_bytes(l.plan, 0) };
  for (size_t i = 0; i < gr_plan_launches(l.plan); i++) {
    gr_launch_info info;
    gr_plan_launch_info(l.plan, i, &info);
    bool over = info.node->op == GR_OP_matmul_id || info.node->op == GR_OP_matmul_id_back || info.node->op == GR_OP_out_prod_id;
    *(over ? &t.products : &t.rest) += info.cost.flops;
    if (over && info.node->op != GR_OP_out_prod_id) t.moved += info.cost.bytes_written;
  }
  t.seconds = time_runs(&l, h, seed);
  gr_plan_free(l.plan);
  gr_graph_free(g);
  gr_free(l.packed);
  gr_free(l.floats);
  gr_backend_close(cpu);
  return t;
}

/* What the ops say that they cost is one thing; here the clock is asked. Idle experts cost a logit and, adapted, a gradient of zeros. */
static void check_time(const taken *few, const taken *many)
{
  print_message("# 16 experts %.2f ms, 128 experts %.2f ms\n", 1e3 * few->seconds, 1e3 * many->seconds);
  if (many->seconds > 1.6 * few->seconds)
    fail_msg("a step over 128 experts takes %.2f ms where one over 16 takes %.2f", 1e3 * many->seconds, 1e3 * few->seconds);
}

static void frozen_experts_that_are_not_used_cost_nothing(void **state)
{
  (void)state;
  taken few = measure(16, false), many = measure(128, false);
  assert_true(few.products > 0 && few.products == many.products);
  assert_true(few.moved > 0 && few.moved == many.moved);
  /* The rest is the router both ways, and choosing; of memory, the logits and their gradient, offsets, and small change. */
  double router = 2 * 2.0 * WIDTH * TOKENS * (128 - 16), logits = 4.0 * TOKENS * (128 - 16);
  assert_true(many.rest - few.rest >= router && many.rest - few.rest < 1.1 * router);
  check_time(&few, &many);
  if (many.bytes - few.bytes > 3 * logits)
    fail_msg("128 experts take %.0f bytes more than 16, and logits are %.0f", many.bytes - few.bytes, logits);
}

static void adapted_ones_cost_their_gradients(void **state)
{
  (void)state;
  taken few = measure(16, true), many = measure(128, true);
  double gradients = 4.0 * RANK * 2 * (WIDTH + INNER) * (128 - 16), logits = 4.0 * TOKENS * (128 - 16);
  assert_true(few.products == many.products);
  assert_true(few.moved == many.moved);
  check_time(&few, &many);
  if (many.bytes - few.bytes > gradients + 3 * logits)
    fail_msg("128 experts take %.0f bytes more than 16, of which gradients are %.0f", many.bytes - few.bytes, gradients);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(frozen_experts_that_are_not_used_cost_nothing),
    cmocka_unit_test(adapted_ones_cost_their_gradients),
  };
  return cmocka_run_group_tests_name("experts growth", tests, NULL, NULL);
}
