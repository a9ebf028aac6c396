/* The adjoint of repeat: y has the shape of `like` (of which only the shape is read), and y[j] is the sum of x[i] over all i with
 * i mod n == j, n being like's size along each dimension (B10).
 * Gradient: dx = dy repeated. */
#include "base/mutant.h"
#include "ops/cases.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  GR_TRY(gr_infer_need_f32(c, "repeat_back", 1, e));
  if (!gr_tensor_repeats(c->in[1], c->in[0])) {
    char a[160], b[160];
    return gr_fail(e, GR_ERR_MISMATCH, "repeat_back: %s is not a repetition of %s", gr_tensor_describe(c->in[0], a, sizeof a),
                   gr_tensor_describe(c->in[1], b, sizeof b));
  }
  gr_infer_like(&c->out[0], c->in[1]);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  (void)e;
  if (b->wants[0]) b->din[0] = gr_repeat(b->graph, b->dout[0], b->node->in[0]);
  return GR_OK;
}

/* The sum over every repeat of element (i0, r) of y. */
static double sum_repeats(const gr_array *x, const gr_array *y, int64_t i0, const gr_row *r)
{
  double sum = 0;
  for (int64_t i3 = r->i3; i3 < x->ne[3]; i3 += y->ne[3])
    for (int64_t i2 = r->i2; i2 < x->ne[2]; i2 += y->ne[2])
      for (int64_t i1 = r->i1; i1 < x->ne[1]; i1 += y->ne[1])
        for (int64_t i = i0; i < (GR_MUTANT(rule_repeat_first) ? i0 + 1 : x->ne[0]); i += y->ne[0]) sum += gr_array_get(x, i, i1, i2, i3);
  return sum;
}

static void reference(const gr_op_call *c)
{
  const gr_array *x = &c->in[0], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y))
    for (int64_t i = 0; i < y->ne[0]; i++) gr_row_set(y, i, &r, sum_repeats(x, y, i, &r));
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double n = (double)gr_array_count(&c->in[0]);
  *k = (gr_cost){ .flops = n, .bytes_read = 4 * n, .bytes_written = 4 * (double)gr_array_count(&c->out[0]) };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 3.9e-8, .defect = 2e-4 };
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 5, 4, 3 }, .grad = true }, { .ne = { 5, 1, 3 } } } });
  gr_case_add(
      s, &(gr_case){ .name = "i mod n along every dimension", .in = { { .ne = { 6, 4, 9, 2 }, .grad = true }, { .ne = { 3, 2, 3, 1 } } } });
  gr_case_add(s, &(gr_case){ .name = "to one row", .in = { { .ne = { 67, 130 }, .dim = { 0, GR_DIM_TOKENS } }, { .ne = { 67 } } } });
  gr_case_add(s,
              &(gr_case){ .name = "to one number for each token",
                          .in = { { .ne = { 1030, 7 }, .dim = { 0, GR_DIM_TOKENS } }, { .ne = { 1, 7 }, .dim = { 0, GR_DIM_TOKENS } } } });
  gr_case_add(s, &(gr_case){ .name = "to one number", .in = { { .ne = { 33, 9 }, .grad = true }, { .ne = { 1 } } } });
  gr_case_add(s, &(gr_case){ .name = "nothing repeated", .in = { { .ne = { 5, 3 }, .grad = true }, { .ne = { 5, 3 } } } });
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++)
    gr_case_add(s, &(gr_case){ .in = { { .ne = { 10, 9, 2 }, .layout = (gr_layout)a, .grad = true }, { .ne = { 5, 3 } } } });
  gr_case_add(s, &(gr_case){ .name = "large", .in = { { .ne = { 8, 300 }, .fill = gr_fill_normal(1.5e5) }, { .ne = { 8 } } } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF, .in = { { .ne = { 2048, 512 } }, { .ne = { 2048 } } } });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 12 } }, { .ne = { 5 } } }, .refuse = GR_ERR_MISMATCH, .says = "not a repetition" });
}

gr_tensor *gr_repeat_back(gr_graph *g, gr_tensor *x, gr_tensor *like)
{
  return gr_graph_node(g, GR_OP_repeat_back, (gr_tensor *[]){ x, like }, 2, NULL);
}

const gr_op gr_op_repeat_back = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .shapes_in = 2,
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
