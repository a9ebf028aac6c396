/* Every op, quick set: gradients in double, every kernel row against its reference; and what neither can show. */
#include "optest.h"

#include <math.h>

#include "base/alloc.h"
#include "base/file.h"
#include "ops/attention.h"
#include "ops/dropout.h"
#include "watched.h"

/* Under ThreadSanitizer only what has threads is run: references and gradients in double have one, and take an hour there. */
#ifdef WATCHED
static void no_row_races(void **state)
{
  (void)state;
  passes(gr_optest_test, &(gr_optest){ .races = true }, 3000);
}
#else
static void every_gradient_is_right(void **state)
{
  (void)state;
  passes(gr_optest_grad, &(gr_optest){ 0 }, 800);
}

static void every_row_agrees_with_its_reference(void **state)
{
  (void)state;
  passes(gr_optest_test, &(gr_optest){ 0 }, 10000);
}

static void other_data_agree_too(void **state)
{
  (void)state;
  gr_optest o = { .seed = 20260419 };
  passes(gr_optest_grad, &o, 800);
}

#endif

static void docs_list_every_op(void **state)
{
  (void)state;
  gr_optest o = { 0 };
  gr_error e = { 0 };
  char *text = run_mode(gr_optest_doc, &o), *file = NULL;
  size_t size;
  assert_ok(gr_file_read(GR_SOURCE_DIR "/docs/ops.md", 1 << 20, &file, &size, &e), &e);
  if (strcmp(text, file) != 0) fail_msg("docs/ops.md is not what `graft ops doc` writes");
  for (int i = 1; i < GR_OP_COUNT; i++) assert_non_null(strstr(file, gr_op_name((gr_op_id)i)));
  gr_free(file);
  free(text);
}

static void support_is_told_for_every_op(void **state)
{
  (void)state;
  gr_optest o = { 0 };
  char *text = run_mode(gr_optest_support, &o);
  assert_int_equal(o.failures, 0);
  for (int i = 1; i < GR_OP_COUNT; i++)
    if (!(gr_op_get((gr_op_id)i)->flags & GR_OP_VIEW)) assert_non_null(strstr(text, gr_op_name((gr_op_id)i)));
  free(text);
}

/* ---- what neither gradients nor kernels can show ---- */

static void views_show_the_right_elements(void **state)
{
  (void)state;
  gr_graph *g = gr_graph_create();
  gr_error e = { 0 };
  assert_non_null(g);
  gr_tensor *x =
      gr_graph_leaf(g, GR_LEAF_INPUT, GR_F32, (const int64_t[]){ 12, 5, 1, 1 }, (const uint8_t[]){ 0, GR_DIM_TOKENS, 0, 0 }, NULL, "x");
  gr_tensor *heads = gr_reshape(g, x, 4, 3, 5, 0), *t = gr_transpose(g, x), *part = gr_slice(g, x, 4, 6);
  gr_tensor *pairs = gr_reshape(g, part, 2, 3, 5, 0);
  assert_ok(gr_graph_status(g, &e), &e);
  assert_ptr_equal(heads->base, x);
  assert_int_equal(heads->dim[2], GR_DIM_TOKENS);
  assert_int_equal(t->dim[0], GR_DIM_TOKENS);
  /* Element (i, h, t) of the heads is element (4 h + i, t) of x; element (t, i) of the transpose is (i, t);
   * element (i, t) of the slice is (4 + i, t), seen in pairs too. */
  for (int64_t k = 0; k < 5; k++)
    for (int64_t i = 0; i < 12; i++) {
      assert_int_equal(heads->offset + i % 4 * heads->nb[0] + i / 4 * heads->nb[1] + k * heads->nb[2], 4 * (12 * k + i));
      assert_int_equal(t->offset + k * t->nb[0] + i * t->nb[1], 4 * (12 * k + i));
      if (i >= 6) continue;
      assert_int_equal(part->offset + i * part->nb[0] + k * part->nb[1], 4 * (12 * k + 4 + i));
      assert_int_equal(pairs->offset + i % 2 * pairs->nb[0] + i / 2 * pairs->nb[1] + k * pairs->nb[2], 4 * (12 * k + 4 + i));
    }
  gr_graph_free(g);
}

