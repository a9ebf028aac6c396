/* Recordings: calls of a real run, written to a GGUF file and read back as cases.
 *
 *   graft.calls u64; of call N, as metadata call.N.op, .node (texts), .params (bytes), and for each input .dtype (-1: absent), .layout and
 *   four sizes in .ne; its data as tensor call.N.I, dense, unless the op reads only its shape. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "io/gguf_write.h"
#include "optest/internal.h"

typedef struct record_call {
  gr_op_id op;
  unsigned char params[GR_PARAMS_BYTES];
  int n_in;
  int32_t dtype[GR_IN_MAX], layout[GR_IN_MAX];
  int64_t ne[GR_IN_MAX][GR_DIMS];
  void *data[GR_IN_MAX];
  char node[128];
} record_call;

struct gr_recorder {
  record_call *calls;
  size_t n, cap, seen, left_out, bytes, bytes_most;
};

gr_status gr_recorder_create(gr_recorder **r, size_t bytes, gr_error *e)
{
  *r = gr_calloc(1, sizeof **r);
  if (!*r) return gr_fail_memory(e, sizeof **r);
  (*r)->bytes_most = bytes;
  return GR_OK;
}

void gr_recorder_free(gr_recorder *r)
{
  if (!r) return;
  for (size_t i = 0; i < r->n; i++)
    for (int k = 0; k < GR_IN_MAX; k++) gr_free(r->calls[i].data[k]);
  gr_free(r->calls);
  gr_free(r);
}

void gr_recorder_counts(const gr_recorder *r, size_t *seen, size_t *kept, size_t *left_out)
{
  *seen = r->seen;
  *kept = r->n;
  *left_out = r->left_out;
}

/* ---- keeping ---- */

/* The layout of cases that is nearest: how far rows lie apart is not kept. */
static gr_layout layout_of(const gr_array *a)
{
  int64_t unit = gr_dtype_get(a->dtype)->block_bytes;
  if (gr_array_contiguous(a)) return GR_LAYOUT_DENSE;
  if (a->nb[0] == unit) return a->nb[1] == 0 ? GR_LAYOUT_BROADCAST : GR_LAYOUT_ROWS;
  return a->nb[1] == unit ? GR_LAYOUT_TRANSPOSED : GR_LAYOUT_DENSE;
}

/* Everything but data. */
static void describe(record_call *c, const gr_node *node, const gr_op_call *call)
{
  *c = (record_call){ .op = call->op, .n_in = call->n_in };
  if (gr_op_get(call->op)->params_bytes) memcpy(c->params, call->params, gr_op_get(call->op)->params_bytes);
  snprintf(c->node, sizeof c->node, "%s", node->out[0]->name[0] ? node->out[0]->name : node->name);
  for (int i = 0; i < call->n_in; i++) {
    c->dtype[i] = call->in[i].ne[0] ? (int32_t)call->in[i].dtype : -1;
    if (c->dtype[i] < 0) continue;
    c->layout[i] = (int32_t)layout_of(&call->in[i]);
    memcpy(c->ne[i], call->in[i].ne, sizeof c->ne[i]);
  }
}

static bool same_kind(const record_call *a, const record_call *b)
{
  return a->op == b->op && a->n_in == b->n_in && memcmp(a->params, b->params, sizeof a->params) == 0 &&
         memcmp(a->dtype, b->dtype, sizeof a->dtype) == 0 && memcmp(a->layout, b->layout, sizeof a->layout) == 0 &&
         memcmp(a->ne, b->ne, sizeof a->ne) == 0;
}

/* Whether the data of input i are kept: the op reads more than its shape. */
static bool has_data(const record_call *c, int i) { return c->dtype[i] >= 0 && !(gr_op_get(c->op)->shapes_in >> i & 1); }

static size_t input_bytes(const record_call *c, int i)
{
  const int64_t *ne = c->ne[i];
  return (size_t)(gr_row_bytes((gr_dtype)c->dtype[i], ne[0]) * ne[1] * ne[2] * ne[3]);
}

static void *dense_copy(const gr_array *a, size_t bytes)
{
  char *copy = gr_alloc(bytes), *to = copy;
  int64_t unit = gr_dtype_get(a->dtype)->block_bytes, units = a->ne[0] / gr_dtype_get(a->dtype)->block_elems;
  for (int64_t r = 0; copy && r < gr_array_rows(a); r++) {
    int64_t i1 = r % a->ne[1], i2 = r / a->ne[1] % a->ne[2], i3 = r / a->ne[1] / a->ne[2];
    for (int64_t i = 0; i < units; i++, to += unit) memcpy(to, gr_array_at(a, i, i1, i2, i3), (size_t)unit);
  }
  return copy;
}

