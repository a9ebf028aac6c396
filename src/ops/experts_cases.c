/* Cases that matmul_id and its two gradients share: who goes where, how rows lie, every type of weight, long sums. */
#include "ops/experts.h"

#include <stdio.h>

static const double mixed[] = { 3, 0, 0, 2, -1, 3 }, one_expert[] = { 2 }, one_token[] = { 3, 1 },
                    each_expert[] = { 0, 1, 2, 2, 1, 0, 1, 0, 2 }, one_slot[] = { 0, 2, 2, 0, 2 },
                    four_slots[] = { 5, 1, 0, 4, 3, 5, 2, 1, 0, 1, 4, 3 }, beyond[] = { 3, 0, -1, 2147483647, 1, 1, -2147483648.0, 0 },
                    nowhere[] = { -1, 3 }, alone[] = { 0 }, some_nowhere[] = { 0, 1, -1, -1, 2, 0, -1, 5 }, twice[] = { 1, 1, 0, 0, 1, 0 },
                    crowd[] = { 0, 2, 0, 0 };

static const gr_experts_routing routings[] = {
  { "an expert without tokens, one with one, padding", 2, 3, 4, { .kind = GR_FILL_VALUES, .values = mixed, .n = 6 }, 0 },
  { "all on one expert", 2, 5, 3, { .kind = GR_FILL_VALUES, .values = one_expert, .n = 1 }, 0 },
  { "one token", 2, 1, 4, { .kind = GR_FILL_VALUES, .values = one_token, .n = 2 }, 0 },
  { "every expert used", 3, 5, 3, { .kind = GR_FILL_VALUES, .values = each_expert, .n = 9 }, 0 },
  { "one slot", 1, 7, 3, { .kind = GR_FILL_VALUES, .values = one_slot, .n = 5 }, 0 },
  { "four slots", 4, 3, 6, { .kind = GR_FILL_VALUES, .values = four_slots, .n = 12 }, 0 },
  { "one expert", 1, 5, 1, { .kind = GR_FILL_VALUES, .values = alone, .n = 1 }, 0 },
  { "an expert twice in a token", 2, 3, 3, { .kind = GR_FILL_VALUES, .values = twice, .n = 6 }, 0 },
  { "ids beyond the experts", 2, 4, 3, { .kind = GR_FILL_VALUES, .values = beyond, .n = 8 }, 0 },
  { "tokens that go nowhere", 2, 4, 3, { .kind = GR_FILL_VALUES, .values = some_nowhere, .n = 8 }, 0 },
  { "nothing routed", 2, 3, 3, { .kind = GR_FILL_VALUES, .values = nowhere, .n = 2 }, GR_CASE_ZERO | GR_CASE_NO_GRAD },
  { "tails of every tile", 3, 45, 5, { .kind = GR_FILL_BELOW, .a = 5 }, GR_CASE_NO_GRAD },
  { "many experts", 8, 33, 64, { .kind = GR_FILL_BELOW, .a = 64 }, GR_CASE_NO_GRAD },
  { "more experts than pairs", 6, 5, 67, { .kind = GR_FILL_BELOW, .a = 67 }, GR_CASE_NO_GRAD },
  { "hundreds of tokens on one expert", 2, 301, 3, { .kind = GR_FILL_VALUES, .values = crowd, .n = 4 }, GR_CASE_NO_GRAD },
};

bool gr_experts_routing_get(int i, gr_experts_routing *r)
{
  if (i >= (int)(sizeof routings / sizeof *routings)) return false;
  *r = routings[i];
  return true;
}

void gr_experts_prepare(gr_op_call *call)
{
  gr_experts_group(&call->in[GR_EXPERTS_IDS], &call->in[GR_EXPERTS_PERM], &call->in[GR_EXPERTS_OFFSETS]);
}

int64_t gr_experts_slice_pairs(const gr_op_call *c, int out, const int64_t at[GR_DIMS])
{
  const gr_array *ids = &c->in[GR_EXPERTS_IDS];
  if (c->out[out].ne[1] != ids->ne[0]) return -1; /* slots summed: no row is one expert's */
  return gr_experts_of(ids, at[1] + ids->ne[0] * at[2], c->in[GR_EXPERTS_OFFSETS].ne[0] - 1);
}

