/* The emulated GPU: memory and queue of its own, errors that come up at sync, and every row against the reference, for odd sizes, views
 * and every width of lane groups. The op harness (graft ops test) goes through many more cases; tests/unit/test_emu_machine.cpp holds the
 * kernels that must be caught. */
#include "check.h"
#include "failing_alloc.h"

#include <errno.h>
#include <math.h>

#include "backend/backend.h"
#include "backend/emu/emu.h"
#include "backend/gpu/gpu.h"
#include "base/rng.h"
#include "ops/params.h"
#include "quant/quant.h"

typedef struct fixture {
  gr_backend *b;
  gr_graph *graph;
  uint64_t stream;
} fixture;

static int setup(void **state)
{
  static fixture f;
  gr_error e;
  f = (fixture){ .graph = gr_graph_create(), .stream = 1 };
  *state = &f;
  return gr_backend_open(&f.b, "emu", NULL, &e) == GR_OK && f.graph ? 0 : -1;
}

static int teardown(void **state)
{
  fixture *f = *state;
  for (size_t i = 0; i < f->graph->n_tensors; i++) gr_free(f->graph->tensors[i]->data);
  gr_graph_free(f->graph);
  gr_backend_close(f->b);
  return 0;
}

/* ---- memory and queue ---- */

static void *device_alloc(fixture *f, size_t bytes)
{
  gr_error e = { 0 };
  void *address = NULL;
  assert_ok(f->b->ops->alloc(f->b, bytes, &address, &e), &e);
  return address;
}

static void *device_floats(fixture *f, const float *v, size_t n)
{
  gr_error e = { 0 };
  void *address = device_alloc(f, n * sizeof *v);
  assert_ok(f->b->ops->write(f->b, address, v, n * sizeof *v, &e), &e);
  return address;
}

static gr_array row_of(void *data, int64_t n)
{
  return (gr_array){ .data = data, .dtype = GR_F32, .ne = { n, 1, 1, 1 }, .nb = { 4, 4 * n, 4 * n, 4 * n } };
}

static gr_status run_add(fixture *f, void *y, void *a, void *b, int64_t n, gr_error *e)
{
  gr_op_call c = { .op = GR_OP_add, .n_in = 2, .n_out = 1, .in = { row_of(a, n), row_of(b, n) }, .out = { row_of(y, n) } };
  const gr_kernel_row *row = gr_backend_find(f->b, &c);
  assert_non_null(row);
  return row->run(f->b, &c, e);
}

static void memory_is_out_of_the_hosts_reach(void **state)
{
  fixture *f = *state;
  void *address = device_alloc(f, 100);
  assert_int_equal((uintptr_t)address % 64, 0);
  assert_false(f->b->ops->host_memory);
  int pipes[2];
  assert_int_equal(pipe(pipes), 0);
  errno = 0;
  assert_int_equal(write(pipes[1], address, 1), -1); /* the kernel looks so that we need not die */
  assert_int_equal(errno, EFAULT);
  close(pipes[0]);
  close(pipes[1]);
}

static void work_is_done_in_order(void **state)
{
  fixture *f = *state;
  gr_error e = { 0 };
  float one[3] = { 1, 2, 3 }, two[3] = { 10, 20, 30 }, zero[3] = { 0 }, got[3];
  void *a = device_floats(f, one, 3), *b = device_floats(f, two, 3), *y = device_alloc(f, sizeof got);
  assert_ok(run_add(f, y, a, b, 3, &e), &e);
  assert_ok(f->b->ops->write(f->b, a, zero, sizeof zero, &e), &e); /* after the launch, though that may not have run yet */
  assert_ok(f->b->ops->read(f->b, got, y, sizeof got, &e), &e);
  for (int i = 0; i < 3; i++) assert_true(got[i] == one[i] + two[i]);
  assert_ok(run_add(f, y, y, b, 3, &e), &e); /* over an input */
  assert_ok(f->b->ops->read(f->b, got, y, sizeof got, &e), &e);
  for (int i = 0; i < 3; i++) assert_true(got[i] == one[i] + 2 * two[i]);
  for (int i = 0; i < 1000; i++) assert_ok(run_add(f, a, a, b, 3, &e), &e); /* more than the queue holds */
  assert_ok(f->b->ops->read(f->b, got, a, sizeof got, &e), &e);
  for (int i = 0; i < 3; i++) assert_true(got[i] == 1000 * two[i]);
}

