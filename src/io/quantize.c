#include "io/quantize.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "io/gguf_write.h"
#include "quant/quant.h"

enum {
  PIECE = 4096, /* elements that one job encodes: a multiple of every block */
  BATCH = 64    /* pieces between two writes */
};

#define HALF_MAX 65504.0f

typedef struct piece_error {
  double miss, all; /* sums of squares */
  float largest;
} piece_error;

typedef struct run {
  const gr_quantize_options *options;
  const char *path; /* of the input */
  uint8_t *out;     /* a batch, encoded */
  piece_error errors[BATCH];
} run;

typedef struct tensor {
  run *run;
  const uint8_t *data;
  gr_quantize_tensor report;
  int64_t count, first; /* elements of the tensor; first element of the batch */
} tensor;

/* ---- what becomes of a tensor ---- */

bool gr_quantize_has(gr_dtype type) { return type != GR_F64 && gr_quant_encoder(type) != NULL; }

static bool ends_with(const char *name, const char *tail)
{
  size_t n = strlen(name), m = strlen(tail);
  return n >= m && strcmp(name + n - m, tail) == 0;
}

static bool is_encoded(const gr_gguf_tensor *t)
{
  int dims = 0;
  for (int d = 0; d < 4; d++) dims += t->ne[d] > 1;
  return dims >= 2 && gr_dtype_is_float(t->dtype) && ends_with(t->name, ".weight") && !ends_with(t->name, "_norm.weight") &&
         !strstr(t->name, "ffn_gate_inp") && !ends_with(t->name, "ssm_conv1d.weight");
}

static gr_dtype smaller_blocks(gr_dtype t)
{
  switch (t) {
  case GR_Q2_K:
  case GR_Q3_K: return GR_Q4_0;
  case GR_Q4_K: return GR_Q5_0;
  case GR_Q5_K: return GR_Q5_1;
  case GR_Q6_K: return GR_Q8_0;
  default: return GR_F16;
  }
}

/* The type asked for, or where its blocks do not fill the rows the one that stands in. */
static gr_dtype fitting_type(const gr_gguf_tensor *t, gr_dtype wanted)
{
  gr_dtype type = wanted;
  while (t->ne[0] % gr_dtype_get(type)->block_elems) type = smaller_blocks(type);
  return type != wanted && type == GR_F16 && t->dtype == GR_BF16 ? GR_BF16 : type; /* BF16 is as small and has the range */
}

static void decide(tensor *job, run *r, const gr_gguf_tensor *t, gr_dtype type)
{
  gr_quantize_tensor *report = &job->report;
  *report = (gr_quantize_tensor){ .name = t->name, .n_dims = t->n_dims, .from = t->dtype, .to = t->dtype, .bytes_from = t->bytes };
  memcpy(report->ne, t->ne, sizeof report->ne);
  job->run = r;
  job->data = t->data;
  job->count = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
  if (is_encoded(t)) report->to = fitting_type(t, type);
  report->encoded = report->to != t->dtype;
  report->fell_back = is_encoded(t) && report->to != type;
  report->bytes_to = report->encoded ? gr_row_bytes(report->to, job->count) : t->bytes;
}

/* ---- encoding ---- */

/* One piece: decoded to floats, encoded into its place of the batch, decoded again to see what was lost. */
static void encode_piece(void *ctx, size_t index, int thread)
{
  (void)thread;
  tensor *t = ctx;
  float x[PIECE], y[PIECE];
  const gr_dtype from = t->report.from, to = t->report.to;
  const int64_t at = t->first + (int64_t)index * PIECE, n = t->count - at < PIECE ? t->count - at : PIECE;
  uint8_t *out = t->run->out + gr_row_bytes(to, (int64_t)index * PIECE);
  gr_quant_decoder(from)(t->data + gr_row_bytes(from, at), x, n);
  gr_quant_encoder(to)(x, out, n);
  gr_quant_decoder(to)(out, y, n);
  piece_error sum = { 0, 0, 0 };
  for (int64_t i = 0; i < n; i++) {
    double miss = (double)y[i] - (double)x[i];
    sum.miss += miss * miss;
    sum.all += (double)x[i] * (double)x[i];
    if (fabsf(x[i]) > sum.largest) sum.largest = fabsf(x[i]);
  }
  t->run->errors[index] = sum;
}

