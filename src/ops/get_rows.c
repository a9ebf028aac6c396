/* y[:,t,b] = table[:,ids[t,b],b], decoded to F32: table [D,V,B1,B2] of any float or quantized type with dense rows, ids [n,B1,B2]
 * I32 -> y [D,n,B1,B2]. Each batch gathers from its own slice of the table (A8), or every one from a table without batches.
 * An id outside the table (padding) gives a row of zeros and passes no gradient: ids are checked where they enter.
 * Gradient: dtable = dy's rows added at their ids (get_rows_back), for an F32 table only; ids have none. */
#include "base/alloc.h"
#include "ops/cases.h"
#include "ops/reference.h"

static gr_status infer(gr_infer *c, gr_error *e)
{
  const gr_tensor *table = c->in[0], *ids = c->in[1];
  char a[160], b[160];
  gr_tensor_describe(table, a, sizeof a);
  gr_tensor_describe(ids, b, sizeof b);
  if (gr_dtype_get(table->dtype)->kind == GR_KIND_INT) return gr_fail(e, GR_ERR_UNSUPPORTED, "get_rows: %s is not a table of numbers", a);
  if (ids->dtype != GR_I32) return gr_fail(e, GR_ERR_UNSUPPORTED, "get_rows: ids must be I32, not %s", b);
  if (table->nb[0] != gr_dtype_get(table->dtype)->block_bytes)
    return gr_fail(e, GR_ERR_UNSUPPORTED, "get_rows: rows of %s must be dense", a);
  bool fits = ids->ne[3] == 1, whole = table->ne[2] == 1 && table->ne[3] == 1 && !table->dim[2] && !table->dim[3];
  for (int i = 1; i < 3 && !whole; i++) fits = fits && ids->ne[i] == table->ne[i + 1] && ids->dim[i] == table->dim[i + 1];
  if (!fits) return gr_fail(e, GR_ERR_MISMATCH, "get_rows: the batches of %s and of ids %s differ", a, b);
  gr_infer_dim(&c->out[0], 0, table, 0);
  for (int i = 1; i < GR_DIMS; i++) gr_infer_dim(&c->out[0], i, ids, i - 1);
  return GR_OK;
}

static gr_status backward(gr_backward *b, gr_error *e)
{
  gr_tensor *table = b->node->in[0], *ids = b->node->in[1];
  GR_TRY(gr_backward_refuse(b, 2, "ids are integers", e));
  if (table->dtype != GR_F32) GR_TRY(gr_backward_refuse(b, 1, "it is stored packed and frozen", e));
  if (b->wants[0]) b->din[0] = gr_get_rows_back(b->graph, b->dout[0], ids, table);
  return GR_OK;
}

static void reference(const gr_op_call *c)
{
  const gr_array *table = &c->in[0], *ids = &c->in[1], *y = &c->out[0];
  double *row = gr_reference_scratch(c, table->ne[0]);
  if (!row) return;
  for (gr_row r = { 0 }; gr_row_valid(&r, y); gr_row_next(&r, y)) {
    int64_t id = (int64_t)gr_array_get(ids, r.i1, r.i2, r.i3, 0);
    bool inside = id >= 0 && id < table->ne[1];
    if (inside) gr_reference_row(table, id, r.i2 % table->ne[2], r.i3 % table->ne[3], row);
    for (int64_t i = 0; i < y->ne[0]; i++) gr_row_set(y, i, &r, inside ? row[i] : 0);
  }
  gr_free(row);
}

static void cost(const gr_op_call *c, gr_cost *k)
{
  double rows = (double)gr_array_rows(&c->out[0]);
  *k = (gr_cost){ .bytes_read = rows * (4 + (double)gr_row_bytes(c->in[0].dtype, c->in[0].ne[0])),
                  .bytes_written = 4 * (double)gr_array_count(&c->out[0]) };
}

/* ---- cases ---- */

