/* Typed access to metadata values. */
#include <inttypes.h>
#include <math.h>

#include "base/cursor.h"
#include "io/gguf.h"

const char *gr_gguf_type_name(gr_gguf_type t)
{
  static const char *const names[GR_GGUF_TYPE_COUNT] = { "u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                         "bool", "string", "array", "u64", "i64", "f64" };
  return (unsigned)t < GR_GGUF_TYPE_COUNT ? names[t] : "?";
}

static const char *shown_type(const gr_gguf_kv *kv) { return kv->is_array ? "array" : gr_gguf_type_name(kv->type); }

/* Bytes of an integer type, 0 for the others. */
static size_t integer_bytes(gr_gguf_type t)
{
  switch (t) {
  case GR_GGUF_U8:
  case GR_GGUF_I8: return 1;
  case GR_GGUF_U16:
  case GR_GGUF_I16: return 2;
  case GR_GGUF_U32:
  case GR_GGUF_I32: return 4;
  case GR_GGUF_U64:
  case GR_GGUF_I64: return 8;
  default: return 0;
  }
}

static bool is_signed(gr_gguf_type t) { return t == GR_GGUF_I8 || t == GR_GGUF_I16 || t == GR_GGUF_I32 || t == GR_GGUF_I64; }

/* The value of an integer element as sign and magnitude: both 64-bit ranges fit. */
static bool read_integer(const gr_gguf_kv *kv, uint64_t i, bool *negative, uint64_t *magnitude)
{
  size_t n = integer_bytes(kv->type);
  if (!n || i >= kv->count) return false;
  uint64_t bits = gr_load_le(kv->data + i * n, n);
  uint64_t sign = UINT64_C(1) << (8 * n - 1);
  *negative = is_signed(kv->type) && (bits & sign);
  *magnitude = *negative ? (sign - (bits & (sign - 1))) : bits;
  return true;
}

bool gr_gguf_kv_u64(const gr_gguf_kv *kv, uint64_t i, uint64_t *out)
{
  bool negative;
  uint64_t magnitude;
  if (!read_integer(kv, i, &negative, &magnitude) || negative) return false;
  *out = magnitude;
  return true;
}

bool gr_gguf_kv_i64(const gr_gguf_kv *kv, uint64_t i, int64_t *out)
{
  bool negative;
  uint64_t magnitude;
  if (!read_integer(kv, i, &negative, &magnitude)) return false;
  if (!negative && magnitude > INT64_MAX) return false;
  *out = negative ? -(int64_t)(magnitude - 1) - 1 : (int64_t)magnitude;
  return true;
}

bool gr_gguf_kv_f64(const gr_gguf_kv *kv, uint64_t i, double *out)
{
  if (i >= kv->count) return false;
  gr_cursor in = { kv->data, kv->bytes, 0, false };
  if (kv->type == GR_GGUF_F32) {
    in.at = (size_t)i * 4;
    *out = (double)gr_cursor_f32(&in);
    return true;
  }
  if (kv->type == GR_GGUF_F64) {
    in.at = (size_t)i * 8;
    *out = gr_cursor_f64(&in);
    return true;
  }
  bool negative;
  uint64_t magnitude;
  if (!read_integer(kv, i, &negative, &magnitude)) return false;
  *out = negative ? -(double)magnitude : (double)magnitude;
  return true;
}

bool gr_gguf_kv_bool(const gr_gguf_kv *kv, uint64_t i, bool *out)
{
  if (kv->type != GR_GGUF_BOOL || i >= kv->count) return false;
  *out = kv->data[i];
  return true;
}

gr_gguf_strings gr_gguf_strings_of(const gr_gguf_kv *kv)
{
  return kv->type == GR_GGUF_STRING ? (gr_gguf_strings){ kv->data, kv->count } : (gr_gguf_strings){ 0 };
}

bool gr_gguf_strings_next(gr_gguf_strings *it, gr_gguf_str *out)
{
  if (!it->left) return false;
  size_t len = (size_t)gr_load_le(it->at, 8); /* checked against the file when it was opened */
  *out = (gr_gguf_str){ (const char *)it->at + 8, len };
  it->at += 8 + len;
  it->left--;
  return true;
}

/* *kv is NULL when an optional key is absent. */
static gr_status lookup(const gr_gguf *g, const char *key, gr_gguf_need need, const gr_gguf_kv **kv, gr_error *e)
{
  *kv = gr_gguf_find(g, key);
  if (!*kv && need == GR_GGUF_REQUIRED) return gr_fail(e, GR_ERR_FORMAT, "%s: metadata key '%s' is missing", gr_gguf_path(g), key);
  return GR_OK;
}

static gr_status wrong_type(const gr_gguf *g, const gr_gguf_kv *kv, const char *wanted, gr_error *e)
{
  return gr_fail(e, GR_ERR_FORMAT, "%s: metadata key '%s' is of type %s where %s is needed", gr_gguf_path(g), kv->key, shown_type(kv),
                 wanted);
}

static gr_status u64_element(const gr_gguf *g, const gr_gguf_kv *kv, uint64_t i, uint64_t min, uint64_t max, uint64_t *out, gr_error *e)
{
  bool negative;
  uint64_t magnitude;
  if (!read_integer(kv, i, &negative, &magnitude)) return wrong_type(g, kv, "an integer", e);
  if (negative || magnitude < min || magnitude > max)
    return gr_fail(e, GR_ERR_FORMAT, "%s: metadata key '%s' is %s%" PRIu64 ", outside %" PRIu64 " to %" PRIu64, gr_gguf_path(g), kv->key,
                   negative ? "-" : "", magnitude, min, max);
  *out = magnitude;
  return GR_OK;
}

gr_status gr_gguf_u64(const gr_gguf *g, const char *key, gr_gguf_need need, uint64_t min, uint64_t max, uint64_t *out, gr_error *e)
{
  const gr_gguf_kv *kv;
  GR_TRY(lookup(g, key, need, &kv, e));
  if (!kv) return GR_OK;
  if (kv->is_array) return wrong_type(g, kv, "an integer", e);
  return u64_element(g, kv, 0, min, max, out, e);
}

gr_status gr_gguf_u64_each(const gr_gguf *g, const char *key, gr_gguf_need need, uint64_t min, uint64_t max, size_t n, uint64_t *out,
                           gr_error *e)
{
  const gr_gguf_kv *kv;
  GR_TRY(lookup(g, key, need, &kv, e));
  if (!kv) return GR_OK;
  if (kv->is_array && !integer_bytes(kv->type)) return wrong_type(g, kv, "an integer, or an array of integers,", e);
  if (kv->is_array && kv->count != n)
    return gr_fail(e, GR_ERR_FORMAT, "%s: metadata key '%s' has %" PRIu64 " values where %zu are needed", gr_gguf_path(g), key, kv->count,
                   n);
  for (size_t i = 0; i < n; i++) GR_TRY(u64_element(g, kv, kv->is_array ? i : 0, min, max, &out[i], e));
  return GR_OK;
}

gr_status gr_gguf_i64(const gr_gguf *g, const char *key, gr_gguf_need need, int64_t min, int64_t max, int64_t *out, gr_error *e)
{
  const gr_gguf_kv *kv;
  GR_TRY(lookup(g, key, need, &kv, e));
  if (!kv) return GR_OK;
  bool negative;
  uint64_t magnitude;
  int64_t value = 0;
  if (kv->is_array || !read_integer(kv, 0, &negative, &magnitude)) return wrong_type(g, kv, "an integer", e);
  if (!gr_gguf_kv_i64(kv, 0, &value) || value < min || value > max)
    return gr_fail(e, GR_ERR_FORMAT, "%s: metadata key '%s' is %s%" PRIu64 ", outside %" PRId64 " to %" PRId64, gr_gguf_path(g), key,
                   negative ? "-" : "", magnitude, min, max);
  *out = value;
  return GR_OK;
}

gr_status gr_gguf_f64(const gr_gguf *g, const char *key, gr_gguf_need need, double min, double max, double *out, gr_error *e)
{
  const gr_gguf_kv *kv;
  GR_TRY(lookup(g, key, need, &kv, e));
  if (!kv) return GR_OK;
  double value = 0;
  if (kv->is_array || !gr_gguf_kv_f64(kv, 0, &value)) return wrong_type(g, kv, "a number", e);
  if (!isfinite(value) || value < min || value > max)
    return gr_fail(e, GR_ERR_FORMAT, "%s: metadata key '%s' is %g, outside %g to %g", gr_gguf_path(g), key, value, min, max);
  *out = value;
  return GR_OK;
}

gr_status gr_gguf_bool(const gr_gguf *g, const char *key, gr_gguf_need need, bool *out, gr_error *e)
{
  const gr_gguf_kv *kv;
  GR_TRY(lookup(g, key, need, &kv, e));
  if (!kv) return GR_OK;
  if (kv->is_array || !gr_gguf_kv_bool(kv, 0, out)) return wrong_type(g, kv, "a truth value", e);
  return GR_OK;
}

gr_status gr_gguf_string(const gr_gguf *g, const char *key, gr_gguf_need need, gr_gguf_str *out, gr_error *e)
{
  const gr_gguf_kv *kv;
  GR_TRY(lookup(g, key, need, &kv, e));
  if (!kv) return GR_OK;
  if (kv->is_array || kv->type != GR_GGUF_STRING) return wrong_type(g, kv, "a string", e);
  gr_gguf_strings it = gr_gguf_strings_of(kv);
  gr_gguf_strings_next(&it, out);
  return GR_OK;
}

gr_status gr_gguf_array(const gr_gguf *g, const char *key, gr_gguf_need need, gr_gguf_kind kind, const gr_gguf_kv **out, gr_error *e)
{
  static const char *const wanted[] = { "an array of integers", "an array of floats", "an array of truth values", "an array of strings" };
  const gr_gguf_kv *kv;
  GR_TRY(lookup(g, key, need, &kv, e));
  if (!kv) return GR_OK;
  bool fits = false;
  switch (kind) {
  case GR_GGUF_KIND_INT: fits = integer_bytes(kv->type) != 0; break;
  case GR_GGUF_KIND_FLOAT: fits = kv->type == GR_GGUF_F32 || kv->type == GR_GGUF_F64; break;
  case GR_GGUF_KIND_BOOL: fits = kv->type == GR_GGUF_BOOL; break;
  case GR_GGUF_KIND_STRING: fits = kv->type == GR_GGUF_STRING; break;
  }
  if (!kv->is_array) return wrong_type(g, kv, wanted[kind], e);
  if (!fits)
    return gr_fail(e, GR_ERR_FORMAT, "%s: metadata key '%s' is an array of %s where %s is needed", gr_gguf_path(g), key,
                   gr_gguf_type_name(kv->type), wanted[kind]);
  *out = kv;
  return GR_OK;
}