int64_t gr_experts_slice_stack(const gr_op_call *c, int out, const int64_t at[GR_DIMS])
{
  (void)c;
  (void)out;
  return at[2];
}

/* ---- what must be exactly 0 ---- */

static void must_be_zero(gr_case *c, int dim, int64_t at)
{
  if (c->n_zero >= GR_CASE_ZERO_SLICES) return;
  c->zero[c->n_zero].dim = (int8_t)dim;
  c->zero[c->n_zero++].at = at;
}

static bool goes_to(const gr_experts_routing *r, int64_t pair, int64_t expert)
{
  return r->ids.kind != GR_FILL_VALUES || r->ids.values[pair % r->ids.n] == (double)expert;
}

static bool anywhere(const gr_experts_routing *r, int64_t token)
{
  for (int64_t i = 0; i < r->used; i++)
    for (int64_t x = 0; x < r->experts; x++)
      if (goes_to(r, token * r->used + i, x)) return true;
  return false;
}

void gr_experts_zero_tokens(gr_case *c, const gr_experts_routing *r, int dim)
{
  for (int64_t t = 0; t < r->n; t++)
    if (!anywhere(r, t)) must_be_zero(c, dim, t);
}

void gr_experts_zero_experts(gr_case *c, const gr_experts_routing *r, int dim)
{
  for (int64_t x = 0; x < r->experts; x++) {
    bool any = false;
    for (int64_t p = 0; p < r->used * r->n; p++) any = any || goes_to(r, p, x);
    if (!any) must_be_zero(c, dim, x);
  }
}

/* ---- cases ---- */

void gr_experts_case(gr_case_sink *s, gr_experts_fit *fit, const gr_case *c, const gr_experts_shape *shape)
{
  const gr_experts_routing *r = &shape->routing;
  gr_case d = *c;
  char name[128];
  snprintf(name, sizeof name, "%s, %s", c->name ? c->name : r->name,
           shape->slots == 1         ? "a row for all slots"
           : shape->slots == r->used ? "a row for each slot"
                                     : "rows for some slots");
  d.name = name;
  d.flags |= r->flags;
  d.prepare = gr_experts_prepare;
  d.in[GR_EXPERTS_IDS] = (gr_case_in){ .dtype = GR_I32, .ne = { r->used, r->n }, .dim = { 0, GR_DIM_TOKENS }, .fill = r->ids };
  d.in[GR_EXPERTS_PERM] = (gr_case_in){ .dtype = GR_I32, .ne = { r->used, r->n }, .dim = { 0, GR_DIM_TOKENS }, .fill = gr_fill_count() };
  d.in[GR_EXPERTS_OFFSETS] = (gr_case_in){ .dtype = GR_I32, .ne = { r->experts + 1 }, .fill = gr_fill_count() };
  fit(&d, shape);
  gr_case_add(s, &d);
}

/* The same with each count of rows a token: 1, half of the slots, all of them. */
static void every_slots(gr_case_sink *s, gr_experts_fit *fit, const gr_case *c, gr_experts_shape shape)
{
  int64_t used = shape.routing.used;
  shape.slots = 1;
  gr_experts_case(s, fit, c, &shape);
  shape.slots = used / 2;
  if (used > 2 && used % 2 == 0) gr_experts_case(s, fit, c, &shape);
  shape.slots = used;
  if (used > 1) gr_experts_case(s, fit, c, &shape);
}

