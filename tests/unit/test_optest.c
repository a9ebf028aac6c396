/* The harness itself: what is broken on purpose must come out red, and what is right must not. */
#include "optest.h"

#include <math.h>

#include "backend/backends.h"
#include "base/alloc.h"
#include "base/half.h"
#include "ops/cases.h"
#include "ops/params.h"
#include "ops/reference.h"

/* ---- a gradient that is wrong comes out red ---- */

/* Forgets the other factor. */
static gr_status lazy_mul_backward(gr_backward *b, gr_error *e)
{
  (void)e;
  for (int i = 0; i < 2; i++)
    if (b->wants[i])
      b->din[i] = gr_tensor_same_shape(b->node->in[i], b->dout[0]) ? b->dout[0] : gr_repeat_back(b->graph, b->dout[0], b->node->in[i]);
  return GR_OK;
}

static gr_status no_backward(gr_backward *b, gr_error *e)
{
  (void)b;
  (void)e;
  return GR_OK;
}

/* Right when both are wanted, wrong when only the second is. */
static gr_status moody_backward(gr_backward *b, gr_error *e)
{
  if (b->wants[1] && !b->wants[0]) return lazy_mul_backward(b, e);
  return gr_op_get(GR_OP_mul)->backward(b, e);
}

static void grad_catches(gr_op_id id, const gr_op *broken, const char *why)
{
  gr_optest o = only(id);
  gr_optest_swap swap = { id, broken };
  o.swap = &swap;
  fails(gr_optest_grad, &o, why);
}

static void wrong_gradients_are_caught(void **state)
{
  (void)state;
  gr_op mul = *gr_op_get(GR_OP_mul);
  mul.backward = lazy_mul_backward;
  grad_catches(GR_OP_mul, &mul, "gradient to input 0 is off");
  mul.backward = no_backward;
  grad_catches(GR_OP_mul, &mul, "backward gave nothing");
  mul.backward = moody_backward;
  grad_catches(GR_OP_mul, &mul, "gives other gradients");
}

static void add_reference_with_a_sign(const gr_op_call *c)
{
  const gr_array *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y))
    for (int64_t i = 0; i < y->ne[0]; i++) gr_row_set(y, i, &r, gr_row_get(a, i, &r) - gr_row_get_mod(b, i, &r));
}

static void add_reference_with_a_nan(const gr_op_call *c)
{
  gr_op_get(GR_OP_add)->reference(c);
  if (gr_array_count(&c->out[0]) > 0) gr_array_set(&c->out[0], 0, 0, 0, 0, (double)NAN);
}

/* |b| has a kink at 0, where one of the cases' elements will lie: b is counted from 0. */
static void add_reference_with_a_kink(const gr_op_call *c)
{
  const gr_array *a = &c->in[0], *b = &c->in[1], *y = &c->out[0];
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y))
    for (int64_t i = 0; i < y->ne[0]; i++) gr_row_set(y, i, &r, gr_row_get(a, i, &r) + fabs(gr_row_get_mod(b, i, &r)));
}

static void flat_reference(const gr_op_call *c) { gr_reference_fill(&c->out[0], 1); }

static void wrong_references_are_caught(void **state)
{
  (void)state;
  gr_op add = *gr_op_get(GR_OP_add);
  add.reference = add_reference_with_a_sign;
  grad_catches(GR_OP_add, &add, "gradient to input 1 is off");
  add.reference = add_reference_with_a_nan;
  grad_catches(GR_OP_add, &add, "NaN on the way to input 0");
  add.reference = add_reference_with_a_kink;
  grad_catches(GR_OP_add, &add, "input 1");
  add.reference = flat_reference;
  grad_catches(GR_OP_add, &add, "0 everywhere: the case tests nothing");
}

static void kink_case(struct gr_case_sink *s)
{
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 3 }, .grad = true }, { .ne = { 3 }, .fill = GR_FILL_LIST(1, 2, 5e-4), .grad = true } } });
}

