/* A stack of experts and its adapter in one op: the bits of the plain nodes, on every instruction set and number of threads, in both
 * precisions; and what a training step of the models with experts makes of it. */
#include "cpu_fixture.h"
#include "graph/graph.h"
#include "train_sample.h"

/* ---- one stack ---- */

typedef struct shape {
  gr_dtype type;
  int64_t k, m, rank, experts, used, slots, tokens;
} shape;

/* Few tokens and one; an expert's pairs in one part and in several; jobs of whole parts and of panels; chunks; odd ranks; rows a slot. */
static const shape shapes[] = { { GR_Q4_K, 512, 70, 3, 5, 2, 1, 19 },    { GR_Q4_K, 2048, 160, 16, 4, 2, 1, 1 },
                                { GR_Q8_0, 5120, 260, 7, 2, 2, 2, 11 },  { GR_F32, 67, 33, 1, 4, 3, 3, 40 },
                                { GR_Q4_1, 96, 520, 40, 2, 2, 1, 300 },  { GR_MXFP4, 32, 19, 5, 9, 4, 2, 9 },
                                { GR_F32, 37, 290, 16, 140, 2, 1, 300 }, { GR_Q6_K, 2560, 7, 33, 3, 1, 1, 5 } };
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct stack {
  gr_tensor *ids, *group[3], *w, *x, *a, *b;
} stack;

/* One pair of nine goes nowhere, and expert 1 has none where there are more than two. */
static stack stack_of(fixture *f, const shape *s)
{
  stack k = { .ids = leaf(f, GR_I32, s->used, s->tokens, 1),
              .w = leaf(f, s->type, s->k, s->m, s->experts),
              .x = f32(f, s->k, s->slots, s->tokens),
              .a = f32(f, s->k, s->rank, s->experts),
              .b = f32(f, s->rank, s->m, s->experts) };
  for (int64_t p = 0; p < s->used * s->tokens; p++) {
    int32_t id = (int32_t)(gr_random_u64(7, 1, (uint64_t)p) % (uint64_t)s->experts);
    ((int32_t *)k.ids->data)[p] = p % 9 == 4 ? -1 : id == 1 && s->experts > 2 ? 0 : id;
  }
  k.group[0] = k.ids;
  k.group[1] = gr_group_experts(f->graph, k.ids, s->experts);
  k.group[2] = k.group[1]->node->out[1];
  return k;
}

static gr_tensor *product(fixture *f, const stack *k, gr_tensor *w, gr_tensor *x)
{
  return gr_matmul_id(f->graph, w, x, k->group[0], k->group[1], k->group[2]);
}

/* Runs what gives outputs; returns how many nodes are fused of op. */
static size_t run_plan(fixture *f, gr_backend *cpu, bool plain, gr_tensor *const *outputs, size_t n, gr_op_id op, float *out)
{
  gr_error e = { 0 };
  gr_plan *p = NULL;
  const gr_plan_options o = { .backends = &cpu, .n_backends = 1, .no_fusion = plain, .poison = true };
  assert_ok(gr_plan_create(&p, f->graph, outputs, n, &o, &e), &e);
  assert_ok(gr_plan_allocate(p, &e), &e);
  for (size_t i = 0; i < f->graph->n_tensors; i++) {
    const gr_tensor *t = f->graph->tensors[i];
    if (t->leaf == GR_LEAF_INPUT)
      assert_ok(gr_plan_write(p, t, t->data, gr_row_bytes(t->dtype, t->ne[0]) * (size_t)(t->ne[1] * t->ne[2]), &e), &e);
  }
  assert_ok(gr_plan_run_all(p, &e), &e);
  for (size_t i = 0; i < n; i++) {
    size_t count = (size_t)(outputs[i]->ne[0] * outputs[i]->ne[1] * outputs[i]->ne[2]);
    assert_ok(gr_plan_read(p, outputs[i], out, count * sizeof *out, &e), &e);
    out += count;
  }
  size_t fused = 0;
  for (size_t i = 0; i < gr_plan_launches(p); i++) {
    gr_launch_info info;
    gr_plan_launch_info(p, i, &info);
    fused += info.node->op == op;
  }
  gr_plan_free(p);
  return fused;
}

static gr_backend *open_set(const char *set, gr_pool *pool, gr_precision precision)
{
  gr_error e = { 0 };
  gr_backend *cpu = NULL;
  setenv("GRAFT_CPU", set, 1);
  gr_status s = gr_backend_open(&cpu, "cpu", pool, &e);
  unsetenv("GRAFT_CPU");
  if (s != GR_OK) return NULL; /* does not run here */
  assert_ok(gr_backend_use_precision(cpu, precision, &e), &e);
  return cpu;
}