static gr_status encode(tensor *t, gr_gguf_sink *sink, gr_error *e)
{
  run *r = t->run;
  const gr_dtype to = t->report.to;
  const bool halves = to == GR_F16 || gr_dtype_is_quant(to);
  double miss = 0, all = 0;
  for (t->first = 0; t->first < t->count; t->first += (int64_t)PIECE * BATCH) {
    const int64_t left = t->count - t->first, n = left < (int64_t)PIECE * BATCH ? left : (int64_t)PIECE * BATCH;
    const size_t pieces = (size_t)((n + PIECE - 1) / PIECE);
    gr_pool_run(r->options->pool, pieces, encode_piece, t);
    for (size_t i = 0; i < pieces; i++) {
      const piece_error *piece = &r->errors[i];
      if (halves && piece->largest > HALF_MAX)
        return gr_fail(e, GR_ERR_NUMERIC, "%s: tensor '%s' holds a weight of magnitude %g, and %s ends at half precision's 65504: use BF16",
                       r->path, t->report.name, (double)piece->largest, gr_dtype_name(to));
      miss += piece->miss, all += piece->all;
    }
    GR_TRY(gr_gguf_sink_write(sink, r->out, gr_row_bytes(to, n), e));
  }
  t->report.error = all > 0 ? sqrt(miss / all) : 0;
  return GR_OK;
}

static gr_status produce(void *ctx, gr_gguf_sink *sink, gr_error *e)
{
  tensor *t = ctx;
  const gr_quantize_options *o = t->run->options;
  if (t->report.encoded) GR_TRY(encode(t, sink, e));
  else GR_TRY(gr_gguf_sink_write(sink, t->data, t->report.bytes_from, e));
  if (o->on_tensor && !o->on_tensor(o->ctx, &t->report))
    return gr_fail(e, GR_ERR_CANCELLED, "stopped at tensor '%s': nothing is written", t->report.name);
  return GR_OK;
}

/* ---- refusals ---- */

static gr_status check_type(gr_dtype type, gr_error *e)
{
  if (gr_quantize_has(type)) return GR_OK;
  gr_buf names = { 0 };
  for (gr_dtype t = 0; t < GR_DTYPE_COUNT; t++)
    if (gr_quantize_has(t)) gr_buf_printf(&names, "%s%s", names.len ? ", " : "", gr_dtype_name(t));
  gr_status s = names.failed ? gr_fail_memory(e, names.len)
                             : gr_fail(e, GR_ERR_USAGE, "cannot quantize to %s: the types are %s", gr_dtype_name(type), names.data);
  gr_buf_free(&names);
  return s;
}

static gr_status check_paths(const gr_gguf *g, const char *out, bool overwrite, gr_error *e)
{
  gr_file *probe = NULL;
  for (int part = 0; part < gr_gguf_part_count(g); part++)
    if (gr_file_same(gr_gguf_part_path(g, part), out)) return gr_fail(e, GR_ERR_USAGE, "%s is the input: write to another file", out);
  if (gr_file_exists(out) && !overwrite)
    return gr_fail(e, GR_ERR_USAGE, "%s exists already: --overwrite replaces it, or name another", out);
  GR_TRY(gr_file_create(&probe, out, e)); /* tried before minutes of work */
  gr_file_abandon(probe);
  return GR_OK;
}

static gr_status check_model(const gr_gguf *g, gr_error *e)
{
  const gr_gguf_kv *kind = gr_gguf_find(g, "general.type");
  gr_gguf_str text = { 0 };
  if (kind && kind->type == GR_GGUF_STRING && !kind->is_array) GR_TRY(gr_gguf_string(g, "general.type", GR_GGUF_REQUIRED, &text, e));
  if (gr_gguf_str_is(text, "adapter"))
    return gr_fail(e, GR_ERR_UNSUPPORTED, "%s is an adapter: only models are quantized", gr_gguf_path(g));
  const gr_gguf_tensor *first = NULL;
  size_t quantized = 0, encoded = 0;
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    if (t->has_dtype && !gr_dtype_is_quant(t->dtype)) encoded += is_encoded(t);
    else if (!quantized++) first = t;
  }
  if (quantized)
    return gr_fail(e, GR_ERR_UNSUPPORTED,
                   "%s: %zu tensor%s quantized already, first '%s' (%s): start from the F32, F16 or BF16 model, for a second rounding adds "
                   "to the first",
                   gr_gguf_path(g), quantized, quantized == 1 ? " is" : "s are", first->name, gr_ggml_type_name(first->ggml_type));
  if (!encoded) return gr_fail(e, GR_ERR_FORMAT, "%s has no weight matrix to quantize", gr_gguf_path(g));
  return GR_OK;
}

