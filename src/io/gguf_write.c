#include "io/gguf_write.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "io/gguf_part.h"

typedef struct entry {
  const char *name; /* first, so that one comparison serves keys and tensors */
  uint32_t ggml_type;
  int n_dims;
  int64_t ne[4];
  size_t bytes;
  const void *data; /* or, when NULL, produced: */
  gr_gguf_produce *produce;
  void *ctx;
} entry;

struct gr_gguf_writer {
  gr_arena names;
  gr_buf pairs; /* encoded */
  const char **keys;
  size_t key_count, key_cap;
  entry *tensors;
  size_t tensor_count, tensor_cap;
  uint64_t alignment;
  gr_error error; /* the first thing done wrongly */
};

gr_status gr_gguf_writer_create(gr_gguf_writer **out, gr_error *e)
{
  gr_gguf_writer *w = gr_calloc(1, sizeof *w);
  *out = w;
  if (!w) return gr_fail_memory(e, sizeof *w);
  w->alignment = 32;
  return GR_OK;
}

void gr_gguf_writer_free(gr_gguf_writer *w)
{
  if (!w) return;
  gr_arena_free(&w->names);
  gr_buf_free(&w->pairs);
  gr_free(w->keys);
  gr_free(w->tensors);
  gr_free(w);
}

void gr_gguf_writer_set_alignment(gr_gguf_writer *w, uint64_t alignment)
{
  if (w->error.status != GR_OK) return;
  if (alignment < 8 || alignment > UINT32_C(1) << 31 || (alignment & (alignment - 1)))
    gr_fail(&w->error, GR_ERR_USAGE, "an alignment of %llu is not a power of two from 8 to 2^31", (unsigned long long)alignment);
  else w->alignment = alignment;
}

/* NULL (and the writer's error set) when the name cannot stand in a file. */
static const char *keep_name(gr_gguf_writer *w, const char *what, const char *name, size_t limit)
{
  size_t n = strlen(name);
  if (!gr_gguf_name_ok((const uint8_t *)name, n, limit)) {
    gr_fail(&w->error, GR_ERR_USAGE, "the %s '%.80s' is not 1 to %zu printable ASCII characters", what, name, limit);
    return NULL;
  }
  const char *kept = gr_arena_strndup(&w->names, name, n);
  if (!kept) gr_fail_memory(&w->error, n);
  return kept;
}

static void put_le(gr_buf *b, uint64_t value, size_t n)
{
  uint8_t bytes[8];
  for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(value >> (8 * i));
  gr_buf_append(b, bytes, n);
}

static void put_text(gr_buf *b, const char *text, size_t n)
{
  put_le(b, n, 8);
  if (n) gr_buf_append(b, text, n);
}

/* Begins a pair: its key and type, and for an array the element type and count. False: nothing may follow. */
static bool begin_pair(gr_gguf_writer *w, const char *key, gr_gguf_type type, bool is_array, uint64_t count)
{
  if (w->error.status != GR_OK) return false;
  const char *kept = keep_name(w, "key", key, GR_GGUF_KEY_MAX);
  if (!kept) return false;
  if (!gr_grow((void **)&w->keys, &w->key_cap, w->key_count + 1, sizeof *w->keys)) {
    gr_fail_memory(&w->error, sizeof *w->keys);
    return false;
  }
  w->keys[w->key_count++] = kept;
  put_text(&w->pairs, key, strlen(key));
  if (is_array) put_le(&w->pairs, GR_GGUF_ARRAY, 4);
  put_le(&w->pairs, (uint64_t)type, 4);
  if (is_array) put_le(&w->pairs, count, 8);
  return true;
}