static void cases(gr_case_sink *s)
{
  gr_dtype type;
  s->tolerance = (gr_tolerance){ .norm = 1e-30, .max = 1e-30, .defect = 1e-4 }; /* decoders are exact, so is this */
  for (int i = 0; gr_case_weight_type(i, &type); i++) {
    int64_t width = gr_dtype_get(type)->block_elems == 1 ? 37 : 3 * gr_dtype_get(type)->block_elems;
    gr_case_add(
        s, &(gr_case){ .name = "repeats and padding",
                       .in = { { .dtype = type, .ne = { width, 9 } },
                               { .dtype = GR_I32, .ne = { 7 }, .dim = { GR_DIM_TOKENS }, .fill = GR_FILL_LIST(8, 0, 3, 3, -1, 9, 0) } } });
    gr_case_add(s, &(gr_case){ .name = "rows anywhere",
                               .in = { { .dtype = type, .ne = { width, 5 }, .layout = i % 2 ? GR_LAYOUT_ROWS : GR_LAYOUT_OFFSET },
                                       { .dtype = GR_I32, .ne = { 130 }, .fill = gr_fill_below(5) } } });
  }
  gr_case_in ids = { .dtype = GR_I32, .ne = { 6 }, .dim = { GR_DIM_TOKENS }, .fill = GR_FILL_LIST(8, 0, 3, 3, -1, 9) };
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 37, 9 }, .grad = true }, ids } });
  gr_case_add(s, &(gr_case){ .name = "every row",
                             .in = { { .ne = { 5, 8 }, .grad = true }, { .dtype = GR_I32, .ne = { 8 }, .fill = gr_fill_distinct(8) } } });
  gr_case_add(s, &(gr_case){ .name = "one token",
                             .in = { { .ne = { 5, 8 }, .grad = true }, { .dtype = GR_I32, .ne = { 1 }, .fill = gr_fill_below(8) } } });
  gr_case_add(
      s, &(gr_case){
             .name = "a batch: router weights of the chosen experts",
             .in = { { .ne = { 1, 6, 4 }, .dim = { 0, 0, GR_DIM_TOKENS }, .grad = true },
                     { .dtype = GR_I32, .ne = { 2, 4 }, .dim = { 0, GR_DIM_TOKENS }, .fill = GR_FILL_LIST(5, 0, 1, 2, 3, 3, 4, 1) } } });
  gr_case_add(
      s, &(gr_case){ .name = "two batch dimensions",
                     .in = { { .ne = { 3, 5, 2, 3 }, .grad = true }, { .dtype = GR_I32, .ne = { 4, 2, 3 }, .fill = gr_fill_below(5) } } });
  gr_case_in used = { .dtype = GR_I32, .ne = { 2, 4 }, .dim = { 0, GR_DIM_TOKENS }, .fill = GR_FILL_LIST(5, 0, 1, 2, -1, 5, 4, 1) };
  gr_case_add(s, &(gr_case){ .name = "one table for every token: biases of the chosen experts",
                             .in = { { .ne = { 37, 6 }, .grad = true }, used } });
  gr_case_add(s, &(gr_case){ .name = "one packed table for every token", .in = { { .dtype = GR_Q8_0, .ne = { 64, 6 } }, used } });
  gr_case_add(s, &(gr_case){ .flags = GR_CASE_PERF,
                             .in = { { .dtype = GR_Q4_K, .ne = { 2048, 32000 } },
                                     { .dtype = GR_I32, .ne = { 512 }, .fill = gr_fill_below(32000) } } });
  gr_case_add(
      s, &(gr_case){
             .in = { { .dtype = GR_Q8_0, .ne = { 32, 9 } }, ids }, .wants = 1, .refuse = GR_ERR_UNSUPPORTED, .says = "packed and frozen" });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 32, 9 } }, ids }, .wants = 2, .refuse = GR_ERR_UNSUPPORTED, .says = "integers" });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 32, 9 } }, { .ne = { 4 } } }, .refuse = GR_ERR_UNSUPPORTED, .says = "ids must be I32" });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 32, 9 }, .dtype = GR_I32 }, ids }, .refuse = GR_ERR_UNSUPPORTED, .says = "not a table" });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 32, 9, 2 } }, ids }, .refuse = GR_ERR_MISMATCH, .says = "batches" });
  gr_case_add(s, &(gr_case){ .in = { { .ne = { 9, 7 }, .layout = GR_LAYOUT_TRANSPOSED }, ids },
                             .refuse = GR_ERR_UNSUPPORTED,
                             .says = "must be dense" });
}

gr_tensor *gr_get_rows(gr_graph *g, gr_tensor *table, gr_tensor *ids)
{
  return gr_graph_node(g, GR_OP_get_rows, (gr_tensor *[]){ table, ids }, 2, NULL);
}

const gr_op gr_op_get_rows = {
  .inputs_min = 2,
  .inputs_max = 2,
  .outputs = 1,
  .saves_in = 2,
  .infer = infer,
  .backward = backward,
  .reference = reference,
  .cost = cost,
  .cases = cases,
};