static void kinks_are_told_apart(void **state)
{
  (void)state;
  gr_op add = *gr_op_get(GR_OP_add);
  add.reference = add_reference_with_a_kink;
  add.cases = kink_case;
  grad_catches(GR_OP_add, &add, "sits on a kink");
}

static void wrong_saves_are_caught(void **state)
{
  (void)state;
  gr_op mul = *gr_op_get(GR_OP_mul), rms = *gr_op_get(GR_OP_rms_norm), attention = *gr_op_get(GR_OP_attention);
  mul.saves_in = 1;
  grad_catches(GR_OP_mul, &mul, "backward reads what `saves` does not list");
  attention.saves_out = 1;
  grad_catches(GR_OP_attention, &attention, "backward reads what `saves` does not list");
  rms.saves_out = 1;
  grad_catches(GR_OP_rms_norm, &rms, "`saves` lists what no case's backward reads");
}

static void refuse_nothing(struct gr_case_sink *s)
{
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 3 } }, { .ne = { 3 } } }, .refuse = GR_ERR_MISMATCH, .says = "" });
}

static void refuse_without_a_word(struct gr_case_sink *s)
{
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 3 } }, { .ne = { 2 } } }, .refuse = GR_ERR_MISMATCH, .says = "a unicorn" });
}

static void refusals_are_checked(void **state)
{
  (void)state;
  gr_op add = *gr_op_get(GR_OP_add);
  add.cases = refuse_nothing;
  grad_catches(GR_OP_add, &add, "must be refused");
  add.cases = refuse_without_a_word;
  grad_catches(GR_OP_add, &add, "must say 'a unicorn'");
}

static void nothing_checked_is_a_failure(void **state)
{
  (void)state;
  gr_optest o = only(GR_OP_NONE);
  fails(gr_optest_grad, &o, "nothing was checked");
  gr_optest p = only(GR_OP_NONE);
  fails(gr_optest_test, &p, "nothing was checked");
}

/* ---- a kernel that is wrong comes out red: the reference with one defect, as a backend of its own ---- */

static void reference(const gr_op_call *c) { gr_op_get(c->op)->reference(c); }

static gr_status run_right(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  (void)b;
  (void)e;
  reference(c);
  return GR_OK;
}

static gr_status run_error(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  (void)b;
  (void)c;
  return gr_fail(e, GR_ERR_UNSUPPORTED, "not today");
}

/* The last column of every row is left as it was. */
static gr_status run_tail(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  (void)b;
  (void)e;
  gr_op_call less = *c;
  less.out[0].ne[0]--;
  less.in[0].ne[0]--;
  reference(&less);
  return GR_OK;
}

static gr_status run_past_end(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  memset((char *)c->out[0].data + c->out[0].ne[3] * c->out[0].nb[3], 0, 4);
  return GR_OK;
}

static gr_status run_before_start(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  memset((char *)c->out[0].data - 4, 0, 4);
  return GR_OK;
}

/* Writes the rows that lie between the live ones and the capacity of the case (67, 9 tokens). */
static gr_status run_all_rows(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  if (c->out[0].ne[0] == 67 && c->out[0].ne[1] < 9) memset(gr_array_at(&c->out[0], 0, c->out[0].ne[1], 0, 0), 0, 4);
  return GR_OK;
}

static gr_status run_by_threads(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  if (gr_pool_threads(c->pool) == 7 && gr_array_count(&c->out[0])) *(float *)c->out[0].data *= 1 + 0x1p-20f;
  return GR_OK;
}

static gr_status run_changing_input(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  if (gr_array_count(&c->in[1])) *(float *)c->in[1].data += 1;
  return GR_OK;
}

static gr_status run_raw_scratch(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  if (gr_array_count(&c->out[0])) *(float *)c->out[0].data += *(float *)c->scratch;
  return GR_OK;
}

static gr_status run_past_scratch(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  ((char *)c->scratch)[64] = 1;
  return GR_OK;
}

static size_t scratch_of_64(const gr_op_call *c, int threads)
{
  (void)c;
  (void)threads;
  return 64;
}