/* plain is run anew for each graph: the fusion pass takes the graph's nodes over. */
static void forward_bits(fixture *f, const shape *s, const char *set, gr_pool *pool, gr_precision precision, bool plain, float *out)
{
  gr_backend *cpu = open_set(set, pool, precision);
  if (!cpu) return;
  f->graph = gr_graph_create();
  assert_non_null(f->graph);
  f->stream = 1;
  stack k = stack_of(f, s);
  gr_tensor *h = gr_scale(f->graph, product(f, &k, k.a, k.x), 0.7f);
  gr_tensor *y = gr_add(f->graph, product(f, &k, k.w, k.x), product(f, &k, k.b, h)), *outputs[] = { y, gr_scale(f->graph, h, 1) };
  assert_int_equal(run_plan(f, cpu, plain, outputs, 2, GR_OP_matmul_id_lora, out), !plain);
  free_graph((void **)&f);
  gr_backend_close(cpu);
}

static void a_stack_and_its_adapter_have_the_same_bits_in_one(void **state)
{
  fixture *f = *state;
  for (int i = 0; i < SHAPES; i++) {
    const shape *s = &shapes[i];
    size_t bytes = (size_t)((s->m + s->rank) * s->used * s->tokens) * sizeof(float);
    float *plain = gr_alloc(bytes), *fused = gr_alloc(bytes);
    assert_true(plain && fused);
    for (int set = 0; set < SETS; set++)
      for (int precision = GR_PRECISION_F32; precision <= GR_PRECISION_BF16; precision++) {
        if (!f->backend[set]) continue;
        forward_bits(f, s, sets[set], f->pool[0], precision, true, plain);
        for (int p = 0; p < POOLS; p++) {
          forward_bits(f, s, sets[set], f->pool[p], precision, false, fused);
          if (memcmp(fused, plain, bytes) != 0)
            fail_msg("shape %d, %s, precision %d, %d threads", i, sets[set], precision, thread_counts[p]);
        }
      }
    gr_free(plain);
    gr_free(fused);
  }
}

/* ---- and its gradient ---- */

enum { STACKS = 2 };

/* Gradients to x, A and B of two stacks that read one x, each with its adapter, or of one. read: what comes of B^T dy of the first stack is
 * read by something else, too, so that only the other can be fused. */
static void back_bits(fixture *f, const shape *s, int stacks, const char *set, gr_pool *pool, gr_precision precision, bool plain, bool read,
                      float *out)
{
  gr_error e = { 0 };
  gr_backend *cpu = open_set(set, pool, precision);
  assert_non_null(cpu);
  f->graph = gr_graph_create();
  assert_non_null(f->graph);
  f->stream = 1;
  stack k = stack_of(f, s);
  gr_tensor *wrt[1 + 2 * STACKS] = { k.x }, *grads[2 + 2 * STACKS], *y = NULL;
  for (int i = 0; i < stacks; i++) {
    if (i > 0) {
      k.w = leaf(f, s->type, s->k, s->m, s->experts);
      k.a = f32(f, s->k, s->rank, s->experts), k.b = f32(f, s->rank, s->m, s->experts);
    }
    gr_tensor *base = product(f, &k, k.w, k.x), *h = gr_scale(f->graph, product(f, &k, k.a, k.x), 0.7f);
    gr_tensor *z = gr_add(f->graph, base, product(f, &k, k.b, h));
    y = y ? gr_mul(f->graph, y, z) : z;
    wrt[1 + 2 * i] = k.a, wrt[2 + 2 * i] = k.b;
  }
  size_t n = 1 + 2 * (size_t)stacks;
  assert_ok(gr_graph_backward(f->graph, y, f32(f, s->m, s->used, s->tokens), wrt, n, grads, &e), &e);
  for (size_t i = 0; i < f->graph->n_nodes && read; i++) {
    const gr_node *node = f->graph->nodes[i];
    if (node->op == GR_OP_matmul_id_back && node->in[0] == wrt[2]) grads[n] = gr_scale(f->graph, node->out[0], 1);
  }
  assert_int_equal(run_plan(f, cpu, plain, grads, n + read, GR_OP_matmul_id_lora_back, out), plain ? 0 : stacks - read);
  free_graph((void **)&f);
  gr_backend_close(cpu);
}

static double apart(const float *a, const float *b, size_t n)
{
  double off = 0, norm = 0;
  for (size_t i = 0; i < n; i++) {
    off += pow((double)a[i] - (double)b[i], 2);
    norm += pow((double)b[i], 2);
  }
  return sqrt(off / norm);
}