static void dropout_masks_are_what_is_stated(void **state)
{
  (void)state;
  const int32_t run[4] = { 42, 0, 7, 0 }, other_step[4] = { 42, 0, 8, 0 };
  enum { N = 1 << 16 };
  uint64_t keys[] = { gr_dropout_key(run, 0), gr_dropout_key(run, 1), gr_dropout_key(other_step, 0) };
  size_t kept[3] = { 0 }, both[2] = { 0 };
  uint32_t threshold = gr_dropout_threshold(0.25f);
  for (uint32_t i = 0; i < N; i++) {
    bool k[3];
    for (int j = 0; j < 3; j++) {
      uint32_t words[4];
      gr_dropout_words(keys[j], 3, (int32_t)(i >> 8), (i & 255) / 4, words);
      k[j] = words[i & 3] >= threshold;
      kept[j] += k[j];
    }
    for (int j = 0; j < 2; j++) both[j] += k[0] && k[j + 1];
  }
  /* Five standard deviations of the binomial; and masks of another adapter or step are independent. */
  for (int j = 0; j < 3; j++) assert_true(fabs((double)kept[j] - 0.75 * N) < 5 * sqrt(N * 0.75 * 0.25));
  for (int j = 0; j < 2; j++) assert_true(fabs((double)both[j] - 0.5625 * N) < 5 * sqrt(N * 0.5625 * 0.4375));
  assert_int_equal(gr_dropout_threshold(0), 0);
  assert_int_equal(gr_dropout_threshold(0.5f), 0x80000000u);
}

/* Benchmarks hold operations over the machine's limit, which no kernel exceeds: what nobody sees is not counted. */
static void attention_costs_what_is_visible(void **state)
{
  (void)state;
  static const struct {
    int64_t n, m;
    int32_t window;
  } shapes[] = { { 5, 5, 0 }, { 1, 7, 0 }, { 3, 8, 0 }, { 8, 8, 3 }, { 2, 9, 4 }, { 4, 4, 100 } };
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    const int64_t n = shapes[s].n, m = shapes[s].m, heads = 3;
    const struct gr_attention_params p = { .scale = 1, .window = shapes[s].window };
    double position[16], segment[16] = { 0 }, pairs = 0;
    for (int64_t i = 0; i < m; i++) position[i] = (double)i;
    gr_op_call c = { .op = GR_OP_attention, .params = &p, .n_in = 7, .n_out = 2 };
    const int64_t sizes[][3] = { { 6, heads, n }, { 6, 1, m }, { 4, 1, m }, { n, 1, 1 }, { n, 1, 1 }, { m, 1, 1 }, { m, 1, 1 } };
    for (int i = 0; i < 7; i++) {
      c.in[i] = (gr_array){ .dtype = GR_F64, .ne = { sizes[i][0], sizes[i][1], sizes[i][2], 1 } };
      gr_strides_contiguous(GR_F64, c.in[i].ne, c.in[i].nb);
    }
    c.in[GR_ATTN_POS_Q].data = position + m - n;
    c.in[GR_ATTN_POS_K].data = position;
    c.in[GR_ATTN_SEG_Q].data = c.in[GR_ATTN_SEG_K].data = segment;
    for (int64_t i = 0; i < n; i++)
      for (int64_t j = 0; j < m; j++) pairs += gr_attention_visible(&c, i, j) ? (double)heads : 0;
    gr_cost forward, backward;
    gr_op_get(GR_OP_attention)->cost(&c, &forward);
    gr_op_get(GR_OP_attention_back)->cost(&c, &backward);
    assert_true(forward.flops == pairs * 2 * (6 + 4));
    assert_true(backward.flops == pairs * 2 * (3 * 6 + 2 * 4));
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
#ifdef WATCHED
    cmocka_unit_test(no_row_races),
#else
    cmocka_unit_test(every_gradient_is_right),
    cmocka_unit_test(every_row_agrees_with_its_reference),
    cmocka_unit_test(other_data_agree_too),
#endif
    cmocka_unit_test(docs_list_every_op),
    cmocka_unit_test(support_is_told_for_every_op),
    cmocka_unit_test(views_show_the_right_elements),
    cmocka_unit_test(dropout_masks_are_what_is_stated),
    cmocka_unit_test(attention_costs_what_is_visible),
  };
  return cmocka_run_group_tests_name("ops", tests, NULL, NULL);
}
