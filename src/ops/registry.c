/* ops.def, expanded: the table of descriptors, and look-up by name. */
#include <math.h>
#include <strings.h>

#include "base/alloc.h"
#include "ops/op.h"
#include "ops/reference.h"
#include "quant/quant.h"

#define GR_OP(name, ggml, args, doc) extern const gr_op gr_op_##name;
#include "ops/ops.def"
#undef GR_OP

static const gr_op *const ops[GR_OP_COUNT] = {
#define GR_OP(name, ggml, args, doc) [GR_OP_##name] = &gr_op_##name,
#include "ops/ops.def"
#undef GR_OP
};

static const struct {
  const char *name, *ggml, *doc;
} texts[GR_OP_COUNT] = {
  [GR_OP_NONE] = { "none", "NONE", "a leaf" },
#define GR_OP(name, ggml, args, doc) [GR_OP_##name] = { #name, ggml, doc },
#include "ops/ops.def"
#undef GR_OP
};

const gr_op *gr_op_get(gr_op_id id) { return ops[id]; }
const char *gr_op_name(gr_op_id id) { return texts[id].name; }
const char *gr_op_ggml(gr_op_id id) { return texts[id].ggml; }
const char *gr_op_doc(gr_op_id id) { return texts[id].doc; }

/* Further names that an op is known by. */
static const struct {
  const char *name;
  gr_op_id id;
} others[] = { { "OUT_PROD_ID", GR_OP_matmul_id_back }, { "SOFT_MAX_BACK", GR_OP_route_back } };

gr_op_id gr_op_find(const char *name)
{
  for (int i = 1; i < GR_OP_COUNT; i++)
    if (strcasecmp(texts[i].name, name) == 0 || strcasecmp(texts[i].ggml, name) == 0) return (gr_op_id)i;
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (strcasecmp(others[i].name, name) == 0) return others[i].id;
  return GR_OP_NONE;
}

/* Decoded a piece at a time into a small float buffer: rows can be 248,320 long. */
void gr_reference_row(const gr_array *a, int64_t i1, int64_t i2, int64_t i3, double *y)
{
  enum { PIECE = 256 };
  if (!gr_dtype_is_quant(a->dtype)) {
    for (int64_t i = 0; i < a->ne[0]; i++) y[i] = gr_array_get(a, i, i1, i2, i3);
    return;
  }
  const gr_dtype_info *d = gr_dtype_get(a->dtype);
  const char *row = gr_array_at(a, 0, i1, i2, i3);
  float piece[PIECE];
  for (int64_t i = 0; i < a->ne[0]; i += PIECE) {
    int64_t n = a->ne[0] - i < PIECE ? a->ne[0] - i : PIECE;
    gr_quant_decoder(a->dtype)(row + i / d->block_elems * d->block_bytes, piece, n);
    for (int64_t j = 0; j < n; j++) y[i + j] = (double)piece[j];
  }
}

void gr_reference_fill(const gr_array *a, double v)
{
  for (gr_row r = { 0 }; gr_row_valid(&r, a); gr_row_next(&r, a))
    for (int64_t i = 0; i < a->ne[0]; i++) gr_row_set(a, i, &r, v);
}

double *gr_reference_scratch(const gr_op_call *c, int64_t n)
{
  double *p = gr_calloc((size_t)n, sizeof *p);
  for (int i = 0; !p && i < c->n_out; i++) gr_reference_fill(&c->out[i], (double)NAN);
  return p;
}