static void put_elements(gr_gguf_writer *w, const char *key, gr_gguf_type type, bool is_array, const void *elements, uint64_t n)
{
  size_t each = gr_gguf_scalar_bytes((uint32_t)type), bytes = 0;
  if (w->error.status == GR_OK && (!each || n > SIZE_MAX || !gr_mul_size((size_t)n, each, &bytes)))
    gr_fail(&w->error, GR_ERR_USAGE, "key '%.80s' cannot hold %llu values of type %s", key, (unsigned long long)n, gr_gguf_type_name(type));
  for (uint64_t i = 0; w->error.status == GR_OK && type == GR_GGUF_BOOL && i < n; i++)
    if (((const uint8_t *)elements)[i] > 1) gr_fail(&w->error, GR_ERR_USAGE, "key '%.80s': a truth value is 0 or 1", key);
  /* The machine is little-endian (gguf.c holds to that), so elements are copied as they are. */
  if (begin_pair(w, key, type, is_array, n) && bytes) gr_buf_append(&w->pairs, elements, bytes);
}

void gr_gguf_put_scalar(gr_gguf_writer *w, const char *key, gr_gguf_type type, const void *value)
{
  put_elements(w, key, type, false, value, 1);
}

void gr_gguf_put_array(gr_gguf_writer *w, const char *key, gr_gguf_type type, const void *elements, uint64_t n)
{
  put_elements(w, key, type, true, elements, n);
}

void gr_gguf_put_u32(gr_gguf_writer *w, const char *key, uint32_t value) { gr_gguf_put_scalar(w, key, GR_GGUF_U32, &value); }
void gr_gguf_put_u64(gr_gguf_writer *w, const char *key, uint64_t value) { gr_gguf_put_scalar(w, key, GR_GGUF_U64, &value); }
void gr_gguf_put_i32(gr_gguf_writer *w, const char *key, int32_t value) { gr_gguf_put_scalar(w, key, GR_GGUF_I32, &value); }
void gr_gguf_put_f32(gr_gguf_writer *w, const char *key, float value) { gr_gguf_put_scalar(w, key, GR_GGUF_F32, &value); }

void gr_gguf_put_bool(gr_gguf_writer *w, const char *key, bool value)
{
  uint8_t byte = value;
  gr_gguf_put_scalar(w, key, GR_GGUF_BOOL, &byte);
}

void gr_gguf_put_str(gr_gguf_writer *w, const char *key, gr_gguf_str value)
{
  if (begin_pair(w, key, GR_GGUF_STRING, false, 1)) put_text(&w->pairs, value.data, value.len);
}

void gr_gguf_put_string(gr_gguf_writer *w, const char *key, const char *text)
{
  gr_gguf_put_str(w, key, (gr_gguf_str){ text, strlen(text) });
}

void gr_gguf_put_strs(gr_gguf_writer *w, const char *key, const gr_gguf_str *values, uint64_t n)
{
  if (!begin_pair(w, key, GR_GGUF_STRING, true, n)) return;
  for (uint64_t i = 0; i < n; i++) put_text(&w->pairs, values[i].data, values[i].len);
}

void gr_gguf_put_kv(gr_gguf_writer *w, const gr_gguf_kv *kv)
{
  uint64_t alignment;
  if (strcmp(kv->key, "general.alignment") == 0 && gr_gguf_kv_u64(kv, 0, &alignment)) gr_gguf_writer_set_alignment(w, alignment);
  else if (begin_pair(w, kv->key, kv->type, kv->is_array, kv->count) && kv->bytes) gr_buf_append(&w->pairs, kv->data, kv->bytes);
}

/* ---- tensors ---- */

static void add(gr_gguf_writer *w, const char *name, entry t)
{
  if (w->error.status != GR_OK || !(t.name = keep_name(w, "tensor name", name, GR_GGUF_NAME_MAX))) return;
  if (gr_gguf_tensor_bytes(t.name, t.ggml_type, t.ne, &t.bytes, &w->error) != GR_OK) return;
  if (gr_grow((void **)&w->tensors, &w->tensor_cap, w->tensor_count + 1, sizeof *w->tensors)) w->tensors[w->tensor_count++] = t;
  else gr_fail_memory(&w->error, sizeof t);
}