/* ---- the file ---- */

/* ggml's general.file_type of a model whose matrices are all of one type (for Q3_K, Q4_K and Q5_K the _S kinds). */
static uint32_t file_type(gr_dtype t)
{
  switch (t) {
  case GR_F16: return 1;
  case GR_Q4_0: return 2;
  case GR_Q4_1: return 3;
  case GR_Q8_0: return 7;
  case GR_Q5_0: return 8;
  case GR_Q5_1: return 9;
  case GR_Q2_K: return 10;
  case GR_Q3_K: return 11;
  case GR_Q4_K: return 14;
  case GR_Q5_K: return 16;
  case GR_Q6_K: return 18;
  case GR_BF16: return 32;
  default: return 0; /* all F32 */
  }
}

static void put_metadata(gr_gguf_writer *w, const gr_gguf *g, gr_dtype type)
{
  enum { BLOCKS_VERSION = 2 }; /* of ggml's block layouts, since 2023 */
  static const char file_type_key[] = "general.file_type", version_key[] = "general.quantization_version";
  for (size_t i = 0; i < gr_gguf_kv_count(g); i++) {
    const gr_gguf_kv *kv = gr_gguf_kv_at(g, i);
    if (strcmp(kv->key, file_type_key) == 0) gr_gguf_put_u32(w, file_type_key, file_type(type));
    else if (strcmp(kv->key, version_key) == 0) gr_gguf_put_u32(w, version_key, BLOCKS_VERSION);
    else if (strncmp(kv->key, "split.", 6) != 0) gr_gguf_put_kv(w, kv);
  }
  if (!gr_gguf_find(g, file_type_key)) gr_gguf_put_u32(w, file_type_key, file_type(type));
  if (!gr_gguf_find(g, version_key) && gr_dtype_is_quant(type)) gr_gguf_put_u32(w, version_key, BLOCKS_VERSION);
}

static gr_status write_model(run *r, tensor *tensors, const gr_gguf *g, const char *out, gr_dtype type, gr_error *e)
{
  gr_gguf_writer *w = NULL;
  GR_TRY(gr_gguf_writer_create(&w, e));
  put_metadata(w, g, type);
  const size_t count = gr_gguf_tensor_count(g);
  for (size_t i = 0; i < count; i++) {
    tensor *t = &tensors[i];
    decide(t, r, gr_gguf_tensor_at(g, i), type);
    t->report.index = i, t->report.count = count;
    gr_gguf_add_stream(w, t->report.name, t->report.to, t->report.n_dims, t->report.ne, produce, t);
  }
  gr_status s = gr_gguf_writer_save(w, out, e);
  gr_gguf_writer_free(w);
  return s;
}

static gr_status quantize(const gr_gguf *g, const char *out, gr_dtype type, const gr_quantize_options *o, gr_error *e)
{
  GR_TRY(check_model(g, e));
  GR_TRY(check_paths(g, out, o->overwrite, e));
  GR_TRY(gr_gguf_check_finite(g, o->pool, e));
  run r = { .options = o, .path = gr_gguf_path(g) };
  const size_t count = gr_gguf_tensor_count(g), batch = sizeof(float) * PIECE * BATCH;
  tensor *tensors = gr_calloc(count, sizeof *tensors);
  r.out = gr_alloc(batch);
  gr_status s = tensors && r.out ? write_model(&r, tensors, g, out, type, e) : gr_fail_memory(e, batch + count * sizeof *tensors);
  gr_free(r.out);
  gr_free(tensors);
  return s;
}

gr_status gr_quantize_file(const char *in, const char *out, gr_dtype type, const gr_quantize_options *options, gr_error *e)
{
  static const gr_quantize_options defaults = { 0 };
  GR_TRY(check_type(type, e));
  gr_gguf *g = NULL;
  GR_TRY(gr_gguf_open(&g, in, e));
  gr_status s = quantize(g, out, type, options ? options : &defaults, e);
  gr_gguf_close(g);
  return s;
}