/* Takes a transposed b for a dense one. */
static gr_status run_swapped_strides(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  gr_op_call wrong = *c;
  gr_strides_contiguous(GR_F32, wrong.in[1].ne, wrong.in[1].nb);
  return run_right(b, &wrong, e);
}

/* Loses what lies beyond the last whole tile of 8 of the sum. */
static gr_status run_whole_tiles(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  gr_op_call less = *c;
  for (int i = 0; i < 2; i++)
    if (less.in[i].ne[1] > 8) less.in[i].ne[1] -= less.in[i].ne[1] % 8;
  return run_right(b, &less, e);
}

/* Operands rounded to half, or to bfloat16, on their way. */
static gr_status run_staged(const gr_op_call *c, float (*round)(float), gr_error *e)
{
  gr_op_call staged = *c;
  gr_status status = GR_OK;
  for (int i = 0; i < c->n_in; i++) {
    gr_array *a = &staged.in[i];
    if (a->dtype != GR_F32 || !a->data) continue;
    gr_strides_contiguous(GR_F32, a->ne, a->nb);
    a->data = gr_alloc((size_t)gr_array_count(a) * sizeof(float));
    if (!a->data) status = gr_fail(e, GR_ERR_MEMORY, "out of memory");
    for (gr_row r = { 0 }; a->data && gr_row_valid(&r, a); gr_row_next(&r, a))
      for (int64_t k = 0; k < a->ne[0]; k++) gr_row_set(a, k, &r, (double)round((float)gr_row_get(&c->in[i], k, &r)));
  }
  if (status == GR_OK) reference(&staged);
  for (int i = 0; i < c->n_in; i++)
    if (staged.in[i].data != c->in[i].data) gr_free(staged.in[i].data);
  return status;
}

static float round_half(float x) { return gr_f16_to_f32(gr_f32_to_f16(x)); }
static float round_bfloat(float x) { return gr_bf16_to_f32(gr_f32_to_bf16(x)); }

static gr_status run_half(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  (void)b;
  return run_staged(c, round_half, e);
}

static gr_status run_bfloat(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  (void)b;
  return run_staged(c, round_bfloat, e);
}

/* Rounds only where weights are packed: their sums differ from those of the same weights decoded. */
static gr_status run_packed_otherwise(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  if (gr_dtype_is_quant(c->in[0].dtype)) *(float *)c->out[0].data *= 1 + 0x1p-22f;
  return GR_OK;
}

static bool never(const gr_op_call *c)
{
  (void)c;
  return false;
}

/* ---- backends of one row ---- */

typedef struct broken_backend {
  gr_backend head;
  gr_backend_ops ops;
  gr_kernel_row rows[2];
} broken_backend;

static void broken_close(gr_backend *b) { gr_free(b); }

/* What open will be handed: tests run one after another. */
static gr_kernel_row broken_row;

static gr_status broken_open(gr_backend **out, gr_pool *pool, gr_error *e)
{
  broken_backend *b = gr_calloc(1, sizeof *b);
  if (!b) return gr_fail_memory(e, sizeof *b);
  b->rows[0] = broken_row;
  b->rows[1].op = GR_OP_NONE;
  b->ops = (gr_backend_ops){
    .name = "broken", .rows = b->rows, .host_memory = true, .alloc = gr_host_alloc, .free = gr_host_free, .close = broken_close
  };
  b->head = (gr_backend){ .ops = &b->ops, .pool = pool };
  *out = &b->head;
  return GR_OK;
}

static const gr_optest_target broken_target = { "broken", broken_open };

static void test_catches(gr_kernel_row row, const char *why)
{
  gr_optest o = only(row.op);
  o.targets = &broken_target;
  o.n_targets = 1;
  o.failures_max = 20;
  row.name = "row__broken";
  broken_row = row;
  fails(gr_optest_test, &o, why);
}

