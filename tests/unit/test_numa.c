/* Memory on machines of several nodes: stripes are touched in turns, each by a thread that stands on its node, with what is in them left
 * as it is; plans, caches and the optimizer's state are spread so, and one node or one thread gets nothing. This machine's processors are
 * dealt to nodes that are not there. */
#define _GNU_SOURCE /* sched_getcpu, mincore */
#include "scratch.h"

#include "base/alloc.h"
#include "base/numa.h"
#include "graph/graph.h"
#include "graph/plan.h"
#include "infer/session.h"
#include "model/model.h"
#include "train/step.h"

#if defined(__linux__)
#include <malloc.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { STRIPES = 9, PAGE = 4096 };

static cpu_set_t allowed(void)
{
  cpu_set_t set;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
  return set;
}

/* The n-th processor that this process may run on; the last where there are fewer. */
static int processor(int n)
{
  cpu_set_t set = allowed();
  int last = -1;
  for (int i = 0; i < CPU_SETSIZE && n >= 0; i++)
    if (CPU_ISSET(i, &set)) last = i, n--;
  return last;
}

static void *map(size_t bytes)
{
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(p != MAP_FAILED);
  return p;
}

/* Pages of [p, p + bytes) that are in memory. */
static size_t touched(void *p, size_t bytes, size_t *pages)
{
  uintptr_t from = (uintptr_t)p / PAGE * PAGE;
  size_t n = 0;
  *pages = ((uintptr_t)p + bytes - from + PAGE - 1) / PAGE;
  unsigned char *there = gr_alloc(*pages);
  assert_non_null(there);
  assert_int_equal(mincore((void *)from, *pages * PAGE, there), 0);
  for (size_t i = 0; i < *pages; i++) n += there[i] & 1;
  gr_free(there);
  return n;
}

/* ---- who touches what ---- */

typedef struct seen {
  int node[STRIPES + 1], cpu[STRIPES + 1];
} seen;

static void note(void *ctx, size_t stripe, int node)
{
  seen *s = ctx;
  s->node[stripe] = node;
  s->cpu[stripe] = sched_getcpu();
}

/* A folder as the system has one, of nodes 0 and 3. */
static gr_numa *read_nodes(const char *online, const char *first, const char *second)
{
  static const char *const names[] = { "node0", "node3" };
  const char *lists[] = { first, second };
  gr_error e;
  gr_numa *numa;
  scratch s;
  FILE *f;
  scratch_open(&s);
  assert_non_null(f = fopen(scratch_path(&s, "online"), "w"));
  fputs(online, f);
  fclose(f);
  for (int i = 0; i < 2; i++) {
    char path[300];
    assert_int_equal(mkdir(scratch_path(&s, names[i]), 0700), 0);
    snprintf(path, sizeof path, "%s/%s/cpulist", s.folder, names[i]);
    assert_non_null(f = fopen(path, "w"));
    fputs(lists[i], f);
    fclose(f);
  }
  assert_ok(gr_numa_find(&numa, s.folder, &e), &e);
  for (int i = 0; i < 2; i++) {
    char path[300];
    snprintf(path, sizeof path, "%s/%s/cpulist", s.folder, names[i]);
    unlink(path);
    rmdir(scratch_path(&s, names[i]));
  }
  scratch_close(&s);
  return numa;
}

static gr_numa *two_nodes(void)
{
  char first[32], second[64];
  snprintf(first, sizeof first, "%d\n", processor(0));
  snprintf(second, sizeof second, "%d,1000-1010\n", processor(1));
  return read_nodes("0,3\n", first, second);
}