gr_status gr_recorder_watch(void *ctx, const gr_node *node, const gr_op_call *call, gr_error *e)
{
  gr_recorder *r = ctx;
  record_call c;
  size_t bytes = 0;
  r->seen++;
  describe(&c, node, call);
  for (size_t i = 0; i < r->n; i++)
    if (same_kind(&c, &r->calls[i])) return GR_OK;
  for (int i = 0; i < c.n_in; i++) bytes += has_data(&c, i) ? input_bytes(&c, i) : 0;
  if (bytes > r->bytes_most - r->bytes) {
    r->left_out++;
    return GR_OK;
  }
  if (!gr_grow((void **)&r->calls, &r->cap, r->n + 1, sizeof *r->calls)) return gr_fail_memory(e, sizeof *r->calls);
  record_call *kept = &r->calls[r->n++];
  *kept = c;
  r->bytes += bytes;
  for (int i = 0; i < c.n_in; i++)
    if (has_data(&c, i) && !(kept->data[i] = dense_copy(&call->in[i], input_bytes(&c, i)))) return gr_fail_memory(e, input_bytes(&c, i));
  return GR_OK;
}

static void put_call(gr_gguf_writer *w, const record_call *c, size_t n)
{
  char key[64];
#define KEY(field) (snprintf(key, sizeof key, "call.%zu." field, n), key)
  gr_gguf_put_string(w, KEY("op"), gr_op_name(c->op));
  gr_gguf_put_string(w, KEY("node"), c->node);
  gr_gguf_put_array(w, KEY("params"), GR_GGUF_U8, c->params, gr_op_get(c->op)->params_bytes);
  gr_gguf_put_array(w, KEY("dtype"), GR_GGUF_I32, c->dtype, (uint64_t)c->n_in);
  gr_gguf_put_array(w, KEY("layout"), GR_GGUF_I32, c->layout, (uint64_t)c->n_in);
  gr_gguf_put_array(w, KEY("ne"), GR_GGUF_I64, c->ne, (uint64_t)c->n_in * GR_DIMS);
#undef KEY
  for (int i = 0; i < c->n_in; i++) {
    snprintf(key, sizeof key, "call.%zu.%d", n, i);
    if (c->data[i]) gr_gguf_add_data(w, key, (gr_dtype)c->dtype[i], GR_DIMS, c->ne[i], c->data[i]);
  }
}

static bool is_recording(const char *path)
{
  gr_gguf *g;
  gr_error ignored = { 0 };
  bool is = gr_gguf_open(&g, path, &ignored) == GR_OK && gr_gguf_find(g, "graft.calls");
  gr_gguf_close(g);
  return is;
}

gr_status gr_recorder_save(const gr_recorder *r, const char *path, gr_error *e)
{
  gr_gguf_writer *w;
  if (gr_file_exists(path) && !is_recording(path))
    return gr_fail(e, GR_ERR_USAGE, "%s exists and is no recording: it is not written over, give another name", path);
  GR_TRY(gr_gguf_writer_create(&w, e));
  gr_gguf_put_string(w, "general.type", "recording");
  gr_gguf_put_u64(w, "graft.calls", r->n);
  for (size_t i = 0; i < r->n; i++) put_call(w, &r->calls[i], i);
  gr_status s = gr_gguf_writer_save(w, path, e);
  gr_gguf_writer_free(w);
  return s;
}

/* ---- reading back ---- */

typedef struct record_reader {
  const gr_gguf *file;
  uint64_t n; /* the call being read */
  gr_error *error;
} record_reader;

static gr_status broken(const record_reader *r, const char *what)
{
  return gr_fail(r->error, GR_ERR_FORMAT, "%s is no recording of this build: call %llu %s; record it anew with graft ops record",
                 gr_gguf_path(r->file), (unsigned long long)r->n, what);
}

static const gr_gguf_kv *find(const record_reader *r, const char *field)
{
  char key[64];
  snprintf(key, sizeof key, "call.%llu.%s", (unsigned long long)r->n, field);
  return gr_gguf_find(r->file, key);
}

static bool is_op(const gr_gguf_kv *kv, const char *name)
{
  gr_gguf_strings it = gr_gguf_strings_of(kv);
  gr_gguf_str text;
  return gr_gguf_strings_next(&it, &text) && gr_gguf_str_is(text, name);
}