static void the_right_row_passes(void **state)
{
  (void)state;
  gr_optest o = only(GR_OP_add);
  o.targets = &broken_target;
  o.n_targets = 1;
  broken_row = (gr_kernel_row){ .op = GR_OP_add, .name = "right", .run = run_right, .scratch = scratch_of_64 };
  passes(gr_optest_test, &o, 40);
  o.races = true;
  broken_row.run = run_by_threads;
  fails(gr_optest_test, &o, "7 threads give other bits than 2");
}

static void wrong_kernels_are_caught(void **state)
{
  (void)state;
  test_catches((gr_kernel_row){ .op = GR_OP_scale, .run = run_tail }, "NaN");
  test_catches((gr_kernel_row){ .op = GR_OP_matmul, .run = run_error }, "returned an error: not today");
  test_catches((gr_kernel_row){ .op = GR_OP_out_prod, .run = run_swapped_strides }, "is off");
  test_catches((gr_kernel_row){ .op = GR_OP_out_prod, .run = run_whole_tiles }, "is off");
  test_catches((gr_kernel_row){ .op = GR_OP_matmul, .run = run_packed_otherwise }, "decoded to F32");
  test_catches((gr_kernel_row){ .op = GR_OP_add, .run = run_right, .admits = never }, "no case reaches this row");
}

static void wrong_memory_is_caught(void **state)
{
  (void)state;
  test_catches((gr_kernel_row){ .op = GR_OP_add, .run = run_past_end }, "wrote outside");
  test_catches((gr_kernel_row){ .op = GR_OP_add, .run = run_before_start }, "wrote outside");
  test_catches((gr_kernel_row){ .op = GR_OP_add, .run = run_all_rows }, "at a smaller live size");
  test_catches((gr_kernel_row){ .op = GR_OP_add, .run = run_past_scratch, .scratch = scratch_of_64 }, "wrote outside");
  test_catches((gr_kernel_row){ .op = GR_OP_add, .run = run_raw_scratch, .scratch = scratch_of_64 }, "NaN");
  test_catches((gr_kernel_row){ .op = GR_OP_add, .run = run_changing_input }, "changed input 1");
  test_catches((gr_kernel_row){ .op = GR_OP_add, .run = run_by_threads }, "7 threads give other bits");
}

/* Rows are slices, the second a million times smaller: an error that the whole cannot show. */
static int64_t slice_rows(const gr_op_call *c, int out, const int64_t at[GR_DIMS])
{
  (void)c;
  (void)out;
  return at[1] - 1;
}

static void uneven_case(struct gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 1e-9, .defect = 2e-4 };
  s->slice = slice_rows;
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 2, 4 }, .fill = GR_FILL_LIST(0, 0, 1e6, 1e6, 1, 1, 0, 0) },
                                     { .ne = { 1 }, .fill = GR_FILL_LIST(0) } } });
}

static gr_status run_wrong_slice(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  *(float *)gr_array_at(&c->out[0], 1, 2, 0, 0) += 1e-3f;
  return GR_OK;
}

static void a_wrong_slice_is_caught(void **state)
{
  (void)state;
  gr_op add = *gr_op_get(GR_OP_add);
  gr_optest_swap swap = { GR_OP_add, &add };
  gr_optest o = only(GR_OP_add);
  add.cases = uneven_case;
  o.swap = &swap;
  o.targets = &broken_target;
  o.n_targets = 1;
  broken_row = (gr_kernel_row){ .op = GR_OP_add, .name = "right", .run = run_right };
  passes(gr_optest_test, &o, 5);
  broken_row.run = run_wrong_slice;
  fails(gr_optest_test, &o, "slice 1 of output 0 is off");
}

/* Off by 4.8e-7, of 1e-6 that are allowed and 3.9e-8 that were seen. */
static gr_status run_grown(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  for (gr_row r = { 0 }; gr_row_valid(&r, &c->out[0]); gr_row_next(&r, &c->out[0]))
    for (int64_t i = 0; i < c->out[0].ne[0]; i++) gr_row_set(&c->out[0], i, &r, gr_row_get(&c->out[0], i, &r) * (1 + 0x1p-21));
  return GR_OK;
}