/* Larger than what is staged, and read back from the middle. */
static void large_writes_are_in_order_too(void **state)
{
  fixture *f = *state;
  gr_error e = { 0 };
  enum { N = 70001 };
  float *v = gr_alloc(N * sizeof *v), got;
  for (int i = 0; i < N; i++) v[i] = (float)i;
  void *a = device_floats(f, v, N), *y = device_alloc(f, N * sizeof *v);
  assert_ok(run_add(f, y, a, a, N, &e), &e);
  for (int i = 0; i < N; i++) v[i] = -1;
  assert_ok(f->b->ops->write(f->b, a, v, N * sizeof *v, &e), &e);
  assert_ok(f->b->ops->read(f->b, &got, (float *)y + 70000, sizeof got, &e), &e);
  assert_true(got == 140000);
  gr_free(v);
}

static void errors_are_latched_until_sync(void **state)
{
  fixture *f = *state;
  gr_error e = { 0 };
  float v[4] = { 1, 2, 3, 4 }, got[4] = { 0 };
  void *a = device_floats(f, v, 4), *y = device_alloc(f, sizeof v);
  assert_ok(f->b->ops->write(f->b, y, v, sizeof v, &e), &e);
  assert_ok(run_add(f, y, a, v, 4, &e), &e); /* v is the host's */
  assert_ok(run_add(f, y, a, a, 4, &e), &e); /* well-formed, but after an error nothing is done */
  assert_int_equal(f->b->ops->read(f->b, got, y, sizeof got, &e), GR_ERR_DEVICE);
  assert_int_equal(f->b->ops->sync(f->b, &e), GR_ERR_DEVICE);
  assert_non_null(strstr(e.text, "buffer 1 of kernel add_f32 is not memory of this device"));
  assert_ok(f->b->ops->sync(f->b, &e), &e);
  assert_ok(f->b->ops->read(f->b, got, y, sizeof got, &e), &e);
  for (int i = 0; i < 4; i++) assert_true(got[i] == v[i]);
}

static void expect_error(fixture *f, const char *text)
{
  gr_error e = { 0 };
  assert_int_equal(f->b->ops->sync(f->b, &e), GR_ERR_DEVICE);
  if (!strstr(e.text, text)) fail_msg("'%s' does not say '%s'", e.text, text);
}

static void arrays_that_are_not_there_are_refused(void **state)
{
  fixture *f = *state;
  gr_error e = { 0 };
  float v[8] = { 0 };
  char *a = device_floats(f, v, 8), *y = device_alloc(f, sizeof v);
  assert_ok(run_add(f, y, a + 16, a, 8, &e), &e); /* reaches past the allocation */
  expect_error(f, "buffer 0 of kernel add_f32 is not memory");
  assert_ok(run_add(f, a + 4, a, a, 4, &e), &e);
  expect_error(f, "buffers 0 and 2 of kernel add_f32 overlap");
  f->b->ops->free(f->b, y);
  assert_ok(run_add(f, y, a, a, 8, &e), &e);
  expect_error(f, "buffer 2 of kernel add_f32 is not memory");
  assert_int_equal(f->b->ops->read(f->b, v, y, 4, &e), GR_ERR_DEVICE);
  assert_ok(f->b->ops->write(f->b, v, v, 4, &e), &e);
  expect_error(f, "a write of 4 bytes");
  f->b->ops->free(f->b, NULL);
}

static void fresh_memory_is_nan(void **state)
{
  fixture *f = *state;
  gr_error e = { 0 };
  float got;
  assert_ok(f->b->ops->read(f->b, &got, device_alloc(f, 4), 4, &e), &e);
  assert_true(isnan(got));
}