static void stripes_go_to_nodes_in_turns(void **state)
{
  (void)state;
  gr_error e;
  gr_pool *pool;
  gr_numa *numa = two_nodes();
  assert_int_equal(gr_numa_nodes(numa), 2);
  const cpu_set_t before = allowed();
  for (int threads = 2; threads < 6; threads++) {
    assert_ok(gr_pool_create(&pool, threads, &e), &e);
    for (size_t off = 0; off <= 48; off += 48) { /* memory need not begin with a stripe */
      const size_t bytes = (STRIPES - 1) * GR_NUMA_STRIPE - 100;
      size_t pages, stripes = 0;
      seen s;
      char *all = map((STRIPES + 1) * GR_NUMA_STRIPE), *p = all + GR_NUMA_STRIPE - (uintptr_t)all % GR_NUMA_STRIPE + off;
      memset(&s, 0xff, sizeof s);
      p[0] = 1, p[bytes - 1] = 2, p[GR_NUMA_STRIPE] = 3;
      assert_int_equal(gr_numa_touch(numa, pool, p, bytes, note, &s), bytes);
      size_t there = touched(p, bytes, &pages);
      assert_int_equal(there, pages);
      assert_true(p[0] == 1 && p[bytes - 1] == 2 && p[GR_NUMA_STRIPE] == 3);
      for (; s.node[stripes] >= 0; stripes++) {
        assert_int_equal(s.node[stripes], stripes % 2);
        assert_int_equal(s.cpu[stripes], processor((int)(stripes % 2)));
      }
      assert_int_equal(stripes, STRIPES - 1);
      munmap(all, (STRIPES + 1) * GR_NUMA_STRIPE);
    }
    gr_pool_free(pool);
  }
  const cpu_set_t after = allowed();
  assert_true(CPU_EQUAL(&before, &after)); /* whoever went to a node may run anywhere again */
  gr_numa_free(numa);
}

/* A thread of the pool that went to a node is let go as well. */
static void ask_set(void *ctx, size_t job, int thread)
{
  (void)thread;
  ((cpu_set_t *)ctx)[job] = allowed();
  usleep(2000);
}

static void no_thread_stays_bound(void **state)
{
  (void)state;
  gr_error e;
  gr_pool *pool;
  cpu_set_t sets[16];
  const cpu_set_t before = allowed();
  setenv("GRAFT_NUMA_NODES", "2", 1);
  assert_ok(gr_pool_create(&pool, 4, &e), &e);
  unsetenv("GRAFT_NUMA_NODES");
  const size_t bytes = STRIPES * GR_NUMA_STRIPE;
  void *p = map(bytes);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(gr_numa_spread(pool, p, bytes), bytes);
    gr_pool_run(pool, 16, ask_set, sets);
    for (int k = 0; k < 16; k++) assert_true(CPU_EQUAL(&before, &sets[k]));
  }
  munmap(p, bytes);
  gr_pool_free(pool);
}

/* ---- when nothing is done ---- */

static void one_node_one_thread_one_stripe_are_left_alone(void **state)
{
  (void)state;
  gr_error e;
  gr_pool *pools[3];
  const size_t bytes = 4 * GR_NUMA_STRIPE;
  size_t pages;
  char *p = map(bytes), first[32];
  setenv("GRAFT_NUMA_NODES", "2", 1);
  assert_ok(gr_pool_create(&pools[0], 1, &e), &e);
  assert_ok(gr_pool_create(&pools[1], 2, &e), &e);
  setenv("GRAFT_NUMA_NODES", "1", 1);
  assert_ok(gr_pool_create(&pools[2], 2, &e), &e);
  unsetenv("GRAFT_NUMA_NODES");
  assert_int_equal(gr_numa_nodes(gr_pool_nodes(pools[2])), 1);
  assert_int_equal(gr_numa_spread(NULL, p, bytes), 0);
  assert_int_equal(gr_numa_spread(pools[0], p, bytes), 0);
  assert_int_equal(gr_numa_spread(pools[1], p, 0), 0);
  assert_int_equal(gr_numa_spread(pools[1], p + GR_NUMA_STRIPE - (uintptr_t)p % GR_NUMA_STRIPE, GR_NUMA_STRIPE), 0);
  assert_int_equal(gr_numa_spread(pools[2], p, bytes), 0);
  assert_int_equal(touched(p, bytes, &pages), 0);
  for (int i = 0; i < 3; i++) gr_pool_free(pools[i]);
  munmap(p, bytes);
  snprintf(first, sizeof first, "%d\n", processor(0));
  assert_null(read_nodes("0\n", first, first));           /* one node */
  assert_null(read_nodes("0,3\n", first, "1000-1003\n")); /* one where this process may run */
  assert_null(read_nodes("0,3\n", first, "\n"));          /* memory without processors */
  assert_null(read_nodes("nodes\n", first, first));
  gr_numa *numa;
  assert_ok(gr_numa_find(&numa, "/nonexistent", &e), &e);
  assert_null(numa);
}

