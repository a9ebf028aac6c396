/* Reads all that an open GGUF hands out, so that a sanitizer sees any pointer or length that should not have passed. */
#ifndef GR_TESTS_GGUF_WALK_H
#define GR_TESTS_GGUF_WALK_H
#include <float.h>
#include <string.h>

#include "io/adapter.h"

static inline uint64_t walk_bytes(const void *p, size_t n)
{
  const uint8_t *bytes = p;
  uint64_t sum = n;
  for (size_t i = 0; i < n; i++) sum = sum * 31 + bytes[i];
  return sum;
}

static inline uint64_t walk_value(const gr_gguf *g, const gr_gguf_kv *kv)
{
  uint64_t sum = walk_bytes(kv->data, kv->bytes), u = 0;
  int64_t i = 0;
  double f = 0;
  bool b = false;
  for (uint64_t at = 0; at <= kv->count && at < 1000; at++) {
    sum += gr_gguf_kv_u64(kv, at, &u) + gr_gguf_kv_i64(kv, at, &i) + gr_gguf_kv_f64(kv, at, &f) + gr_gguf_kv_bool(kv, at, &b);
    sum += u + (uint64_t)i + b;
  }
  gr_gguf_strings it = gr_gguf_strings_of(kv);
  for (gr_gguf_str s; gr_gguf_strings_next(&it, &s);) sum += walk_bytes(s.data, s.len);
  gr_gguf_str s;
  const gr_gguf_kv *array;
  uint64_t each[2];
  gr_error e = { 0 };
  sum += gr_gguf_u64(g, kv->key, GR_GGUF_REQUIRED, 1, 9, &u, &e) + gr_gguf_i64(g, kv->key, GR_GGUF_REQUIRED, -9, 9, &i, &e) +
         gr_gguf_f64(g, kv->key, GR_GGUF_REQUIRED, -9, 9, &f, &e) + gr_gguf_bool(g, kv->key, GR_GGUF_REQUIRED, &b, &e) +
         gr_gguf_string(g, kv->key, GR_GGUF_REQUIRED, &s, &e) + gr_gguf_u64_each(g, kv->key, GR_GGUF_REQUIRED, 0, 9, 2, each, &e);
  for (int kind = GR_GGUF_KIND_INT; kind <= GR_GGUF_KIND_STRING; kind++)
    sum += gr_gguf_array(g, kv->key, GR_GGUF_REQUIRED, (gr_gguf_kind)kind, &array, &e);
  return sum + (gr_gguf_find(g, kv->key) == kv);
}

static inline uint64_t walk(const gr_gguf *g)
{
  gr_error e = { 0 };
  uint64_t sum = gr_gguf_version(g) + gr_gguf_alignment(g) + gr_gguf_file_bytes(g);
  for (size_t i = 0; i < gr_gguf_kv_count(g); i++) sum += walk_value(g, gr_gguf_kv_at(g, i));
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    sum += walk_bytes(t->data, t->bytes) + walk_bytes(t->name, strlen(t->name)) + (gr_gguf_tensor_find(g, t->name) == t);
  }
  return sum + gr_gguf_check_types(g, &e) + gr_gguf_check_finite(g, NULL, &e);
}

static inline uint64_t walk_adapter(const gr_adapter *a)
{
  gr_error e = { 0 };
  uint64_t sum = gr_adapter_architecture(a).len + gr_adapter_ignored(a) + (gr_adapter_alpha(a) != 0);
  for (size_t i = 0; i < gr_adapter_count(a); i++) {
    const gr_adapter_pair *p = gr_adapter_at(a, i);
    sum += walk_bytes(p->a->data, p->a->bytes) + walk_bytes(p->b->data, p->b->bytes) + (gr_adapter_scale(a, p) != 0) +
           (gr_adapter_find(a, p->base) == p);
  }
  return sum + gr_adapter_check(a, gr_adapter_gguf(a), &e);
}

#endif