static void lanes_are_checked(void **state)
{
  fixture *f = *state;
  gr_error e = { 0 };
  assert_ok(gr_emu_set_lanes(f->b, 4, &e), &e);
  assert_int_equal(gr_emu_set_lanes(f->b, 3, &e), GR_ERR_USAGE);
  assert_int_equal(gr_emu_set_lanes(f->b, 128, &e), GR_ERR_USAGE);
  assert_int_equal(gr_emu_set_lanes(f->b, 0, &e), GR_ERR_USAGE);
}

/* One step of everything, with the n-th allocation failing, for all n. */
static void failing_allocations_are_errors(void **state)
{
  (void)state;
  const float v[5] = { 1, 2, 3, 4, 5 };
  for (size_t n = 1;; n++) {
    gr_error e = { 0 };
    gr_backend *b = NULL;
    float got[5] = { 0 };
    void *a = NULL, *y = NULL;
    long live = allocations.live;
    allocations_fail(n, false);
    gr_status s = gr_backend_open(&b, "emu", NULL, &e);
    if (s == GR_OK) s = b->ops->alloc(b, sizeof v, &a, &e);
    if (s == GR_OK) s = b->ops->alloc(b, sizeof v, &y, &e);
    if (s == GR_OK) s = b->ops->write(b, a, v, sizeof v, &e);
    if (s == GR_OK) s = run_add(&(fixture){ .b = b }, y, a, a, 5, &e);
    if (s == GR_OK) s = b->ops->read(b, got, y, sizeof got, &e);
    bool failed = allocations.failed > 0;
    allocations_fail(0, false);
    if (s == GR_OK)
      for (int i = 0; i < 5; i++) assert_true(got[i] == 2 * v[i]);
    gr_backend_close(b);
    assert_int_equal(allocations.live, live);
    if (!failed) {
      assert_int_equal(s, GR_OK);
      assert_true(n > 5);
      return;
    }
    assert_int_equal(s, GR_ERR_MEMORY);
    assert_int_equal(e.status, GR_ERR_MEMORY);
    assert_true(e.text[0]);
  }
}

/* ---- rows against references ---- */

static void fill_blocks(gr_dtype t, unsigned char *p, int64_t blocks, uint64_t stream)
{
  const gr_dtype_info *d = gr_dtype_get(t);
  float y[256];
  for (int64_t i = 0, draw = 0; i < blocks; draw++) { /* random bytes, but for blocks with wild scales */
    for (int j = 0; j < d->block_bytes; j++) p[j] = (unsigned char)gr_random_u64(7, stream, (uint64_t)(draw * 512 + j));
    gr_quant_decoder(t)(p, y, d->block_elems);
    bool tame = true;
    for (int j = 0; j < d->block_elems; j++) tame = tame && isfinite(y[j]) && fabsf(y[j]) < 8;
    if (tame) i++, p += d->block_bytes;
  }
}

static gr_tensor *leaf(fixture *f, gr_dtype t, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
  const int64_t ne[GR_DIMS] = { n0, n1, n2, n3 };
  size_t bytes = gr_row_bytes(t, n0) * (size_t)(n1 * n2 * n3);
  void *data = gr_alloc(bytes);
  assert_non_null(data);
  gr_tensor *x = gr_graph_leaf(f->graph, GR_LEAF_INPUT, t, ne, NULL, data, "x");
  assert_non_null(x);
  int64_t n = n0 * n1 * n2 * n3;
  uint64_t stream = f->stream++;
  if (t == GR_F32)
    for (int64_t i = 0; i < n; i++) ((float *)data)[i] = (float)gr_random_normal(7, stream, (uint64_t)i);
  else if (t != GR_I32) fill_blocks(t, data, n / gr_dtype_get(t)->block_elems, stream);
  return x;
}

