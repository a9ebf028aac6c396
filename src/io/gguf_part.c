/* One GGUF file's bytes into tables of values and tensors. Every number from the file is checked before it is used for
 * arithmetic, allocation or addressing: a count is first compared with what the rest of the file could hold, so memory stays
 * in proportion to the file. Duplicate names are found by sorting, not hashing: no choice of names makes that quadratic. */
#include "io/gguf_part.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/cursor.h"

#define PAIR_BYTES_MIN 14   /* key length 8, key 1, type 4, value 1 */
#define TENSOR_BYTES_MIN 25 /* name length 8, name 1, n_dims 4, type 4, offset 8 */

/* ggml's types that Graft has no decoder for: a file with them still opens, so that `inspect` can say what it is and a refusal
 * can name the tensors. Sizes: ggml-common.h, and GGML_QUANT_SIZES of the gguf package 0.19. Q8_1 (9) and Q8_K (15) hold
 * activations and never stand in a file. */
static const struct other_block {
  uint32_t ggml_type;
  int32_t elems, bytes;
} other_blocks[] = {
  { 16, 256, 66 }, { 17, 256, 74 }, { 18, 256, 98 }, { 19, 256, 50 }, { 21, 256, 110 }, { 22, 256, 82 },
  { 29, 256, 56 }, { 34, 256, 54 }, { 35, 256, 66 }, { 40, 64, 36 },  { 41, 128, 18 },  { 42, 64, 18 },
};

bool gr_gguf_block_of(uint32_t ggml_type, int32_t *elems, int32_t *bytes)
{
  gr_dtype t;
  if (gr_dtype_from_ggml(ggml_type, &t)) {
    *elems = gr_dtype_get(t)->block_elems;
    *bytes = gr_dtype_get(t)->block_bytes;
    return true;
  }
  for (size_t i = 0; i < sizeof other_blocks / sizeof *other_blocks; i++)
    if (other_blocks[i].ggml_type == ggml_type) {
      *elems = other_blocks[i].elems;
      *bytes = other_blocks[i].bytes;
      return true;
    }
  return false;
}

bool gr_gguf_name_ok(const uint8_t *name, uint64_t len, uint64_t limit)
{
  if (len == 0 || len > limit) return false;
  for (uint64_t i = 0; i < len; i++)
    if (name[i] < 0x20 || name[i] > 0x7e) return false;
  return true;
}

size_t gr_gguf_scalar_bytes(uint32_t type)
{
  static const uint8_t bytes[GR_GGUF_TYPE_COUNT] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
  return type < GR_GGUF_TYPE_COUNT ? bytes[type] : 0;
}

typedef struct parser {
  gr_gguf_part *part;
  gr_cursor in;
  gr_arena *names;
  gr_error *e;
} parser;

static gr_status fail_end(const parser *p, const char *what, uint64_t number)
{
  return gr_fail(p->e, GR_ERR_FORMAT, "the file ends inside %s %llu (it has %zu bytes); it is truncated or damaged", what,
                 (unsigned long long)number, p->part->size);
}

static gr_status parse_header(parser *p, uint64_t *n_tensors, uint64_t *n_kv)
{
  if (p->part->size == 0) return gr_fail(p->e, GR_ERR_FORMAT, "the file is empty: copy or download it again");
  const uint8_t *magic = gr_cursor_take(&p->in, 4);
  if (!magic || memcmp(magic, "GGUF", 4) != 0)
    return gr_fail(p->e, GR_ERR_FORMAT,
                   "not a GGUF file, which begins with the four bytes \"GGUF\": convert the model to GGUF, or name another "
                   "file");
  uint32_t version = gr_cursor_u32(&p->in);
  if (p->in.failed) return gr_fail(p->e, GR_ERR_FORMAT, "the file ends inside the header (it has %zu bytes)", p->part->size);
  /* The format has no byte-order mark; a small number read backwards has nothing in its low half. */
  if (version && (version & 0xffff) == 0)
    return gr_fail(p->e, GR_ERR_UNSUPPORTED, "a big-endian GGUF file (its version reads 0x%08x); convert it to little-endian", version);
  if (version == 1) return gr_fail(p->e, GR_ERR_UNSUPPORTED, "GGUF version 1, which is no longer in use; convert the model again");
  if (version != 2 && version != 3) return gr_fail(p->e, GR_ERR_UNSUPPORTED, "GGUF version %u; versions 2 and 3 are supported", version);
  p->part->version = version;
  *n_tensors = gr_cursor_u64(&p->in);
  *n_kv = gr_cursor_u64(&p->in);
  if (p->in.failed) return gr_fail(p->e, GR_ERR_FORMAT, "the file ends inside the header (it has %zu bytes)", p->part->size);
  size_t left = gr_cursor_left(&p->in);
  if (*n_kv > left / PAIR_BYTES_MIN)
    return gr_fail(p->e, GR_ERR_FORMAT, "the header announces %llu metadata values, more than a file of %zu bytes can hold",
                   (unsigned long long)*n_kv, p->part->size);
  if (*n_tensors > left / TENSOR_BYTES_MIN)
    return gr_fail(p->e, GR_ERR_FORMAT, "the header announces %llu tensors, more than a file of %zu bytes can hold",
                   (unsigned long long)*n_tensors, p->part->size);
  return GR_OK;
}

