/* Reading GGUF model and adapter files (versions 2 and 3, little-endian), whole or in parts.
 *
 * The container is mapped, never copied: tensor data and string values point into the map, so a model costs no memory of its
 * own and several sessions share it. Everything is checked before it is handed out: counts, lengths, types, duplicate names,
 * dimensions, sizes, alignment, bounds and overlap. Memory is at most a small multiple of the file's header, time is
 * n log n in it. An open gr_gguf never changes: any number of threads may read it.
 *
 * This layer knows the container only. What keys and tensors a model needs is the model's business.
 * Format: docs/formats.md. */
#ifndef GR_IO_GGUF_H
#define GR_IO_GGUF_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/pool.h"
#include "tensor/dtype.h"

typedef struct gr_gguf gr_gguf;

/* Value types, with the numbers they have in the file. */
typedef enum gr_gguf_type {
  GR_GGUF_U8,
  GR_GGUF_I8,
  GR_GGUF_U16,
  GR_GGUF_I16,
  GR_GGUF_U32,
  GR_GGUF_I32,
  GR_GGUF_F32,
  GR_GGUF_BOOL,
  GR_GGUF_STRING,
  GR_GGUF_ARRAY,
  GR_GGUF_U64,
  GR_GGUF_I64,
  GR_GGUF_F64,
  GR_GGUF_TYPE_COUNT
} gr_gguf_type;

/* Text in the map: any bytes, NULs included, not terminated. */
typedef struct gr_gguf_str {
  const char *data;
  size_t len;
} gr_gguf_str;

typedef struct gr_gguf_kv {
  const char *key;   /* NUL-terminated printable ASCII */
  gr_gguf_type type; /* of the value, or of an array's elements: never GR_GGUF_ARRAY */
  bool is_array;
  uint64_t count;      /* elements; 1 for a scalar */
  const uint8_t *data; /* the encoded value or elements, in the map, at any alignment */
  size_t bytes;        /* of data */
} gr_gguf_kv;

typedef struct gr_gguf_tensor {
  const char *name;   /* NUL-terminated printable ASCII, 1 to 63 bytes */
  int n_dims;         /* as stored, 0 to 4 */
  int64_t ne[4];      /* elements, ne[0] contiguous; 1 beyond n_dims; never 0 */
  bool has_dtype;     /* false: one of ggml's types that Graft cannot decode; gr_gguf_check_types refuses those by name */
  gr_dtype dtype;     /* when has_dtype */
  uint32_t ggml_type; /* the number in the file */
  const void *data;   /* in the map, aligned as the file says, at least to 8 bytes */
  size_t bytes;
  int part; /* the split part that holds it */
} gr_gguf_tensor;

/* Opens a file. One that is the first part of a split (PREFIX-00001-of-0000N.gguf, split.count = N) opens the others beside
 * it; any other part is refused with the name of the first. *g is NULL on failure. */
gr_status gr_gguf_open(gr_gguf **g, const char *path, gr_error *e);

/* The same over bytes that the caller keeps alive and 8-aligned; `name` stands for the file in sentences. Splits are refused. */
gr_status gr_gguf_open_memory(gr_gguf **g, const void *bytes, size_t size, const char *name, gr_error *e);

void gr_gguf_close(gr_gguf *g); /* NULL is fine */

const char *gr_gguf_path(const gr_gguf *g); /* as given to open */
uint32_t gr_gguf_version(const gr_gguf *g);
uint32_t gr_gguf_alignment(const gr_gguf *g);
uint64_t gr_gguf_file_bytes(const gr_gguf *g); /* of all parts */
int gr_gguf_part_count(const gr_gguf *g);      /* 1 when not split */
const char *gr_gguf_part_path(const gr_gguf *g, int part);

/* ---- metadata, in file order (of the first part) ---- */

size_t gr_gguf_kv_count(const gr_gguf *g);
const gr_gguf_kv *gr_gguf_kv_at(const gr_gguf *g, size_t i);
const gr_gguf_kv *gr_gguf_find(const gr_gguf *g, const char *key); /* NULL when absent */
const char *gr_gguf_type_name(gr_gguf_type t);                     /* "u32"; "?" for a number that is no type */