static gr_tensor *f32(fixture *f, int64_t n0, int64_t n1, int64_t n2, int64_t n3) { return leaf(f, GR_F32, n0, n1, n2, n3); }

static const gr_tensor *root_of(const gr_tensor *t) { return t->base ? t->base : t; }

static gr_array array_at(const gr_tensor *t, void *root)
{
  gr_array a = { .data = (char *)root + t->offset, .dtype = t->dtype };
  memcpy(a.ne, t->ne, sizeof a.ne);
  memcpy(a.nb, t->nb, sizeof a.nb);
  return a;
}

static size_t bytes_of(const gr_tensor *t)
{
  size_t bytes = 0;
  assert_true(gr_array_extent(t->dtype, t->ne, t->nb, &bytes));
  return bytes;
}

/* The call of t's node, with inputs and outputs in memory of its own: on the device, or host memory that holds NaN. */
static gr_op_call call_of(fixture *f, const gr_tensor *t, bool device)
{
  gr_error e = { 0 };
  const gr_node *n = t->node;
  gr_op_call c = { .op = n->op, .params = n->params, .n_in = n->n_in, .n_out = n->n_out };
  for (int i = 0; i < n->n_in; i++) {
    const gr_tensor *root = root_of(n->in[i]);
    void *data = root->data;
    if (device) {
      data = device_alloc(f, bytes_of(root));
      assert_ok(f->b->ops->write(f->b, data, root->data, bytes_of(root), &e), &e);
    }
    c.in[i] = array_at(n->in[i], data);
  }
  for (int i = 0; i < n->n_out; i++) {
    size_t bytes = bytes_of(n->out[i]);
    void *data = device ? device_alloc(f, bytes) : gr_alloc(bytes);
    if (!device) memset(data, 0xff, bytes);
    c.out[i] = array_at(n->out[i], data);
  }
  return c;
}

/* norm(got - want) / norm(want), infinite when something is not finite. */
static double relative_error(const float *got, const float *want, size_t n)
{
  double difference = 0, norm = 0;
  for (size_t i = 0; i < n; i++) {
    double d = (double)got[i] - (double)want[i];
    difference += d * d;
    norm += (double)want[i] * (double)want[i];
  }
  return norm > 0 && isfinite(difference) ? sqrt(difference / norm) : difference == 0 ? 0 : (double)INFINITY;
}

static const char *covered[512]; /* names of the rows that ran */
static size_t n_covered;
static double worst_error;

static void cover(const char *name)
{
  for (size_t i = 0; i < n_covered; i++)
    if (strcmp(covered[i], name) == 0) return;
  covered[n_covered++] = name;
}

/* Runs t's node on the emulator and compares with the reference. Seen: at most 3.5e-7; a lost term or tile is above 1e-3. */
static void check_lanes(fixture *f, const gr_tensor *t, const uint32_t *lanes, int n_lanes)
{
  gr_error e = { 0 };
  assert_ok(gr_graph_status(f->graph, &e), &e);
  gr_op_call want = call_of(f, t, false);
  gr_op_get(want.op)->reference(&want);
  for (int k = 0; k < n_lanes; k++) {
    gr_op_call c = call_of(f, t, true);
    const gr_kernel_row *row = gr_backend_find(f->b, &c);
    if (!row) fail_msg("no row for %s", gr_op_name(c.op));
    cover(row->name);
    assert_ok(gr_emu_set_lanes(f->b, lanes[k], &e), &e);
    assert_ok(row->run(f->b, &c, &e), &e);
    for (int i = 0; i < c.n_out; i++) {
      size_t bytes = bytes_of(t->node->out[i]);
      float *got = gr_alloc(bytes);
      assert_ok(f->b->ops->read(f->b, got, c.out[i].data, bytes, &e), &e);
      double error = relative_error(got, want.out[i].data, bytes / sizeof *got);
      if (error > worst_error) worst_error = error;
      if (!(error <= 1e-6)) fail_msg("%s, output %d, %u lanes: off by %.3g", row->name, i, lanes[k], error);
      gr_free(got);
      f->b->ops->free(f->b, c.out[i].data);
    }
    for (int i = 0; i < c.n_in; i++) f->b->ops->free(f->b, (char *)c.in[i].data - t->node->in[i]->offset);
  }
  for (int i = 0; i < want.n_out; i++) gr_free(want.out[i].data);
}

