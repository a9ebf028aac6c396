/* Recordings (C10): the calls of a real training step become cases, and what is broken shows on them. */
#include "golden.h"
#include "optest.h"
#include "scratch.h"

#include "backend/backends.h"
#include "io/gguf_write.h"

/* The calls of one training step of a golden model, in a file. */
static void record(const char *model, const char *path, bool no_fusion)
{
  gr_error e = { 0 };
  gr_backend *cpu = NULL;
  gr_recorder *r = NULL;
  golden t;
  size_t seen, kept, left_out;
  assert_ok(gr_backend_open(&cpu, "cpu", NULL, &e), &e);
  assert_ok(gr_recorder_create(&r, (size_t)1 << 28, &e), &e);
  golden_open(&t, model);
  golden_plan(&t, &(gr_plan_options){ .backends = &cpu, .n_backends = 1, .no_fusion = no_fusion });
  gr_plan_watch(t.plan, gr_recorder_watch, r);
  golden_run(&t);
  gr_recorder_counts(r, &seen, &kept, &left_out);
  assert_int_equal(seen, gr_plan_launches(t.plan));
  assert_true(kept > 20 && kept < seen);
  assert_int_equal(left_out, 0);
  assert_ok(gr_recorder_save(r, path, &e), &e);
  gr_recorder_free(r);
  golden_close(&t);
  gr_backend_close(cpu);
}

static void a_recorded_step_is_replayed(void **state)
{
  (void)state;
  static const char *const models[] = { "qwen3moe", "llama" };
  scratch s;
  scratch_open(&s);
  for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
    gr_optest o = { .replay = scratch_path(&s, "step.gguf") };
    record(models[i], o.replay, i == 1);
    passes(gr_optest_test, &o, 300);
    assert_true(o.cases > 20);
  }
  scratch_close(&s);
}

/* ---- a kernel that is wrong ---- */

static gr_status run_wrong(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  (void)b;
  (void)e;
  gr_op_get(c->op)->reference(c);
  *(float *)c->out[0].data *= 1.01f;
  return GR_OK;
}

static const gr_kernel_row wrong_rows[] = { { .op = GR_OP_rms_norm_mul, .name = "wrong", .run = run_wrong }, { .op = GR_OP_NONE } };

static void wrong_close(gr_backend *b) { gr_free(b); }

static const gr_backend_ops wrong_ops = {
  .name = "wrong", .rows = wrong_rows, .host_memory = true, .alloc = gr_host_alloc, .free = gr_host_free, .close = wrong_close
};

static gr_status wrong_open(gr_backend **out, gr_pool *pool, gr_error *e)
{
  gr_backend *b = gr_calloc(1, sizeof *b);
  if (!b) return gr_fail_memory(e, sizeof *b);
  *b = (gr_backend){ .ops = &wrong_ops, .pool = pool };
  *out = b;
  return GR_OK;
}

static void what_is_wrong_shows_on_a_recording(void **state)
{
  (void)state;
  static const gr_optest_target target = { "wrong", wrong_open };
  scratch s;
  scratch_open(&s);
  gr_optest o = only(GR_OP_rms_norm_mul);
  o.targets = &target;
  o.n_targets = 1;
  o.replay = scratch_path(&s, "step.gguf");
  record("qwen3", o.replay, false);
  fails(gr_optest_test, &o, "is off");
  scratch_close(&s);
}

/* A recorded grouping that is not that of the ids is told, and no kernel follows it into other memory. */
static void a_broken_grouping_is_not_run(void **state)
{
  (void)state;
  enum { PERM = 3 };
  static float w[2 * 1 * 3], x[2 * 1 * 2];
  static int32_t ids[2] = { 2, 0 }, perm[2] = { 1 << 20, -(1 << 20) }, offsets[4] = { 0, 1, 1, 2 };
  static void *const data[] = { w, x, ids, perm, offsets };
  static const int64_t ne[][GR_DIMS] = { { 2, 1, 3, 1 }, { 2, 1, 2, 1 }, { 1, 2, 1, 1 }, { 1, 2, 1, 1 }, { 4, 1, 1, 1 } };
  gr_error e = { 0 };
  gr_graph *g = gr_graph_create();
  gr_tensor *in[5];
  gr_recorder *r = NULL;
  scratch s;
  scratch_open(&s);
  assert_non_null(g);
  for (int i = 0; i < 5; i++) in[i] = gr_graph_leaf(g, GR_LEAF_INPUT, i < 2 ? GR_F32 : GR_I32, ne[i], NULL, NULL, "in");
  gr_tensor *y = gr_matmul_id(g, in[0], in[1], in[2], in[PERM], in[4]);
  assert_ok(gr_graph_status(g, &e), &e);
  gr_op_call c = { .op = GR_OP_matmul_id, .n_in = 5, .n_out = 1 };
  for (int i = 0; i < 5; i++) {
    c.in[i] = (gr_array){ .data = data[i], .dtype = in[i]->dtype };
    memcpy(c.in[i].ne, in[i]->ne, sizeof c.in[i].ne);
    memcpy(c.in[i].nb, in[i]->nb, sizeof c.in[i].nb);
  }
  gr_optest o = only(GR_OP_matmul_id);
  o.replay = scratch_path(&s, "broken.gguf");
  assert_ok(gr_recorder_create(&r, 1 << 20, &e), &e);
  assert_ok(gr_recorder_watch(r, y->node, &c, &e), &e);
  assert_ok(gr_recorder_save(r, o.replay, &e), &e);
  fails(gr_optest_test, &o, "the reference gives NaN");
  assert_int_equal(o.checks, 0);
  gr_recorder_free(r);
  gr_graph_free(g);
  scratch_close(&s);
}