static void a_count_that_is_none_is_refused(void **state)
{
  (void)state;
  static const char *const bad[] = { "0", "65", "-1", "two", "2x" };
  gr_error e;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    gr_pool *pool = NULL;
    setenv("GRAFT_NUMA_NODES", bad[i], 1);
    assert_int_equal(gr_pool_create(&pool, 2, &e), GR_ERR_USAGE);
    assert_non_null(strstr(e.text, "GRAFT_NUMA_NODES="));
  }
  unsetenv("GRAFT_NUMA_NODES");
}

/* ---- what is spread ---- */

/* x times itself a few times, in an arena of many stripes: its results, and how much of the arena was touched before it ran. */
static float *power(const char *nodes, size_t *there, size_t *pages)
{
  enum { SIDE = 1536 };
  const int64_t ne[GR_DIMS] = { SIDE, SIDE, 1, 1 };
  gr_error e;
  gr_pool *pool;
  gr_backend *cpu;
  gr_plan *plan;
  setenv("GRAFT_NUMA_NODES", nodes, 1);
  assert_ok(gr_pool_create(&pool, 2, &e), &e);
  unsetenv("GRAFT_NUMA_NODES");
  assert_ok(gr_backend_open(&cpu, "cpu", pool, &e), &e);
  gr_graph *g = gr_graph_create();
  gr_tensor *x = gr_graph_leaf(g, GR_LEAF_INPUT, GR_F32, ne, NULL, NULL, "x"), *y = gr_mul(g, gr_matmul(g, x, gr_mul(g, x, x)), x);
  const gr_plan_options o = { .backends = &cpu, .n_backends = 1 };
  assert_ok(gr_plan_create(&plan, g, &y, 1, &o, &e), &e);
  assert_ok(gr_plan_allocate(plan, &e), &e);
  *there = touched(plan->arena[0], plan->arena_bytes[0], pages);
  float *v = gr_alloc(SIDE * SIDE * sizeof *v);
  assert_non_null(v);
  for (int i = 0; i < SIDE * SIDE; i++) v[i] = (float)(i % 977) / 977 - 0.5f;
  assert_ok(gr_plan_write(plan, x, v, SIDE * SIDE * sizeof *v, &e), &e);
  assert_ok(gr_plan_run_all(plan, &e), &e);
  assert_ok(gr_plan_read(plan, y, v, SIDE * SIDE * sizeof *v, &e), &e);
  gr_plan_free(plan);
  gr_graph_free(g);
  gr_backend_close(cpu);
  gr_pool_free(pool);
  return v;
}

static void arenas_are_spread_and_results_are_the_same(void **state)
{
  (void)state;
  size_t there, pages;
  float *one = power("1", &there, &pages);
  assert_true(pages > 4000 && there < pages / 2);
  float *two = power("2", &there, &pages);
  assert_int_equal(there, pages);
  float *three = power("3", &there, &pages);
  assert_int_equal(there, pages);
  assert_memory_equal(one, two, 1536 * 1536 * sizeof *one);
  assert_memory_equal(one, three, 1536 * 1536 * sizeof *one);
  gr_free(one), gr_free(two), gr_free(three);
}

/* Logits of a few tokens; how much of the cache is there when the session is open. */
static float *logits(const char *nodes, size_t *there, size_t *pages)
{
  static const int32_t ids[] = { 5, 3, 8, 1, 7 };
  gr_error e;
  gr_pool *pool;
  gr_backend *cpu;
  gr_model *m;
  gr_session *s;
  setenv("GRAFT_NUMA_NODES", nodes, 1);
  assert_ok(gr_pool_create(&pool, 2, &e), &e);
  unsetenv("GRAFT_NUMA_NODES");
  assert_ok(gr_backend_open(&cpu, "cpu", pool, &e), &e);
  assert_ok(gr_model_open(&m, GR_SOURCE_DIR "/tests/golden/llama.gguf", &e), &e);
  const gr_session_options o = { .backends = &cpu, .n_backends = 1, .context = 100000, .batch = 8 };
  assert_ok(gr_session_open(&s, m, &o, &e), &e);
  const gr_plan *plan = gr_session_plan_of(s, true);
  *there = *pages = 0;
  for (size_t i = 0; i < plan->n_places; i++) {
    const gr_tensor *t = plan->places[i].root;
    size_t more;
    if (t->leaf != GR_LEAF_STATE) continue;
    *there += touched(t->data, plan->places[i].bytes, &more);
    *pages += more;
  }
  size_t n = (size_t)gr_model_hparams(m)->vocab;
  float *v = gr_alloc(n * sizeof *v);
  assert_non_null(v);
  assert_ok(gr_session_run(s, ids, 5, v, 1, &e), &e);
  gr_session_close(s);
  gr_model_close(m);
  gr_backend_close(cpu);
  gr_pool_free(pool);
  return v;
}