static void check_node(fixture *f, const gr_tensor *t) { check_lanes(f, t, &(uint32_t){ 32 }, 1); }

/* For kernels with collectives. */
static void check_all_lanes(fixture *f, const gr_tensor *t) { check_lanes(f, t, (const uint32_t[]){ 32, 4, 64 }, 3); }

/* A view of x with the same elements as x had, stored otherwise: dimensions 0 and 1 swapped. */
static gr_tensor *swapped(fixture *f, int64_t n0, int64_t n1) { return gr_transpose(f->graph, f32(f, n1, n0, 1, 1)); }

static void elementwise_rows(void **state)
{
  fixture *f = *state;
  gr_graph *g = f->graph;
  check_node(f, gr_add(g, f32(f, 1037, 3, 1, 1), f32(f, 1037, 3, 1, 1)));
  check_node(f, gr_add(g, f32(f, 7, 5, 3, 2), f32(f, 7, 1, 3, 1)));
  check_node(f, gr_add(g, f32(f, 6, 4, 6, 4), f32(f, 3, 2, 1, 2))); /* repeats in the middle of a row */
  check_node(f, gr_add(g, swapped(f, 9, 31), f32(f, 9, 1, 1, 1)));
  check_node(f, gr_add(g, f32(f, 1, 1, 1, 1), f32(f, 1, 1, 1, 1)));
  check_node(f, gr_mul(g, f32(f, 300, 9, 2, 1), f32(f, 300, 1, 1, 1)));
  check_node(f, gr_mul(g, f32(f, 5, 9, 2, 3), swapped(f, 5, 9)));
  check_node(f, gr_mul(g, swapped(f, 33, 5), f32(f, 1, 1, 1, 1)));
  check_node(f, gr_scale(g, f32(f, 257, 2, 3, 4), -1.75f));
  check_node(f, gr_scale(g, swapped(f, 65, 12), 0.5f));
  check_node(f, gr_cont(g, swapped(f, 65, 12)));
  check_node(f, gr_cont(g, swapped(f, 1, 300)));
  check_node(f, gr_sigmoid(g, f32(f, 301, 3, 1, 1)));
  check_node(f, gr_tanh(g, swapped(f, 301, 3)));
  check_node(f, gr_sigmoid_back(g, swapped(f, 301, 3), f32(f, 301, 3, 1, 1)));
}

static void repeating_rows(void **state)
{
  fixture *f = *state;
  gr_graph *g = f->graph;
  check_node(f, gr_repeat(g, f32(f, 3, 1, 2, 1), f32(f, 9, 5, 2, 2)));
  check_node(f, gr_repeat(g, f32(f, 70, 1, 1, 1), f32(f, 70, 9, 1, 1)));
  check_node(f, gr_repeat_back(g, f32(f, 9, 5, 2, 2), f32(f, 3, 1, 2, 1)));
  check_node(f, gr_repeat_back(g, swapped(f, 9, 700), f32(f, 9, 1, 1, 1)));
  check_node(f, gr_repeat_back(g, f32(f, 4, 30000, 1, 1), f32(f, 4, 1, 1, 1)));
}

static void norm_rows(void **state)
{
  fixture *f = *state;
  gr_graph *g = f->graph;
  static const int64_t widths[] = { 1, 3, 127, 128, 1037, 16384 };
  for (int i = 0; i < 6; i++) {
    check_all_lanes(f, gr_rms_norm(g, f32(f, widths[i], 3, 2, 1), 1e-5f));
    check_all_lanes(f, gr_rms_norm_mul(g, f32(f, widths[i], 3, 2, 1), f32(f, widths[i], 1, 1, 1), 1e-5f));
    if (i)
      check_all_lanes(f,
                      gr_rms_norm_back(g, f32(f, widths[i], 2, 2, 2), f32(f, widths[i], 2, 2, 2), 1e-5f)); /* of one element: 0, nearly */
  }
  check_all_lanes(f, gr_rms_norm(g, swapped(f, 200, 3), 1e-5f));
  check_all_lanes(f, gr_rms_norm_back(g, swapped(f, 200, 3), swapped(f, 200, 3), 1e-5f));
}