/* ---- files that are none ---- */

static void refused(const char *path, const char *why)
{
  gr_error e = { 0 };
  gr_optest o = { .replay = path };
  gr_status status = gr_optest_test(&o, &e);
  assert_int_equal(status, GR_ERR_FORMAT);
  if (!strstr(e.text, why)) fail_msg("'%s' was expected: %s", why, e.text);
}

static void put_all(gr_gguf_writer *w, uint64_t n_params, int32_t dtype, int32_t layout, int64_t size)
{
  const uint8_t params[8] = { 0 };
  const int32_t dtypes[1] = { dtype }, layouts[1] = { layout };
  const int64_t ne[4] = { size, 1, 1, 1 };
  gr_gguf_put_u64(w, "graft.calls", 1);
  gr_gguf_put_string(w, "call.0.op", "scale");
  gr_gguf_put_string(w, "call.0.node", "made up");
  gr_gguf_put_array(w, "call.0.params", GR_GGUF_U8, params, n_params);
  gr_gguf_put_array(w, "call.0.dtype", GR_GGUF_I32, dtypes, 1);
  gr_gguf_put_array(w, "call.0.layout", GR_GGUF_I32, layouts, 1);
  gr_gguf_put_array(w, "call.0.ne", GR_GGUF_I64, ne, 4);
}

static void what_is_no_recording_is_refused(void **state)
{
  (void)state;
  static const float data[] = { 1, 2, 3 };
  static const struct {
    uint64_t params;
    int32_t dtype, layout;
    int64_t size;
    const char *why;
  } wrong[] = { { 3, GR_F32, 0, 3, "parameters or inputs of another form" },
                { 4, 99, 0, 3, "no type for an input" },
                { 4, GR_F32, 7, 3, "no layout" },
                { 4, GR_F32, 0, 0, "no shape" },
                { 4, GR_F32, 0, 4, "lacks the data" },
                { 4, GR_F16, 0, 3, "lacks the data" } };
  scratch s;
  gr_error e = { 0 };
  scratch_open(&s);
  const char *path = scratch_path(&s, "other.gguf");
  refused(GR_SOURCE_DIR "/tests/golden/llama.gguf", "'graft.calls' is missing");
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    gr_gguf_writer *w;
    assert_ok(gr_gguf_writer_create(&w, &e), &e);
    put_all(w, wrong[i].params, wrong[i].dtype, wrong[i].layout, wrong[i].size);
    gr_gguf_add_data(w, "call.0.0", GR_F32, 1, (int64_t[]){ 3 }, data);
    assert_ok(gr_gguf_writer_save(w, path, &e), &e);
    gr_gguf_writer_free(w);
    refused(path, wrong[i].why);
  }
  /* Nor is anything else written over. */
  gr_recorder *r;
  const char *mine = scratch_path(&s, "mine.txt");
  FILE *f = fopen(mine, "w");
  assert_non_null(f);
  fputs("mine", f);
  fclose(f);
  assert_ok(gr_recorder_create(&r, 1, &e), &e);
  assert_int_equal(gr_recorder_save(r, mine, &e), GR_ERR_USAGE);
  assert_non_null(strstr(e.text, "is no recording"));
  gr_recorder_free(r);
  scratch_close(&s);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(a_recorded_step_is_replayed),
    cmocka_unit_test(what_is_wrong_shows_on_a_recording),
    cmocka_unit_test(a_broken_grouping_is_not_run),
    cmocka_unit_test(what_is_no_recording_is_refused),
  };
  return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