static gr_status run_grown_slice(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  *(float *)gr_array_at(&c->out[0], 1, 2, 0, 0) *= 1 + 0x1p-21f;
  return GR_OK;
}

static void an_error_that_grew_is_caught(void **state)
{
  (void)state;
  test_catches((gr_kernel_row){ .op = GR_OP_add, .run = run_grown }, "allowed, but the tolerance's `seen` says that 3.9e-08");
  gr_optest o = only(GR_OP_add);
  o.targets = &broken_target;
  o.n_targets = 1;
  o.seed = GR_OPTEST_SEED + 1; /* of which nobody said what was seen */
  passes(gr_optest_test, &o, 40);
  gr_op add = *gr_op_get(GR_OP_add);
  gr_optest_swap swap = { GR_OP_add, &add };
  add.cases = uneven_case;
  o.swap = &swap;
  o.seed = GR_OPTEST_SEED;
  broken_row.run = run_grown_slice;
  fails(gr_optest_test, &o, "slice 1 has a norm error of 3.37e-07: allowed");
}

/* A slice whose truth is 0 stays exactly 0 even where a floor forgives the whole. */
static void floor_case(struct gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-6, .max = 1e-5, .seen = 1e-9, .defect = 2e-4, .floor = 1 };
  s->slice = slice_rows;
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 2, 4 }, .fill = GR_FILL_LIST(0, 0, 1, 1, 0, 0, 2, 2) },
                                     { .ne = { 1 }, .fill = GR_FILL_LIST(0) } } });
}

static gr_status run_dust(gr_backend *b, const gr_op_call *c, gr_error *e)
{
  run_right(b, c, e);
  *(float *)gr_array_at(&c->out[0], 1, 2, 0, 0) += 1e-30f;
  return GR_OK;
}

static void a_slice_of_zeros_must_be_zero(void **state)
{
  (void)state;
  gr_op add = *gr_op_get(GR_OP_add);
  gr_optest_swap swap = { GR_OP_add, &add };
  gr_optest o = only(GR_OP_add);
  add.cases = floor_case;
  o.swap = &swap;
  o.targets = &broken_target;
  o.n_targets = 1;
  broken_row = (gr_kernel_row){ .op = GR_OP_add, .name = "dust", .run = run_dust };
  fails(gr_optest_test, &o, "slice 1 of output 0 is off");
}

/* B4: gradients of 1.5e5 do not survive half, and no tolerance lets half or bfloat16 pass for float. */
static void staging_in_half_is_caught(void **state)
{
  (void)state;
  static const gr_op_id ops[] = {
    GR_OP_matmul,         GR_OP_out_prod,     GR_OP_matmul_add,  GR_OP_out_prod_add,  GR_OP_rms_norm,       GR_OP_rms_norm_back,
    GR_OP_rope,           GR_OP_glu,          GR_OP_glu_back,    GR_OP_attention,     GR_OP_attention_back, GR_OP_head_loss,
    GR_OP_head_loss_back, GR_OP_add,          GR_OP_mul,         GR_OP_scale,         GR_OP_get_rows_back,  GR_OP_repeat,
    GR_OP_repeat_back,    GR_OP_cont,         GR_OP_dropout,     GR_OP_route,         GR_OP_route_back,     GR_OP_matmul_id,
    GR_OP_matmul_id_back, GR_OP_out_prod_id,  GR_OP_combine,     GR_OP_combine_back,  GR_OP_slice_back,     GR_OP_sigmoid,
    GR_OP_sigmoid_back,   GR_OP_head_loss_dh, GR_OP_matmul_lora, GR_OP_norm_back_add, GR_OP_matmul_id_lora, GR_OP_matmul_id_lora_back
  };
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
    test_catches((gr_kernel_row){ .op = ops[i], .run = run_half }, "is off");
    test_catches((gr_kernel_row){ .op = ops[i], .run = run_bfloat }, "is off");
  }
}