static void rope_rows(void **state)
{
  fixture *f = *state;
  gr_graph *g = f->graph;
  for (int mode = GR_ROPE_NORMAL; mode <= GR_ROPE_NEOX; mode++)
    for (int inverse = 0; inverse < 2; inverse++) {
      check_node(f, gr_rope(g, f32(f, 64, 3, 5, 1), f32(f, 32, 5, 1, 1), f32(f, 32, 5, 1, 1), mode, inverse));
      check_node(f, gr_rope(g, f32(f, 150, 2, 3, 1), f32(f, 25, 3, 1, 1), f32(f, 25, 3, 1, 1), mode, inverse));
      check_node(f, gr_rope(g, gr_transpose(g, f32(f, 3, 24, 4, 1)), f32(f, 12, 4, 1, 1), f32(f, 12, 4, 1, 1), mode, inverse));
    }
}

static void glu_rows(void **state)
{
  fixture *f = *state;
  gr_graph *g = f->graph;
  for (int kind = GR_GLU_SWIGLU; kind <= GR_GLU_SWIGLU_OAI; kind++) {
    gr_tensor *x = f32(f, 515, 3, 1, 1), *u = f32(f, 515, 3, 1, 1);
    for (int i = 0; i < 515 * 3; i++) ((float *)x->data)[i] *= 5, ((float *)u->data)[i] *= 5; /* past the limits of OAI's */
    check_node(f, gr_glu(g, kind, x, u));
    check_node(f, gr_glu(g, kind, swapped(f, 12, 7), swapped(f, 12, 7)));
    check_node(f, gr_glu_back(g, kind, x, u, f32(f, 515, 3, 1, 1)));
    check_node(f, gr_glu_back(g, kind, f32(f, 12, 7, 1, 1), swapped(f, 12, 7), swapped(f, 12, 7)));
  }
}

static const gr_dtype formats[] = {
#define GK_FORMAT(format, dtype) GR_##dtype,
#include "kernels/formats.def"
#undef GK_FORMAT
};
enum { FORMATS = sizeof formats / sizeof *formats };

static gr_tensor *integers(fixture *f, int64_t n0, int64_t n1, const int32_t *v)
{
  gr_tensor *t = leaf(f, GR_I32, n0, n1, 1, 1);
  memcpy(t->data, v, (size_t)(n0 * n1) * sizeof *v);
  return t;
}

/* Rows by id, padding and repeats among them; dropout by key. */
static void gathered_rows(void **state)
{
  fixture *f = *state;
  gr_graph *g = f->graph;
  gr_tensor *ids = integers(f, 7, 1, (const int32_t[]){ 3, 0, -1, 3, 8, 9, 2147483647 });
  gr_tensor *two = integers(f, 2, 3, (const int32_t[]){ 1, 1, 0, 4, 2, -1 });
  for (int i = 0; i < FORMATS; i++) {
    int64_t block = gr_dtype_get(formats[i])->block_elems;
    check_node(f, gr_get_rows(g, leaf(f, formats[i], block == 1 ? 77 : 3 * block, 9, 1, 1), ids));
    check_node(f, gr_get_rows(g, leaf(f, formats[i], block == 1 ? 5 : block, 5, 3, 1), two));
  }
  check_node(f, gr_get_rows_back(g, swapped(f, 77, 7), ids, f32(f, 77, 9, 1, 1)));
  check_node(f, gr_get_rows_back(g, f32(f, 130, 2, 3, 1), two, f32(f, 130, 5, 3, 1)));
  gr_tensor *keys = integers(f, 2, 3, (const int32_t[]){ 3, 0, 3, 1, -7, 2 });
  gr_tensor *run = integers(f, 4, 1, (const int32_t[]){ 42, -1, 17, 0 });
  check_node(f, gr_dropout(g, f32(f, 515, 3, 1, 1), keys, run, 0.3f, 5));
  check_node(f, gr_dropout(g, swapped(f, 66, 3), keys, run, 0.5f, 0));
}