/* Length-prefixed bytes in place; NULL (and a failed cursor) when they pass the end. */
static const uint8_t *take_string(gr_cursor *in, uint64_t *len)
{
  *len = gr_cursor_u64(in);
  if (in->failed || *len > gr_cursor_left(in)) {
    in->failed = true;
    return NULL;
  }
  return gr_cursor_take(in, (size_t)*len);
}

static gr_status parse_name(parser *p, const char *what, uint64_t number, uint64_t limit, const char **out)
{
  size_t at = p->in.at;
  uint64_t len;
  const uint8_t *bytes = take_string(&p->in, &len);
  if (!bytes) return fail_end(p, what, number);
  if (!gr_gguf_name_ok(bytes, len, limit))
    return gr_fail(p->e, GR_ERR_FORMAT, "the name of %s %llu (at byte %zu, %llu long) is not 1 to %llu printable ASCII characters", what,
                   (unsigned long long)number, at, (unsigned long long)len, (unsigned long long)limit);
  char *name = gr_arena_strndup(p->names, (const char *)bytes, (size_t)len);
  if (!name) return gr_fail_memory(p->e, (size_t)len);
  *out = name;
  return GR_OK;
}

static gr_status check_bools(parser *p, const gr_gguf_kv *kv)
{
  for (size_t i = 0; i < kv->bytes; i++)
    if (kv->data[i] > 1) return gr_fail(p->e, GR_ERR_FORMAT, "key '%.100s' holds %u where a truth value is 0 or 1", kv->key, kv->data[i]);
  return GR_OK;
}

/* The elements of kv (type and count known): sets data and bytes. */
static gr_status parse_elements(parser *p, gr_gguf_kv *kv)
{
  size_t each = kv->type == GR_GGUF_STRING ? 8 : gr_gguf_scalar_bytes(kv->type);
  size_t left = gr_cursor_left(&p->in), at = p->in.at;
  if (kv->count > left / each)
    return gr_fail(p->e, GR_ERR_FORMAT, "key '%.100s' at byte %zu announces %llu values of type %s, but only %zu bytes of the file remain",
                   kv->key, at, (unsigned long long)kv->count, gr_gguf_type_name(kv->type), left);
  kv->data = p->in.data + at;
  if (kv->type != GR_GGUF_STRING) {
    kv->bytes = (size_t)kv->count * each;
    gr_cursor_take(&p->in, kv->bytes);
    return kv->type == GR_GGUF_BOOL ? check_bools(p, kv) : GR_OK;
  }
  for (uint64_t i = 0; i < kv->count; i++) {
    uint64_t len;
    size_t string_at = p->in.at;
    if (!take_string(&p->in, &len))
      return gr_fail(p->e, GR_ERR_FORMAT, "string %llu of key '%.100s' (at byte %zu) is %llu bytes long, past the end of the file",
                     (unsigned long long)i, kv->key, string_at, (unsigned long long)len);
  }
  kv->bytes = p->in.at - at;
  return GR_OK;
}

static gr_status parse_pair(parser *p, uint64_t number, gr_gguf_kv *kv)
{
  GR_TRY(parse_name(p, "metadata pair", number, GR_GGUF_KEY_MAX, &kv->key));
  uint32_t type = gr_cursor_u32(&p->in);
  kv->count = 1;
  kv->is_array = type == GR_GGUF_ARRAY;
  if (kv->is_array) {
    type = gr_cursor_u32(&p->in);
    kv->count = gr_cursor_u64(&p->in);
  }
  if (p->in.failed) return fail_end(p, "metadata pair", number);
  if (type == GR_GGUF_ARRAY)
    return gr_fail(p->e, GR_ERR_UNSUPPORTED, "key '%.100s' is an array of arrays, which no GGUF writer makes", kv->key);
  if (type >= GR_GGUF_TYPE_COUNT) return gr_fail(p->e, GR_ERR_FORMAT, "key '%.100s' has the unknown value type %u", kv->key, type);
  kv->type = (gr_gguf_type)type;
  return parse_elements(p, kv);
}