/* Rows of a few blocks that are no multiple of a tile. */
static void typed_cases(gr_case_sink *s, gr_experts_fit *fit, gr_dtype type)
{
  int elems = gr_dtype_get(type)->block_elems;
  gr_experts_shape x = { .type = type, .k = elems == 1 ? 37 : elems == 32 ? 96 : 512, .m = 7 };
  gr_experts_routing_get(0, &x.routing);
  if (elems > 32) x.routing.n = 9; /* so many elements that grad mode goes by directions */
  every_slots(s, fit, &(gr_case){ 0 }, x);
  x.fill = gr_fill_normal(4e4);
  x.layout = GR_LAYOUT_TRANSPOSED;
  gr_experts_routing_get(5, &x.routing);
  every_slots(s, fit, &(gr_case){ .name = "values to 1.5e5, transposed", .flags = GR_CASE_NO_GRAD }, x);
  x.layout = GR_LAYOUT_DENSE;
  x.other = GR_LAYOUT_ROWS;
  x.m = 67;
  x.routing = (gr_experts_routing){ "tails", 2, 19, 2, gr_fill_below(2), GR_CASE_NO_GRAD };
  every_slots(s, fit, &(gr_case){ .name = "values to 1.5e5, tails of every tile, rows apart" }, x);
}

/* Sums of 600,000 floats (B3): the worst seen is 1.9e-6, operands staged in half give 1.4e-4 and more, a lost tile of 32 rows 7e-3. */
static void long_cases(gr_case_sink *s, gr_experts_fit *fit, int64_t k, int64_t m, unsigned flags)
{
  static const double ids[] = { 1, 0, 1, -1 };
  static const gr_dtype types[] = { GR_Q4_K, GR_Q8_0 };
  gr_case c = { .name = "long", .flags = flags, .tolerance = { .norm = 3e-5, .max = 3e-4, .seen = 1.9e-6, .defect = 1.4e-4 } };
  for (int i = 0; i < 2; i++)
    for (int a = GR_LAYOUT_DENSE; a <= GR_LAYOUT_TRANSPOSED; a += GR_LAYOUT_TRANSPOSED)
      every_slots(s, fit, &c,
                  (gr_experts_shape){ .type = types[i],
                                      .k = k ? k : gr_dtype_get(types[i])->block_elems,
                                      .m = m,
                                      .layout = (gr_layout)a,
                                      .routing = { "long", 2, 2, 2, gr_fill_values(ids, 4), GR_CASE_NO_GRAD } });
}

void gr_experts_cases(gr_case_sink *s, gr_experts_fit *fit, bool stack)
{
  static const int64_t sizes[][2] = { { 19, 7 }, { 5, 3 }, { 33, 4 }, { 1, 1 }, { 3, 33 }, { 16, 9 } };
  gr_experts_shape x = { 0 };
  gr_dtype type;
  for (int i = 0; gr_experts_routing_get(i, &x.routing); i++)
    for (int z = 0; z < 2; z++) {
      x.k = sizes[(i + 3 * z) % 6][0], x.m = sizes[(i + 3 * z) % 6][1];
      if (x.k * x.m == 1 && x.routing.experts > 9) x.k = 5, x.m = 9; /* of so many slices of one number, some sum is a small difference */
      if (x.k * x.m == 1 && !stack) x.m = 9;                         /* and so may be the only number of a gradient */
      every_slots(s, fit, &(gr_case){ 0 }, x);
    }
  gr_experts_routing_get(5, &x.routing);
  x.k = 37, x.m = 7;
  for (int a = GR_LAYOUT_ROWS; a <= GR_LAYOUT_BROADCAST; a++) {
    x.layout = (gr_layout)a, x.other = GR_LAYOUT_ROWS;
    every_slots(s, fit, &(gr_case){ .name = "strided" }, x);
    x.layout = GR_LAYOUT_ROWS, x.other = a == GR_LAYOUT_TRANSPOSED && stack ? GR_LAYOUT_OFFSET : (gr_layout)a;
    every_slots(s, fit, &(gr_case){ .name = "strided" }, x);
  }
  for (int i = 0; stack && gr_case_weight_type(i, &type); i++) typed_cases(s, fit, type);
  if (!stack) typed_cases(s, fit, GR_F32);
  if (!stack) return;
  long_cases(s, fit, 0, 5000, 0);
  long_cases(s, fit, 16384, 5, 0);
  long_cases(s, fit, 0, 600000, GR_CASE_FULL);
}