/* Both layouts of b: dense along the sum, and across it. */
static void product_rows(void **state)
{
  fixture *f = *state;
  gr_graph *g = f->graph;
  for (int i = 0; i < FORMATS; i++) {
    gr_dtype t = formats[i];
    int64_t block = gr_dtype_get(t)->block_elems, row = block == 1 ? 77 : block;
    check_node(f, gr_matmul(g, leaf(f, t, row, 37, 1, 1), f32(f, row, 5, 1, 1)));
    check_node(f, gr_matmul(g, leaf(f, t, 2 * row, 3, 1, 1), swapped(f, 2 * row, 33)));
    check_node(f, gr_matmul_add(g, swapped(f, 37, 5), leaf(f, t, row, 37, 1, 1), f32(f, row, 5, 1, 1)));
    check_node(f, gr_out_prod(g, leaf(f, t, row, 37, 1, 1), f32(f, 5, 37, 1, 1)));
    check_node(f, gr_out_prod(g, leaf(f, t, 2 * row, 3, 1, 1), swapped(f, 33, 3)));
    check_node(f, gr_out_prod_add(g, f32(f, row, 5, 1, 1), leaf(f, t, row, 37, 1, 1), swapped(f, 5, 37)));
  }
  check_node(f, gr_matmul(g, f32(f, 1, 1, 1, 1), f32(f, 1, 1, 1, 1)));
  check_node(f, gr_matmul(g, f32(f, 5000, 2, 1, 1), f32(f, 5000, 2, 1, 1))); /* a long sum */
}

/* A packed weight gives the bits that the same weight decoded to F32 gives. */
static void packed_products_equal_decoded_ones(void **state)
{
  fixture *f = *state;
  gr_error e = { 0 };
  for (int i = 0; i < FORMATS; i++) {
    gr_tensor *w = leaf(f, formats[i], 512, 11, 1, 1), *d = f32(f, 512, 11, 1, 1), *x = f32(f, 512, 3, 1, 1), *dy = swapped(f, 3, 11);
    gr_quant_decoder(formats[i])(w->data, d->data, 512 * 11);
    for (int op = 0; op < 2; op++) {
      gr_tensor *y[2] = { op ? gr_out_prod(f->graph, w, dy) : gr_matmul(f->graph, w, x),
                          op ? gr_out_prod(f->graph, d, dy) : gr_matmul(f->graph, d, x) };
      float got[2][512 * 3];
      size_t bytes = bytes_of(y[0]);
      for (int k = 0; k < 2; k++) {
        gr_op_call c = call_of(f, y[k], true);
        assert_ok(gr_backend_find(f->b, &c)->run(f->b, &c, &e), &e);
        assert_ok(f->b->ops->read(f->b, got[k], c.out[0].data, bytes, &e), &e);
      }
      assert_memory_equal(got[0], got[1], bytes);
    }
  }
}

/* The terms of an element are added in an order of its own: a token's result is the same alone and among others. */
static void products_do_not_depend_on_other_tokens(void **state)
{
  fixture *f = *state;
  gr_error e = { 0 };
  enum { K = 256, M = 40, N = 50 };
  gr_tensor *w = leaf(f, GR_Q4_K, K, M, 1, 1), *x = f32(f, K, N, 1, 1), *one = f32(f, K, 1, 1, 1);
  float all[M * N], alone[M];
  gr_op_call c = call_of(f, gr_matmul(f->graph, w, x), true);
  assert_ok(gr_backend_find(f->b, &c)->run(f->b, &c, &e), &e);
  assert_ok(f->b->ops->read(f->b, all, c.out[0].data, sizeof all, &e), &e);
  for (int t = 0; t < N; t += 7) {
    memcpy(one->data, (float *)x->data + t * K, K * sizeof(float));
    c = call_of(f, gr_matmul(f->graph, w, one), true);
    assert_ok(gr_backend_find(f->b, &c)->run(f->b, &c, &e), &e);
    assert_ok(f->b->ops->read(f->b, alone, c.out[0].data, sizeof alone, &e), &e);
    assert_memory_equal(alone, all + t * M, sizeof alone);
  }
}