static bool describe(gr_gguf_writer *w, const char *name, gr_dtype dtype, int n_dims, const int64_t *ne, entry *t)
{
  if (w->error.status != GR_OK) return false;
  if (n_dims < 0 || n_dims > 4 || gr_dtype_get(dtype)->ggml_id < 0) {
    gr_fail(&w->error, GR_ERR_USAGE, "tensor '%.80s' of %d dimensions and type %s cannot be stored", name, n_dims, gr_dtype_name(dtype));
    return false;
  }
  *t = (entry){ .ggml_type = (uint32_t)gr_dtype_get(dtype)->ggml_id, .n_dims = n_dims };
  for (int d = 0; d < 4; d++) t->ne[d] = d < n_dims ? ne[d] : 1;
  return true;
}

void gr_gguf_add_stream(gr_gguf_writer *w, const char *name, gr_dtype dtype, int n_dims, const int64_t *ne, gr_gguf_produce *produce,
                        void *ctx)
{
  entry t;
  if (!describe(w, name, dtype, n_dims, ne, &t)) return;
  t.produce = produce;
  t.ctx = ctx;
  add(w, name, t);
}

void gr_gguf_add_data(gr_gguf_writer *w, const char *name, gr_dtype dtype, int n_dims, const int64_t *ne, const void *data)
{
  entry t;
  if (!describe(w, name, dtype, n_dims, ne, &t)) return;
  t.data = data;
  if (data) add(w, name, t);
  else gr_fail(&w->error, GR_ERR_USAGE, "tensor '%.80s' has no data", name);
}

void gr_gguf_add_copy(gr_gguf_writer *w, const gr_gguf_tensor *t)
{
  entry copy = { .ggml_type = t->ggml_type, .n_dims = t->n_dims, .data = t->data };
  memcpy(copy.ne, t->ne, sizeof copy.ne);
  add(w, t->name, copy);
}

/* ---- the file ---- */

struct gr_gguf_sink {
  gr_file *file; /* or, when NULL: */
  gr_buf *memory;
  const char *name; /* of the tensor being written */
  size_t left;      /* of its bytes */
};

static gr_status put_bytes(gr_gguf_sink *sink, const void *bytes, size_t n, gr_error *e)
{
  if (sink->file) return gr_file_write(sink->file, bytes, n, e);
  if (n) gr_buf_append(sink->memory, bytes, n);
  return sink->memory->failed ? gr_fail_memory(e, n) : GR_OK;
}

gr_status gr_gguf_sink_write(gr_gguf_sink *sink, const void *bytes, size_t n, gr_error *e)
{
  if (n > sink->left) return gr_fail(e, GR_ERR_USAGE, "tensor '%s': %zu bytes too many for its shape and type", sink->name, n - sink->left);
  sink->left -= n;
  return put_bytes(sink, bytes, n, e);
}

static int compare_first(const void *a, const void *b)
{
  const char *const *x = a, *const *y = b;
  return strcmp(*x, *y);
}

/* names may be reordered. */
static gr_status check_twice(const char **names, size_t n, const char *what, gr_error *e)
{
  if (n) qsort(names, n, sizeof *names, compare_first);
  for (size_t i = 1; i < n; i++)
    if (strcmp(names[i - 1], names[i]) == 0) return gr_fail(e, GR_ERR_USAGE, "%s '%s' is given twice", what, names[i]);
  return GR_OK;
}

static gr_status check_names(const gr_gguf_writer *w, gr_error *e)
{
  size_t most = w->key_count > w->tensor_count ? w->key_count : w->tensor_count;
  const char **names = gr_calloc(most, sizeof *names);
  if (!names) return gr_fail_memory(e, most * sizeof *names);
  if (w->key_count) memcpy(names, w->keys, w->key_count * sizeof *names);
  gr_status s = check_twice(names, w->key_count, "key", e);
  for (size_t i = 0; i < w->tensor_count; i++) names[i] = w->tensors[i].name;
  if (s == GR_OK) s = check_twice(names, w->tensor_count, "tensor", e);
  gr_free(names);
  return s;
}

static uint64_t padding(uint64_t at, uint64_t alignment) { return (alignment - at % alignment) % alignment; }