void gr_experts_refusals(gr_case_sink *s, gr_experts_fit *fit, bool stack)
{
  gr_experts_shape x = { .k = 37, .m = 7, .slots = 2 };
  gr_case c = { .prepare = gr_experts_prepare }, d;
  gr_experts_routing_get(0, &x.routing);
  const gr_experts_routing *r = &x.routing;
  c.in[GR_EXPERTS_IDS] = c.in[GR_EXPERTS_PERM] =
      (gr_case_in){ .dtype = GR_I32, .ne = { r->used, r->n }, .dim = { 0, GR_DIM_TOKENS }, .fill = r->ids };
  c.in[GR_EXPERTS_OFFSETS] = (gr_case_in){ .dtype = GR_I32, .ne = { r->experts + 1 }, .fill = gr_fill_count() };
  fit(&c, &x);
  c.refuse = GR_ERR_MISMATCH;
  d = c, d.in[1].ne[2]++, d.says = "differ in tokens", gr_case_add(s, &d);
  d = c, d.in[1].ne[1] = 3, d.says = "cannot be met by the 3", gr_case_add(s, &d);
  d = c, d.in[GR_EXPERTS_PERM].ne[1]++, d.says = "no grouping of ids", gr_case_add(s, &d);
  d = c, d.in[GR_EXPERTS_PERM].dtype = GR_F32, d.says = "no grouping of ids", gr_case_add(s, &d);
  d = c, d.in[GR_EXPERTS_OFFSETS].dtype = GR_F32, d.says = "must be I32 [experts + 1]", gr_case_add(s, &d);
  d = c, d.in[GR_EXPERTS_OFFSETS].ne[1] = 2, d.says = "must be I32 [experts + 1]", gr_case_add(s, &d);
  c.refuse = GR_ERR_UNSUPPORTED;
  d = c, d.in[1].dtype = GR_F16, d.says = "must be F32", gr_case_add(s, &d);
  d = c, d.in[GR_EXPERTS_IDS].dtype = GR_F32, d.says = "ids must be I32", gr_case_add(s, &d);
  if (!stack) return;
  d = c, d.in[0].layout = GR_LAYOUT_TRANSPOSED, d.says = "must be dense", gr_case_add(s, &d);
  d = c, d.in[0].ne[3] = 2, d.says = "one stack of matrices", gr_case_add(s, &d);
  d = c, d.in[0].dtype = GR_I32, d.says = "not a stack of weights", gr_case_add(s, &d); /* a table of pointers to experts (A5) */
  c.refuse = GR_ERR_MISMATCH;
  d = c, d.in[0].ne[2]++, d.says = "are not those of 5 experts", gr_case_add(s, &d);
  d = c, d.in[0].ne[0]++, d.in[0].ne[1]++, d.says = "differ in", gr_case_add(s, &d);
}

void gr_experts_perf(gr_case_sink *s, gr_experts_fit *fit, bool stack)
{
  static const struct {
    gr_dtype type;
    int64_t k, m, slots, used, experts, n;
  } shapes[] = { { GR_Q4_K, 2048, 768, 1, 8, 128, 1024 }, { GR_Q4_K, 768, 2048, 8, 8, 128, 1024 }, { GR_MXFP4, 2880, 2880, 1, 4, 32, 512 },
                 { GR_Q8_0, 2048, 768, 1, 8, 128, 512 },  { GR_Q4_K, 2048, 768, 1, 8, 128, 1 },    { GR_F32, 2048, 16, 1, 8, 128, 512 },
                 { GR_F32, 16, 768, 8, 8, 128, 512 } };
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    gr_experts_shape x = { .type = shapes[i].type, .k = shapes[i].k, .m = shapes[i].m, .slots = shapes[i].slots };
    x.routing = (gr_experts_routing){ "training", shapes[i].used, shapes[i].n, shapes[i].experts, gr_fill_below(shapes[i].experts), 0 };
    if (stack || x.type == GR_F32) gr_experts_case(s, fit, &(gr_case){ .flags = GR_CASE_PERF }, &x);
  }
}