/* A reference that is its own adjoint can flip its sign unseen by gradients; kernels see it. */
static void minus_scale(const gr_op_call *c)
{
  const gr_array *x = &c->in[0], *y = &c->out[0];
  const struct gr_scale_params *p = c->params;
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y))
    for (int64_t i = 0; i < y->ne[0]; i++) gr_row_set(y, i, &r, -(double)p->s * gr_row_get(x, i, &r));
}

static void wide_case(struct gr_case_sink *s)
{
  s->tolerance = (gr_tolerance){ .norm = 1e-3, .max = 1e-2, .seen = 1e-7, .defect = 2e-4 };
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 3 } }, { .ne = { 3 } } } });
}

/* C4: what lets a real defect pass is no tolerance, whatever comes out. */
static void tolerances_stand_between(void **state)
{
  (void)state;
  gr_op add = *gr_op_get(GR_OP_add);
  gr_optest_swap swap = { GR_OP_add, &add };
  gr_optest o = only(GR_OP_add);
  add.cases = wide_case;
  o.swap = &swap;
  o.backend = "cpu";
  fails(gr_optest_test, &o, "is not between");
}

static void kernels_hold_references_to_account(void **state)
{
  (void)state;
  gr_op scale = *gr_op_get(GR_OP_scale);
  gr_optest_swap swap = { GR_OP_scale, &scale };
  gr_optest o = only(GR_OP_scale);
  scale.reference = minus_scale;
  o.swap = &swap;
  o.backend = "cpu";
  fails(gr_optest_test, &o, "is off");
}

/* ---- the command ---- */

static void the_command_refuses_what_it_does_not_know(void **state)
{
  (void)state;
  static const struct {
    const char *argv[4];
    int argc, status;
    const char *says;
  } calls[] = {
    { { "fly" }, 1, 2, "has no mode 'fly'" },
    { { "grad", "-o", "nope" }, 3, 2, "there is no op 'nope'" },
    { { "grad", "--seed", "x" }, 3, 2, "graft: --seed takes a whole number" },
    { { "perf", "-t", "-1" }, 3, 2, "graft: -t takes 0 (one a processor) to 1024 threads" },
    { { "grad", "-o" }, 2, 2, "needs a value" },
    { { "grad", "--why" }, 2, 2, "has no option '--why'" },
    { { "test", "-b", "abacus" }, 3, 2, "no backend 'abacus'" },
    { { "grad", "-o", "ROPE,scale" }, 3, 0, "" },
    { { "grad", "-o", "rope", "--json" }, 4, 0, "" },
  };
  for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
    char *out_text = NULL, *err_text = NULL;
    size_t n;
    FILE *out = open_memstream(&out_text, &n), *err = open_memstream(&err_text, &n);
    int status = gr_optest_main(calls[i].argc, (char **)(uintptr_t)calls[i].argv, out, err);
    fclose(out);
    fclose(err);
    assert_int_equal(status, calls[i].status);
    assert_non_null(strstr(err_text, calls[i].says));
    if (status == 0) assert_non_null(strstr(out_text, "failures"));
    free(out_text);
    free(err_text);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(wrong_gradients_are_caught),
    cmocka_unit_test(wrong_references_are_caught),
    cmocka_unit_test(kinks_are_told_apart),
    cmocka_unit_test(wrong_saves_are_caught),
    cmocka_unit_test(refusals_are_checked),
    cmocka_unit_test(nothing_checked_is_a_failure),
    cmocka_unit_test(the_right_row_passes),
    cmocka_unit_test(wrong_kernels_are_caught),
    cmocka_unit_test(wrong_memory_is_caught),
    cmocka_unit_test(a_wrong_slice_is_caught),
    cmocka_unit_test(an_error_that_grew_is_caught),
    cmocka_unit_test(a_slice_of_zeros_must_be_zero),
    cmocka_unit_test(staging_in_half_is_caught),
    cmocka_unit_test(tolerances_stand_between),
    cmocka_unit_test(kernels_hold_references_to_account),
    cmocka_unit_test(the_command_refuses_what_it_does_not_know),
  };
  return cmocka_run_group_tests_name("optest", tests, NULL, NULL);
}