/* What a row cannot take, its predicate refuses, so that the call goes to another backend. */
static void predicates_refuse(void **state)
{
  fixture *f = *state;
  float v[4];
  gr_op_call c = { .op = GR_OP_add, .n_in = 2, .n_out = 1, .in = { row_of(v, 4), row_of(v, 4) }, .out = { row_of(v, 4) } };
  assert_non_null(gr_backend_find(f->b, &c));
  c.in[0].nb[0] = 6; /* not a whole number of floats */
  assert_null(gr_backend_find(f->b, &c));
  c.in[0] = row_of(v, 4);
  c.in[1].dtype = GR_F64;
  assert_null(gr_backend_find(f->b, &c));
  c.in[1].dtype = GR_F32;
  for (int d = 1; d < 3; d++) c.in[0].ne[d] = c.in[1].ne[d] = c.out[0].ne[d] = 1 << 20; /* 2^40 rows */
  assert_null(gr_backend_find(f->b, &c));
  c = (gr_op_call){ .op = GR_OP_matmul, .n_in = 2, .n_out = 1, .in = { row_of(v, 4), row_of(v, 4) }, .out = { row_of(v, 1) } };
  assert_non_null(gr_backend_find(f->b, &c));
  c.in[0].ne[2] = 2; /* a batch */
  assert_null(gr_backend_find(f->b, &c));
  c.in[0].ne[2] = 1;
  c.in[0].dtype = GR_I32;
  assert_null(gr_backend_find(f->b, &c));
}

static bool was_reached(const gr_kernel_row *r)
{
  for (size_t i = 0; i < n_covered; i++)
    if (strcmp(covered[i], r->name) == 0) return true;
  return false;
}

/* Of each op that is tried here every row; `graft ops test` holds the other ops' rows to being reached by their cases. */
static void every_row_was_reached(void **state)
{
  fixture *f = *state;
  const gr_kernel_row *rows = f->b->ops->rows;
  for (const gr_kernel_row *r = rows; r->op != GR_OP_NONE; r++) {
    bool tried = false;
    for (const gr_kernel_row *other = rows; other->op != GR_OP_NONE; other++) tried = tried || (other->op == r->op && was_reached(other));
    if (tried && !was_reached(r)) fail_msg("no case here reaches %s", r->name);
  }
  assert_true(n_covered >= 97);
  print_message("# %zu rows, worst error %.2g\n", n_covered, worst_error);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
  const struct CMUnitTest tests[] = {
    TEST(memory_is_out_of_the_hosts_reach),
    TEST(work_is_done_in_order),
    TEST(large_writes_are_in_order_too),
    TEST(errors_are_latched_until_sync),
    TEST(arrays_that_are_not_there_are_refused),
    TEST(fresh_memory_is_nan),
    TEST(lanes_are_checked),
    cmocka_unit_test(failing_allocations_are_errors),
    TEST(elementwise_rows),
    TEST(repeating_rows),
    TEST(norm_rows),
    TEST(rope_rows),
    TEST(glu_rows),
    TEST(gathered_rows),
    TEST(product_rows),
    TEST(packed_products_equal_decoded_ones),
    TEST(products_do_not_depend_on_other_tokens),
    TEST(predicates_refuse),
    TEST(every_row_was_reached),
  };
  return cmocka_run_group_tests_name("emu", tests, NULL, NULL);
}
