/* For tools/judge_gguf.py: files through our reader and writer. What is copied is first understood: each value is read as what
 * it means and put as that, each tensor is streamed.
 *   gguf_copy copy IN OUT      any GGUF (a split one becomes whole)
 *   gguf_copy adapter IN OUT   a LoRA adapter, written anew in F32
 *   gguf_copy sample FOLDER    the samples of tests/gguf_sample.h: model.gguf, adapter.gguf
 * Exit 1 with a sentence on failure. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/arena.h"
#include "gguf_sample.h"
#include "quant/quant.h"

static size_t element_bytes(gr_gguf_type t)
{
  static const uint8_t bytes[GR_GGUF_TYPE_COUNT] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };
  return bytes[t];
}

/* Element i, read by its meaning, as the bytes of its C type at `to`. */
static bool read_element(const gr_gguf_kv *kv, uint64_t i, unsigned char *to)
{
  uint64_t u = 0;
  int64_t s = 0;
  double f = 0;
  bool b = false;
  switch (kv->type) {
  case GR_GGUF_U8:
  case GR_GGUF_U16:
  case GR_GGUF_U32:
  case GR_GGUF_U64:
    if (!gr_gguf_kv_u64(kv, i, &u)) return false;
    memcpy(to, &u, element_bytes(kv->type));
    return true;
  case GR_GGUF_I8:
  case GR_GGUF_I16:
  case GR_GGUF_I32:
  case GR_GGUF_I64:
    if (!gr_gguf_kv_i64(kv, i, &s)) return false;
    memcpy(to, &s, element_bytes(kv->type));
    return true;
  case GR_GGUF_F32:
    if (!gr_gguf_kv_f64(kv, i, &f)) return false;
    memcpy(to, &(float){ (float)f }, sizeof(float));
    return true;
  case GR_GGUF_F64:
    if (!gr_gguf_kv_f64(kv, i, &f)) return false;
    memcpy(to, &f, sizeof f);
    return true;
  case GR_GGUF_BOOL:
    if (!gr_gguf_kv_bool(kv, i, &b)) return false;
    *to = b;
    return true;
  default: return false;
  }
}

static gr_status put_strings(gr_gguf_writer *w, const gr_gguf_kv *kv, gr_error *e)
{
  gr_gguf_str *all = gr_calloc((size_t)kv->count, sizeof *all);
  if (!all) return gr_fail_memory(e, (size_t)kv->count * sizeof *all);
  gr_gguf_strings it = gr_gguf_strings_of(kv);
  uint64_t n = 0;
  while (n < kv->count && gr_gguf_strings_next(&it, &all[n])) n++;
  if (kv->is_array) gr_gguf_put_strs(w, kv->key, all, n);
  else gr_gguf_put_str(w, kv->key, all[0]);
  gr_free(all);
  return n == kv->count ? GR_OK : gr_fail(e, GR_ERR_FORMAT, "%s: only %llu strings", kv->key, (unsigned long long)n);
}

static gr_status put_value(gr_gguf_writer *w, const gr_gguf_kv *kv, gr_error *e)
{
  if (kv->type == GR_GGUF_STRING) return put_strings(w, kv, e);
  size_t each = element_bytes(kv->type);
  unsigned char *bytes = gr_calloc((size_t)kv->count, each);
  if (!bytes) return gr_fail_memory(e, (size_t)kv->count * each);
  bool ok = true;
  for (uint64_t i = 0; i < kv->count; i++) ok &= read_element(kv, i, bytes + i * each);
  if (kv->is_array) gr_gguf_put_array(w, kv->key, kv->type, bytes, kv->count);
  else gr_gguf_put_scalar(w, kv->key, kv->type, bytes);
  gr_free(bytes);
  return ok ? GR_OK : gr_fail(e, GR_ERR_FORMAT, "%s: unreadable", kv->key);
}