/* Of one stack whose slots have rows of their own, bit for bit; where rows are summed, or a sum is there already, the order is another, but
 * it is that of the pairs for any number of threads. */
static void a_gradient_through_a_stack_and_its_adapter_is_one_sum(void **state)
{
  fixture *f = *state;
  for (int i = 0; i < SHAPES; i++) {
    const shape *s = &shapes[i];
    size_t n = (size_t)(s->k * s->slots * s->tokens + STACKS * (s->k + s->m) * s->rank * s->experts + s->rank * s->used * s->tokens);
    float *plain = gr_calloc(n, sizeof *plain), *fused = gr_calloc(n, sizeof *fused), *again = gr_calloc(n, sizeof *again);
    assert_true(plain && fused && again);
    for (int set = 0; set < SETS; set++)
      for (int precision = GR_PRECISION_F32; precision <= GR_PRECISION_BF16; precision++) {
        if (!f->backend[set]) continue;
        for (int stacks = 1; stacks <= STACKS; stacks++) {
          if (stacks == 2 && precision == GR_PRECISION_BF16) continue; /* y is a product: what is rounded to bf16 goes another way */
          back_bits(f, s, stacks, sets[set], f->pool[0], precision, true, false, plain);
          for (int p = 0; p < POOLS; p += 2) {
            float *to = p == 0 ? fused : again;
            back_bits(f, s, stacks, sets[set], f->pool[p], precision, false, false, to);
            if (p > 0 && memcmp(to, fused, n * sizeof *to) != 0)
              fail_msg("shape %d, %d stacks, %s, precision %d: other bits by %d threads", i, stacks, sets[set], precision,
                       thread_counts[p]);
          }
          bool bits = stacks == 1 && s->slots == s->used;
          if (bits ? memcmp(fused, plain, n * sizeof *fused) != 0 : !(apart(fused, plain, n) <= 1e-6))
            fail_msg("shape %d, %d stacks, %s, precision %d: off by %.2e", i, stacks, sets[set], precision, apart(fused, plain, n));
        }
      }
    gr_free(plain);
    gr_free(fused);
    gr_free(again);
  }
  const shape s = { GR_F32, 40, 24, 4, 5, 2, 1, 9 };
  float out[4000], plain[4000];
  back_bits(f, &s, 2, "generic", f->pool[0], GR_PRECISION_F32, true, true, plain);
  back_bits(f, &s, 2, "generic", f->pool[0], GR_PRECISION_F32, false, true, out);
  assert_true(apart(out, plain, (size_t)(40 * 9 + 2 * 64 * 4 * 5 + 4 * 2 * 9)) <= 1e-6);
}

/* ---- what is not fused ---- */

/* What B h is is read, other experts, an adapter of another input, a backend without such a kernel: the nodes stay. */
static void what_is_read_or_routed_elsewhere_is_not_fused(void **state)
{
  fixture *f = *state;
  enum { SAME, SUM_READ, OTHER_ROUTING, OTHER_INPUT, OTHER_BACKEND, KINDS };
  gr_error e = { 0 };
  const shape s = { GR_F32, 40, 24, 4, 5, 2, 1, 9 };
  float out[2 * 24 * 2 * 9];
  for (int kind = 0; kind < KINDS; kind++) {
    gr_backend *b = NULL;
    assert_ok(gr_backend_open(&b, kind == OTHER_BACKEND ? "emu" : "cpu", f->pool[0], &e), &e);
    f->graph = gr_graph_create();
    assert_non_null(f->graph);
    stack k = stack_of(f, &s), other = stack_of(f, &s);
    gr_tensor *low = gr_scale(f->graph, product(f, &k, k.a, kind == OTHER_INPUT ? other.x : k.x), 2);
    gr_tensor *up = product(f, kind == OTHER_ROUTING ? &other : &k, k.b, low);
    gr_tensor *outputs[] = { gr_add(f->graph, product(f, &k, k.w, k.x), up), up };
    assert_int_equal(run_plan(f, b, false, outputs, kind == SUM_READ ? 2 : 1, GR_OP_matmul_id_lora, out), kind == SAME);
    free_graph((void **)&f);
    gr_backend_close(b);
  }
}

/* ---- models ---- */

enum { TOKENS = 40 };

typedef struct step {
  double loss;
  float *gradient;
  size_t n, stacks, forward, back, plain;
} step;