static int compare_keys(const void *a, const void *b)
{
  const gr_gguf_kv *const *x = a, *const *y = b;
  return strcmp((*x)->key, (*y)->key);
}

static int compare_key_with(const void *key, const void *entry)
{
  const gr_gguf_kv *const *kv = entry;
  return strcmp(key, (*kv)->key);
}

const gr_gguf_kv *gr_gguf_part_find(const gr_gguf_part *part, const char *key)
{
  if (!part->kv_count) return NULL;
  gr_gguf_kv **hit = bsearch(key, part->kv_index, part->kv_count, sizeof *part->kv_index, compare_key_with);
  return hit ? *hit : NULL;
}

static gr_status parse_metadata(parser *p, uint64_t n)
{
  gr_gguf_part *part = p->part;
  part->kv = gr_calloc((size_t)n, sizeof *part->kv);
  part->kv_index = gr_calloc((size_t)n, sizeof *part->kv_index);
  if (!part->kv || !part->kv_index) return gr_fail_memory(p->e, (size_t)n * sizeof *part->kv);
  for (uint64_t i = 0; i < n; i++) {
    GR_TRY(parse_pair(p, i, &part->kv[i]));
    part->kv_index[i] = &part->kv[i];
  }
  part->kv_count = (size_t)n;
  if (n) qsort(part->kv_index, (size_t)n, sizeof *part->kv_index, compare_keys);
  for (size_t i = 1; i < n; i++)
    if (compare_keys(&part->kv_index[i - 1], &part->kv_index[i]) == 0)
      return gr_fail(p->e, GR_ERR_FORMAT, "key '%.100s' stands in the file twice", part->kv_index[i]->key);
  return GR_OK;
}

static gr_status parse_alignment(parser *p)
{
  uint64_t alignment = 32;
  const gr_gguf_kv *kv = gr_gguf_part_find(p->part, "general.alignment");
  if (kv && (kv->is_array || !gr_gguf_kv_u64(kv, 0, &alignment)))
    return gr_fail(p->e, GR_ERR_FORMAT, "key 'general.alignment' is of type %s, not a number of bytes",
                   kv->is_array ? "array" : gr_gguf_type_name(kv->type));
  if (alignment < 8 || alignment > UINT32_C(1) << 31 || (alignment & (alignment - 1)))
    return gr_fail(p->e, GR_ERR_FORMAT, "general.alignment is %llu, not a power of two from 8 to 2^31", (unsigned long long)alignment);
  p->part->alignment = (uint32_t)alignment;
  return GR_OK;
}

gr_status gr_gguf_tensor_bytes(const char *name, uint32_t ggml_type, const int64_t ne[4], size_t *out, gr_error *e)
{
  int32_t elems = 0, block = 0;
  if (!gr_gguf_block_of(ggml_type, &elems, &block)) {
    const char *type = gr_ggml_type_name(ggml_type);
    return gr_fail(e, GR_ERR_FORMAT, "tensor '%s' has type %u%s%s%s, which cannot stand in a file", name, ggml_type, type ? " (" : "",
                   type ? type : "", type ? ")" : "");
  }
  for (int d = 0; d < 4; d++)
    if (ne[d] <= 0) return gr_fail(e, GR_ERR_FORMAT, "tensor '%s': dimension %d is %lld", name, d, (long long)ne[d]);
  if (ne[0] % elems)
    return gr_fail(e, GR_ERR_FORMAT, "tensor '%s' has rows of %lld elements, not a multiple of the %d in a block of %s", name,
                   (long long)ne[0], elems, gr_ggml_type_name(ggml_type));
  size_t bytes = (size_t)block;
  int64_t count = 1;
  bool fits = gr_mul_size(bytes, (size_t)(ne[0] / elems), &bytes);
  for (int d = 0; d < 4 && fits; d++) {
    fits = ne[d] <= INT64_MAX / count;
    if (fits) count *= ne[d];
    if (fits && d > 0) fits = gr_mul_size(bytes, (size_t)ne[d], &bytes);
  }
  if (!fits)
    return gr_fail(e, GR_ERR_FORMAT, "tensor '%s' has dimensions %lld x %lld x %lld x %lld, whose product overflows", name,
                   (long long)ne[0], (long long)ne[1], (long long)ne[2], (long long)ne[3]);
  *out = bytes;
  return GR_OK;
}