/* Typed reads by key. An absent key is GR_ERR_FORMAT when GR_GGUF_REQUIRED, and leaves *out as it was (so: set the default
 * first) when GR_GGUF_OPTIONAL. A value of another type or out of range is GR_ERR_FORMAT in either case, naming file and key.
 * Integers may be stored in any integer type; f64 also takes integers, and refuses NaN and infinity. */
typedef enum gr_gguf_need { GR_GGUF_OPTIONAL, GR_GGUF_REQUIRED } gr_gguf_need;
gr_status gr_gguf_u64(const gr_gguf *g, const char *key, gr_gguf_need need, uint64_t min, uint64_t max, uint64_t *out, gr_error *e);
gr_status gr_gguf_i64(const gr_gguf *g, const char *key, gr_gguf_need need, int64_t min, int64_t max, int64_t *out, gr_error *e);
gr_status gr_gguf_f64(const gr_gguf *g, const char *key, gr_gguf_need need, double min, double max, double *out, gr_error *e);
gr_status gr_gguf_bool(const gr_gguf *g, const char *key, gr_gguf_need need, bool *out, gr_error *e);
gr_status gr_gguf_string(const gr_gguf *g, const char *key, gr_gguf_need need, gr_gguf_str *out, gr_error *e);

/* One value a layer: a scalar (which then counts for all n) or an array of exactly n integers. */
gr_status gr_gguf_u64_each(const gr_gguf *g, const char *key, gr_gguf_need need, uint64_t min, uint64_t max, size_t n, uint64_t *out,
                           gr_error *e);

/* An array whose elements are of the kind; an absent optional one leaves *out as it was. */
typedef enum gr_gguf_kind { GR_GGUF_KIND_INT, GR_GGUF_KIND_FLOAT, GR_GGUF_KIND_BOOL, GR_GGUF_KIND_STRING } gr_gguf_kind;
gr_status gr_gguf_array(const gr_gguf *g, const char *key, gr_gguf_need need, gr_gguf_kind kind, const gr_gguf_kv **out, gr_error *e);

/* Element i of a value (0 of a scalar). False when i is out of range, or the value is no number or does not fit. */
bool gr_gguf_kv_u64(const gr_gguf_kv *kv, uint64_t i, uint64_t *out);
bool gr_gguf_kv_i64(const gr_gguf_kv *kv, uint64_t i, int64_t *out);
bool gr_gguf_kv_f64(const gr_gguf_kv *kv, uint64_t i, double *out); /* integers too; NaN and infinity as stored */
bool gr_gguf_kv_bool(const gr_gguf_kv *kv, uint64_t i, bool *out);

/* Walks the strings of a value in order (a scalar string is a walk of one; any other value, of none):
 *   gr_gguf_strings it = gr_gguf_strings_of(kv);
 *   for (gr_gguf_str s; gr_gguf_strings_next(&it, &s);) ... */
typedef struct gr_gguf_strings {
  const uint8_t *at;
  uint64_t left;
} gr_gguf_strings;
gr_gguf_strings gr_gguf_strings_of(const gr_gguf_kv *kv);
bool gr_gguf_strings_next(gr_gguf_strings *it, gr_gguf_str *out);

static inline bool gr_gguf_str_is(gr_gguf_str s, const char *text)
{
  size_t i = 0;
  while (i < s.len && text[i] && s.data[i] == text[i]) i++;
  return i == s.len && !text[i];
}

/* ---- tensors, in file order, part after part ---- */

size_t gr_gguf_tensor_count(const gr_gguf *g);
const gr_gguf_tensor *gr_gguf_tensor_at(const gr_gguf *g, size_t i);
const gr_gguf_tensor *gr_gguf_tensor_find(const gr_gguf *g, const char *name); /* NULL when absent */

/* GR_ERR_UNSUPPORTED when a tensor has a type that Graft cannot decode: the sentence names types and tensors. */
gr_status gr_gguf_check_types(const gr_gguf *g, gr_error *e);

/* GR_ERR_NUMERIC when a weight decodes to NaN or infinity: the sentence names the first such tensor and element. Reads and
 * decodes every tensor of a float or quantized type (others, and those of check_types, are passed over), on the pool's
 * threads (NULL: on the caller's); the answer does not depend on how many. */
gr_status gr_gguf_check_finite(const gr_gguf *g, gr_pool *pool, gr_error *e);
gr_status gr_gguf_tensor_check_finite(const gr_gguf *g, const gr_gguf_tensor *t, gr_pool *pool, gr_error *e);

#endif