/* A step with an adapter of rank 3 on every linear: its loss, its gradient, and how many nodes over stacks it has. */
static step step_of(const gr_model *m, gr_backend *cpu, bool recompute, bool plain)
{
  gr_error e = { 0 };
  static uint8_t layers[64];
  const char *const all[] = { "re:.*" };
  const size_t first = 0;
  step r = { 0 };
  gr_lora *lora = NULL;
  gr_step *s = NULL;
  gr_dataset *d = NULL;
  memset(layers, recompute, sizeof layers);
  assert_ok(gr_lora_create(&lora, m, &(gr_lora_options){ .rank = 3, .alpha = 4, .targets = all, .n_targets = 1, .seed = 2 }, &e), &e);
  fill_values(lora, 11);
  add_sequence(&d, TOKENS, gr_model_hparams(m)->vocab, 4);
  const gr_step_options o = {
    .tokens = TOKENS, .train = true, .recompute = layers, .backends = &cpu, .n_backends = 1, .no_fusion = plain, .poison = true
  };
  assert_ok(gr_step_plan(&s, m, lora, &o, &e), &e);
  assert_ok(gr_step_allocate(s, &e), &e);
  gr_step_clear(s);
  assert_ok(gr_step_run(s, d, &first, 1, 1, NULL, NULL, NULL, &e), &e);
  for (size_t i = 0; i < gr_lora_pair_count(lora); i++) r.stacks += gr_lora_pair_at(lora, i)->experts > 1;
  gr_plan *p = gr_step_plan_of(s);
  for (size_t i = 0; i < gr_plan_launches(p); i++) {
    gr_launch_info info;
    gr_plan_launch_info(p, i, &info);
    r.forward += info.node->op == GR_OP_matmul_id_lora && info.node->phase == GR_PHASE_FORWARD;
    r.back += info.node->op == GR_OP_matmul_id_lora_back;
    r.plain += info.node->op == GR_OP_matmul_id || info.node->op == GR_OP_matmul_id_back;
  }
  r.loss = gr_step_sums_of(s)->loss;
  r.n = gr_lora_parameters(lora);
  r.gradient = gr_alloc(r.n * sizeof *r.gradient);
  assert_non_null(r.gradient);
  memcpy(r.gradient, gr_step_gradient(s), r.n * sizeof *r.gradient);
  gr_step_free(s);
  gr_lora_free(lora);
  gr_dataset_free(d);
  return r;
}

/* The loss bit for bit; gradients, whose sums are fused in another order, to what their rounding is: in bf16, operands that are rounded to
 * the other side. */
static void steps_of_models_agree_with_their_plain_nodes(void **state)
{
  fixture *f = *state;
  gr_error e = { 0 };
  static const char *const models[] = { GOLDEN_EXPERTS };
  for (size_t i = 0; i < sizeof models / sizeof *models; i++)
    for (int precision = GR_PRECISION_F32; precision <= GR_PRECISION_BF16; precision++)
      for (int recompute = 0; recompute < 2; recompute++) {
        char path[512];
        gr_model *m = NULL;
        gr_backend *cpu = NULL;
        snprintf(path, sizeof path, GR_SOURCE_DIR "/tests/golden/%s.gguf", models[i]);
        assert_ok(gr_model_open(&m, path, &e), &e);
        assert_ok(gr_backend_open(&cpu, "cpu", f->pool[1], &e), &e);
        assert_ok(gr_backend_use_precision(cpu, precision, &e), &e);
        step fused = step_of(m, cpu, recompute, false), plain = step_of(m, cpu, recompute, true);
        assert_true(fused.stacks > 0 && plain.forward == 0 && plain.back == 0);
        assert_int_equal(fused.forward, fused.stacks);
        assert_int_equal(fused.back, fused.stacks);
        assert_int_equal(fused.plain, 0);
        if (fused.loss < plain.loss || fused.loss > plain.loss) fail_msg("%s: loss %.17g, plain %.17g", models[i], fused.loss, plain.loss);
        double off = apart(fused.gradient, plain.gradient, fused.n);
        if (!(off <= (precision ? 1e-3 : 1e-6)))
          fail_msg("%s, precision %d, recompute %d: gradients are off by %.2e", models[i], precision, recompute, off);
        gr_free(fused.gradient);
        gr_free(plain.gradient);
        gr_backend_close(cpu);
        gr_model_close(m);
      }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_stack_and_its_adapter_have_the_same_bits_in_one),
    cmocka_unit_test(a_gradient_through_a_stack_and_its_adapter_is_one_sum),
    cmocka_unit_test(what_is_read_or_routed_elsewhere_is_not_fused),
    cmocka_unit_test(steps_of_models_agree_with_their_plain_nodes),
  };
  return cmocka_run_group_tests_name("experts_lora", tests, setup, teardown);
}