static gr_status stream(void *ctx, gr_gguf_sink *sink, gr_error *e)
{
  const gr_gguf_tensor *t = ctx;
  for (size_t at = 0, n; at < t->bytes; at += n) {
    n = t->bytes - at < 1000 ? t->bytes - at : 1000;
    GR_TRY(gr_gguf_sink_write(sink, (const unsigned char *)t->data + at, n, e));
  }
  return GR_OK;
}

static gr_status copy(const char *in, const char *out, gr_error *e)
{
  gr_gguf *g;
  gr_gguf_writer *w = NULL;
  GR_TRY(gr_gguf_open(&g, in, e));
  gr_status s = gr_gguf_writer_create(&w, e);
  for (size_t i = 0; i < gr_gguf_kv_count(g) && s == GR_OK; i++) {
    const gr_gguf_kv *kv = gr_gguf_kv_at(g, i);
    if (strcmp(kv->key, "general.alignment") == 0) gr_gguf_writer_set_alignment(w, gr_gguf_alignment(g));
    else if (strncmp(kv->key, "split.", 6) != 0) s = put_value(w, kv, e);
  }
  for (size_t i = 0; i < gr_gguf_tensor_count(g) && s == GR_OK; i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    if (t->has_dtype) gr_gguf_add_stream(w, t->name, t->dtype, t->n_dims, t->ne, stream, (void *)(uintptr_t)t);
    else gr_gguf_add_copy(w, t);
  }
  if (s == GR_OK) s = gr_gguf_writer_save(w, out, e);
  gr_gguf_writer_free(w);
  gr_gguf_close(g);
  return s;
}

static float *decoded(gr_arena *memory, const gr_gguf_tensor *t)
{
  int64_t n = t->ne[0] * t->ne[1] * t->ne[2];
  float *x = gr_arena_alloc(memory, (size_t)n * sizeof *x);
  if (x) gr_quant_decoder(t->dtype)(t->data, x, n);
  return x;
}

static gr_status copy_adapter(const char *in, const char *out, gr_error *e)
{
  gr_adapter *a;
  gr_arena memory = { 0 };
  GR_TRY(gr_adapter_open(&a, in, e));
  size_t n = gr_adapter_count(a);
  gr_adapter_out *pairs = gr_arena_alloc(&memory, n * sizeof *pairs);
  gr_gguf_str architecture = gr_adapter_architecture(a);
  char *text = gr_arena_strndup(&memory, architecture.data, architecture.len);
  gr_status s = pairs && text ? GR_OK : gr_fail_memory(e, n * sizeof *pairs);
  for (size_t i = 0; i < n && s == GR_OK; i++) {
    const gr_adapter_pair *p = gr_adapter_at(a, i);
    pairs[i] = (gr_adapter_out){ p->base, p->in, p->out, p->experts, p->rank, decoded(&memory, p->a), decoded(&memory, p->b) };
  }
  if (s == GR_OK)
    s = gr_adapter_save(
        out, &(gr_adapter_info){ .architecture = text, .name = "rewritten", .alpha = gr_adapter_alpha(a), .pairs = pairs, .pair_count = n },
        e);
  gr_arena_free(&memory);
  gr_adapter_close(a);
  return s;
}

static gr_status save_samples(const char *folder, gr_error *e)
{
  char path[4096];
  snprintf(path, sizeof path, "%s/model.gguf", folder);
  GR_TRY(sample_model_save(path, 64, e));
  snprintf(path, sizeof path, "%s/adapter.gguf", folder);
  return sample_adapter_save(path, e);
}

int main(int argc, char **argv)
{
  gr_error e = { 0 };
  gr_status s = GR_ERR_USAGE;
  if (argc == 4 && strcmp(argv[1], "copy") == 0) s = copy(argv[2], argv[3], &e);
  else if (argc == 4 && strcmp(argv[1], "adapter") == 0) s = copy_adapter(argv[2], argv[3], &e);
  else if (argc == 3 && strcmp(argv[1], "sample") == 0) s = save_samples(argv[2], &e);
  if (s != GR_OK) fprintf(stderr, "%s\n", e.text);
  return s != GR_OK;
}