static void caches_are_spread_and_logits_are_the_same(void **state)
{
  (void)state;
  size_t there, pages;
  float *one = logits("1", &there, &pages);
  assert_true(pages > 4000 && there < pages / 2);
  float *two = logits("2", &there, &pages);
  assert_int_equal(there, pages);
  assert_memory_equal(one, two, 16 * sizeof *one);
  gr_free(one), gr_free(two);
}

/* The gradient of a step, 0 as it is made. */
static void the_gradient_is_spread(void **state)
{
  (void)state;
  gr_error e;
  gr_model *m;
  gr_lora *lora;
  const char *const all[] = { "re:.*" };
  assert_ok(gr_model_open(&m, GR_SOURCE_DIR "/tests/golden/qwen3moe-wide.gguf", &e), &e);
  assert_ok(gr_lora_create(&lora, m, &(gr_lora_options){ .rank = 256, .alpha = 4, .targets = all, .n_targets = 1, .seed = 2 }, &e), &e);
  const size_t n = gr_lora_parameters(lora);
  for (int nodes = 1; nodes < 3; nodes++) {
    gr_pool *pool;
    gr_backend *cpu;
    gr_step *step;
    size_t pages;
    setenv("GRAFT_NUMA_NODES", nodes == 1 ? "1" : "2", 1);
    assert_ok(gr_pool_create(&pool, 2, &e), &e);
    unsetenv("GRAFT_NUMA_NODES");
    assert_ok(gr_backend_open(&cpu, "cpu", pool, &e), &e);
    const gr_step_options o = { .tokens = 16, .train = true, .backends = &cpu, .n_backends = 1 };
    assert_ok(gr_step_plan(&step, m, lora, &o, &e), &e);
    assert_ok(gr_step_allocate(step, &e), &e);
    float *gradient = (float *)gr_step_gradient(step);
    size_t there = touched(gradient, n * sizeof *gradient, &pages);
    assert_true(pages * PAGE > 2 * GR_NUMA_STRIPE);
    if (nodes == 1) assert_true(there < pages / 2);
    else assert_int_equal(there, pages);
    for (size_t i = 0; i < n; i++) assert_true(gradient[i] == 0);
    gr_step_free(step);
    gr_backend_close(cpu);
    gr_pool_free(pool);
  }
  gr_lora_free(lora);
  gr_model_close(m);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(stripes_go_to_nodes_in_turns),
    cmocka_unit_test(no_thread_stays_bound),
    cmocka_unit_test(one_node_one_thread_one_stripe_are_left_alone),
    cmocka_unit_test(a_count_that_is_none_is_refused),
    cmocka_unit_test(arenas_are_spread_and_results_are_the_same),
    cmocka_unit_test(caches_are_spread_and_logits_are_the_same),
    cmocka_unit_test(the_gradient_is_spread),
  };
#if defined(M_MMAP_THRESHOLD)
  mallopt(M_MMAP_THRESHOLD, 1 << 20); /* else a block can be one that was freed before, whose pages are there */
#endif
  return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

static void nothing_is_done(void **state)
{
  (void)state;
  gr_error e;
  gr_numa *numa;
  assert_ok(gr_numa_find(&numa, NULL, &e), &e);
  assert_null(numa);
}

int main(void)
{
  const struct CMUnitTest tests[] = { cmocka_unit_test(nothing_is_done) };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

#endif