/* Everything before the data: header, pairs, tensor table, padding. */
static gr_status encode_front(const gr_gguf_writer *w, gr_buf *b, gr_error *e)
{
  bool own_alignment = w->alignment != 32;
  gr_buf_append(b, "GGUF", 4);
  put_le(b, 3, 4);
  put_le(b, w->tensor_count, 8);
  put_le(b, w->key_count + own_alignment, 8);
  if (own_alignment) {
    static const char key[] = "general.alignment";
    put_text(b, key, sizeof key - 1);
    put_le(b, GR_GGUF_U32, 4);
    put_le(b, w->alignment, 4);
  }
  if (w->pairs.len) gr_buf_append(b, w->pairs.data, w->pairs.len);
  uint64_t offset = 0;
  for (size_t i = 0; i < w->tensor_count; i++) {
    const entry *t = &w->tensors[i];
    put_text(b, t->name, strlen(t->name));
    put_le(b, (uint64_t)t->n_dims, 4);
    for (int d = 0; d < t->n_dims; d++) put_le(b, (uint64_t)t->ne[d], 8);
    put_le(b, t->ggml_type, 4);
    put_le(b, offset, 8);
    if (t->bytes > INT64_MAX - w->alignment || offset > INT64_MAX - w->alignment - t->bytes)
      return gr_fail(e, GR_ERR_USAGE, "the tensors are too large for a file");
    offset += t->bytes;
    offset += padding(offset, w->alignment);
  }
  return b->failed || w->pairs.failed ? gr_fail_memory(e, w->pairs.len) : GR_OK;
}

static gr_status put_zeros(gr_gguf_sink *sink, uint64_t n, gr_error *e)
{
  static const uint8_t zeros[4096];
  while (n) {
    size_t part = n < sizeof zeros ? (size_t)n : sizeof zeros;
    GR_TRY(put_bytes(sink, zeros, part, e));
    n -= part;
  }
  return GR_OK;
}

static gr_status put_tensor(gr_gguf_sink *sink, const entry *t, gr_error *e)
{
  if (t->data) return put_bytes(sink, t->data, t->bytes, e);
  sink->name = t->name;
  sink->left = t->bytes;
  GR_TRY(t->produce(t->ctx, sink, e));
  if (sink->left) return gr_fail(e, GR_ERR_USAGE, "tensor '%s': %zu of its %zu bytes are missing", t->name, sink->left, t->bytes);
  return GR_OK;
}

static gr_status put_all(const gr_gguf_writer *w, const gr_buf *front, gr_gguf_sink *sink, gr_error *e)
{
  GR_TRY(put_bytes(sink, front->data, front->len, e));
  GR_TRY(put_zeros(sink, padding(front->len, w->alignment), e));
  for (size_t i = 0; i < w->tensor_count; i++) {
    GR_TRY(put_tensor(sink, &w->tensors[i], e));
    GR_TRY(put_zeros(sink, padding(w->tensors[i].bytes, w->alignment), e));
  }
  return GR_OK;
}

/* What can be said before the first byte is written. */
static gr_status prepare(const gr_gguf_writer *w, gr_buf *front, gr_error *e)
{
  if (w->error.status != GR_OK) return gr_fail(e, w->error.status, "%s", w->error.text);
  GR_TRY(check_names(w, e));
  return encode_front(w, front, e);
}

gr_status gr_gguf_writer_save(gr_gguf_writer *w, const char *path, gr_error *e)
{
  gr_buf front = { 0 };
  gr_file *f = NULL;
  gr_status s = prepare(w, &front, e);
  if (s != GR_OK) gr_error_context(e, "cannot write %s", path);
  else s = gr_file_create(&f, path, e);
  if (s == GR_OK) s = put_all(w, &front, &(gr_gguf_sink){ .file = f }, e);
  gr_buf_free(&front);
  if (s == GR_OK) return gr_file_commit(f, e);
  gr_file_abandon(f);
  return s;
}

gr_status gr_gguf_writer_encode(gr_gguf_writer *w, gr_buf *out, gr_error *e)
{
  gr_buf front = { 0 };
  gr_buf_clear(out);
  gr_status s = prepare(w, &front, e);
  if (s == GR_OK) s = put_all(w, &front, &(gr_gguf_sink){ .memory = out }, e);
  gr_buf_free(&front);
  return s;
}