/* Input i: its type, shape and layout, checked, and the tensor that holds its data. */
static gr_status read_input(const record_reader *r, const gr_op *op, int i, gr_case_in *in)
{
  char key[64];
  int64_t dtype, layout;
  if (!gr_gguf_kv_i64(find(r, "dtype"), (uint64_t)i, &dtype) || dtype >= GR_DTYPE_COUNT) return broken(r, "has no type for an input");
  if (dtype < 0) return GR_OK;
  if (!gr_gguf_kv_i64(find(r, "layout"), (uint64_t)i, &layout) || layout < 0 || layout > GR_LAYOUT_BROADCAST)
    return broken(r, "has no layout for an input");
  in->dtype = (gr_dtype)dtype;
  in->layout = (gr_layout)layout;
  for (int d = 0; d < GR_DIMS; d++)
    if (!gr_gguf_kv_i64(find(r, "ne"), (uint64_t)(i * GR_DIMS + d), &in->ne[d]) || in->ne[d] < 1 || in->ne[d] > INT32_MAX)
      return broken(r, "has no shape for an input");
  if (i == 0 && (op->flags & GR_OP_INPLACE)) in->leaf = GR_LEAF_STATE;
  if (op->shapes_in >> i & 1) return GR_OK;
  snprintf(key, sizeof key, "call.%llu.%d", (unsigned long long)r->n, i);
  const gr_gguf_tensor *t = gr_gguf_tensor_find(r->file, key);
  if (!t || !t->has_dtype || t->dtype != in->dtype || !gr_shape_equal(t->ne, in->ne)) return broken(r, "lacks the data of an input");
  in->data = t->data;
  return GR_OK;
}

static gr_status read_call(const record_reader *r, gr_case_list *l, const gr_case *like)
{
  const gr_op *op = gr_op_get(l->op);
  const gr_gguf_kv *params = find(r, "params"), *dtype = find(r, "dtype"), *node = find(r, "node");
  gr_case c = { .flags = GR_CASE_REAL | GR_CASE_NO_GRAD, .tolerance = like->tolerance, .slice = like->slice };
  _Alignas(8) unsigned char bytes[GR_PARAMS_BYTES] = { 0 };
  char name[128] = "recorded";
  if (!params || params->type != GR_GGUF_U8 || params->count != op->params_bytes || !dtype || !find(r, "layout") || !find(r, "ne"))
    return broken(r, "has parameters or inputs of another form");
  if (dtype->count < op->inputs_min || dtype->count > op->inputs_max) return broken(r, "has another number of inputs");
  memcpy(bytes, params->data, params->bytes);
  c.params = bytes;
  c.n_in = (int)dtype->count;
  for (int i = 0; i < c.n_in; i++) GR_TRY(read_input(r, op, i, &c.in[i]));
  gr_gguf_str text;
  gr_gguf_strings it = gr_gguf_strings_of(node);
  if (node && gr_gguf_strings_next(&it, &text)) snprintf(name, sizeof name, "%.*s", (int)text.len, text.data);
  c.name = name;
  gr_case_add(&l->sink, &c);
  return l->failed ? gr_fail_memory(r->error, sizeof c) : GR_OK;
}

/* The largest of real values stands this many times farther above their rms than that of normal ones, and its error with it. */
static const double tails = 10;

/* Tolerances of the op, or of its first case that is run. A floor stands for made-up data: real ones are only spared the demand that what
 * cancels be exactly 0. */
static gr_case likeness(const gr_case_list *l)
{
  gr_case like = { .tolerance = l->sink.tolerance, .slice = l->sink.slice };
  for (size_t i = 0; i < l->n; i++) {
    const gr_case *c = l->items[i];
    if (c->refuse || (c->flags & GR_CASE_PERF)) continue;
    if (!like.tolerance.norm) like.tolerance = c->tolerance;
    if (c->tolerance.floor > 0) like.tolerance.floor = 1e-30;
  }
  like.tolerance.max *= tails;
  if (like.tolerance.floor > 0) like.tolerance.floor = 1e-30;
  return like;
}

gr_status gr_record_cases(const gr_gguf *recording, gr_case_list *l, gr_error *e)
{
  record_reader r = { .file = recording, .error = e };
  uint64_t n = 0;
  gr_case like = likeness(l);
  l->n = 0;
  GR_TRY(gr_gguf_u64(recording, "graft.calls", GR_GGUF_REQUIRED, 0, 1u << 20, &n, e));
  for (r.n = 0; r.n < n; r.n++) {
    const gr_gguf_kv *op = find(&r, "op");
    if (!op) return broken(&r, "names no op");
    if (is_op(op, gr_op_name(l->op))) GR_TRY(read_call(&r, l, &like));
  }
  return GR_OK;
}