/* The offset is relative to the data section, whose place is not known before the last of these is read: data is set later. */
static gr_status parse_tensor(parser *p, uint64_t number, gr_gguf_tensor *t, uint64_t *offset)
{
  GR_TRY(parse_name(p, "tensor", number, GR_GGUF_NAME_MAX, &t->name));
  uint32_t n_dims = gr_cursor_u32(&p->in);
  if (!p->in.failed && n_dims > 4) return gr_fail(p->e, GR_ERR_FORMAT, "tensor '%s' has %u dimensions; 4 is the most", t->name, n_dims);
  t->n_dims = (int)n_dims;
  for (int d = 0; d < 4; d++) {
    uint64_t ne = d < t->n_dims ? gr_cursor_u64(&p->in) : 1;
    if (ne > INT64_MAX) return gr_fail(p->e, GR_ERR_FORMAT, "tensor '%s': dimension %d is %llu", t->name, d, (unsigned long long)ne);
    t->ne[d] = (int64_t)ne;
  }
  t->ggml_type = gr_cursor_u32(&p->in);
  *offset = gr_cursor_u64(&p->in);
  if (p->in.failed) return fail_end(p, "tensor", number);
  t->has_dtype = gr_dtype_from_ggml(t->ggml_type, &t->dtype);
  return gr_gguf_tensor_bytes(t->name, t->ggml_type, t->ne, &t->bytes, p->e);
}

static gr_status place_tensor(parser *p, gr_gguf_tensor *t, uint64_t offset, uint64_t data_at)
{
  const gr_gguf_part *part = p->part;
  if (offset % part->alignment)
    return gr_fail(p->e, GR_ERR_FORMAT, "tensor '%s' is at offset %llu, not a multiple of the alignment %u", t->name,
                   (unsigned long long)offset, part->alignment);
  if (data_at > part->size || offset > part->size - data_at || t->bytes > part->size - data_at - offset)
    return gr_fail(p->e, GR_ERR_FORMAT,
                   "tensor '%s' (%zu bytes at offset %llu of the data) is past the end of the file (%zu bytes); it is truncated or damaged",
                   t->name, t->bytes, (unsigned long long)offset, part->size);
  t->data = part->bytes + data_at + offset;
  return GR_OK;
}

static int compare_places(const void *a, const void *b)
{
  const gr_gguf_tensor *const *x = a, *const *y = b;
  const uint8_t *p = (*x)->data, *q = (*y)->data;
  return (p > q) - (p < q);
}

static gr_status check_overlap(parser *p)
{
  const gr_gguf_part *part = p->part;
  size_t n = part->tensor_count;
  if (n < 2) return GR_OK;
  const gr_gguf_tensor **by_place = gr_calloc(n, sizeof *by_place);
  if (!by_place) return gr_fail_memory(p->e, n * sizeof *by_place);
  for (size_t i = 0; i < n; i++) by_place[i] = &part->tensors[i];
  qsort(by_place, n, sizeof *by_place, compare_places);
  gr_status s = GR_OK;
  for (size_t i = 1; i < n && s == GR_OK; i++) {
    const gr_gguf_tensor *before = by_place[i - 1], *t = by_place[i];
    if ((const uint8_t *)before->data + before->bytes > (const uint8_t *)t->data)
      s = gr_fail(p->e, GR_ERR_FORMAT, "tensors '%s' and '%s' overlap in the file", before->name, t->name);
  }
  gr_free(by_place);
  return s;
}

static gr_status parse_tensors(parser *p, uint64_t n)
{
  gr_gguf_part *part = p->part;
  part->tensors = gr_calloc((size_t)n, sizeof *part->tensors);
  uint64_t *offsets = gr_calloc((size_t)n, sizeof *offsets);
  gr_status s = part->tensors && offsets ? GR_OK : gr_fail_memory(p->e, (size_t)n * sizeof *part->tensors);
  for (uint64_t i = 0; i < n && s == GR_OK; i++) s = parse_tensor(p, i, &part->tensors[i], &offsets[i]);
  uint64_t data_at = ((uint64_t)p->in.at + part->alignment - 1) & ~((uint64_t)part->alignment - 1);
  for (uint64_t i = 0; i < n && s == GR_OK; i++) s = place_tensor(p, &part->tensors[i], offsets[i], data_at);
  gr_free(offsets);
  GR_TRY(s);
  part->tensor_count = (size_t)n;
  return check_overlap(p);
}

gr_status gr_gguf_part_parse(gr_gguf_part *part, gr_arena *names, gr_error *e)
{
  parser p = { part, { part->bytes, part->size, 0, false }, names, e };
  uint64_t n_tensors = 0, n_kv = 0;
  GR_TRY(parse_header(&p, &n_tensors, &n_kv));
  GR_TRY(parse_metadata(&p, n_kv));
  GR_TRY(parse_alignment(&p));
  return parse_tensors(&p, n_tensors);
}

void gr_gguf_part_deinit(gr_gguf_part *part)
{
  gr_free(part->kv);
  gr_free(part->kv_index);
  gr_free(part->tensors);
  gr_map_close(&part->map);
  *part = (gr_gguf_part){ 0 };
}
