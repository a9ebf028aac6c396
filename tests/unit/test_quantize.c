#include "check.h"

#include <math.h>
#include <sys/stat.h>

#include "base/file.h"
#include "failing_alloc.h"
#include "gguf_sample.h"
#include "io/quantize.h"
#include "quant/quant.h"
#include "scratch.h"

enum { MOST = 256 * 48 };

typedef struct made_tensor {
  const char *name;
  gr_dtype dtype;
  int n_dims;
  int64_t ne[4];
} made_tensor;

/* Every rule of what is encoded, and every fallback. */
static const made_tensor made[] = {
  { "token_embd.weight", GR_F32, 2, { 256, 48 } },
  { "blk.0.attn_norm.weight", GR_F32, 1, { 256 } },
  { "blk.0.attn_q.weight", GR_F16, 2, { 256, 20 } },
  { "blk.0.attn_k.weight", GR_BF16, 2, { 512, 3 } },
  { "blk.0.attn_k_norm.weight", GR_F32, 2, { 256, 2 } },
  { "blk.0.attn_v.weight", GR_F64, 2, { 256, 2 } },
  { "blk.0.ffn_gate_inp.weight", GR_F32, 2, { 256, 4 } },
  { "blk.0.ffn_gate_inp_shexp.weight", GR_F16, 2, { 256, 1 } },
  { "blk.0.ffn_up_exps.weight", GR_F32, 3, { 256, 5, 3 } },
  { "blk.0.ffn_up_exps.bias", GR_F32, 2, { 256, 3 } },
  { "blk.0.ffn_down.weight", GR_F32, 2, { 96, 7 } },
  { "blk.0.ffn_odd.weight", GR_F32, 2, { 40, 7 } },
  { "blk.0.ffn_odd16.weight", GR_F16, 2, { 40, 3 } },
  { "blk.0.ffn_oddb.weight", GR_BF16, 2, { 40, 3 } },
  { "blk.0.ssm_conv1d.weight", GR_F32, 2, { 4, 64 } },
  { "blk.0.ssm_a", GR_F32, 2, { 256, 2 } },
  { "rope_freqs.weight", GR_F32, 1, { 256 } },
  { "ids", GR_I32, 1, { 5 } },
};
enum { MADE = sizeof made / sizeof *made };

static int64_t count_of(const made_tensor *t)
{
  int64_t n = 1;
  for (int d = 0; d < t->n_dims; d++) n *= t->ne[d];
  return n;
}

/* The weights of made[i], as floats; poisoned: one of them, of the first tensor, is `poison`. */
static void weights_of(size_t i, float x[MOST], const float *poison)
{
  uint32_t word = 12345 + (uint32_t)i;
  for (int64_t k = 0; k < count_of(&made[i]); k++) {
    word = word * 1664525 + 1013904223;
    x[k] = (float)((int32_t)word >> 8) * 0x1p-27f;
  }
  if (poison && i == 0) x[300] = *poison;
}

static void save_made(const char *path, const char *type, const float *poison)
{
  static float x[MOST];
  static uint8_t stored[MADE][MOST * 4];
  gr_error e = { 0 };
  gr_gguf_writer *w;
  assert_ok(gr_gguf_writer_create(&w, &e), &e);
  gr_gguf_put_string(w, "general.architecture", "llama");
  if (type) gr_gguf_put_string(w, "general.type", type);
  gr_gguf_put_u32(w, "general.file_type", 0);
  gr_gguf_put_scalar(w, "split.count", GR_GGUF_U16, &(uint16_t){ 1 });
  gr_gguf_put_scalar(w, "split.no", GR_GGUF_U16, &(uint16_t){ 0 });
  sample_put_scalars(w);
  sample_put_arrays(w);
  for (size_t i = 0; i < MADE; i++) {
    weights_of(i, x, poison);
    if (made[i].dtype == GR_I32) memset(stored[i], 7, 20);
    else gr_quant_encoder(made[i].dtype)(x, stored[i], count_of(&made[i]));
    gr_gguf_add_data(w, made[i].name, made[i].dtype, made[i].n_dims, made[i].ne, stored[i]);
  }
  assert_ok(gr_gguf_writer_save(w, path, &e), &e);
  gr_gguf_writer_free(w);
}

typedef struct seen {
  gr_quantize_tensor tensors[MADE];
  size_t count, stop_after;
} seen;

static bool see(void *ctx, const gr_quantize_tensor *t)
{
  seen *s = ctx;
  assert_int_equal(t->index, s->count);
  assert_int_equal(t->count, MADE);
  s->tensors[s->count++] = *t;
  return s->count != s->stop_after;
}

/* The type made[i] must have after quantization to `type`. */
static gr_dtype wanted_type(size_t i, gr_dtype type)
{
  static const char *const kept[] = { "blk.0.attn_norm.weight",
                                      "blk.0.attn_k_norm.weight",
                                      "blk.0.ffn_gate_inp.weight",
                                      "blk.0.ffn_gate_inp_shexp.weight",
                                      "blk.0.ffn_up_exps.bias",
                                      "blk.0.ssm_conv1d.weight",
                                      "blk.0.ssm_a",
                                      "rope_freqs.weight",
                                      "ids" };
  for (size_t k = 0; k < sizeof kept / sizeof *kept; k++)
    if (strcmp(made[i].name, kept[k]) == 0) return made[i].dtype;
  const int block = gr_dtype_get(type)->block_elems;
  if (made[i].ne[0] % block == 0) return type;
  if (made[i].ne[0] == 40) return made[i].dtype == GR_BF16 ? GR_BF16 : GR_F16;
  return type == GR_Q4_K ? GR_Q5_0 : type == GR_Q5_K ? GR_Q5_1 : type == GR_Q6_K ? GR_Q8_0 : GR_Q4_0;
}

static void check_tensor(const gr_gguf *before, const gr_gguf *after, size_t i, gr_dtype type, const gr_quantize_tensor *report)
{
  const gr_gguf_tensor *from = gr_gguf_tensor_at(before, i), *to = gr_gguf_tensor_at(after, i);
  assert_string_equal(to->name, made[i].name);
  assert_int_equal(to->n_dims, made[i].n_dims);
  assert_memory_equal(to->ne, from->ne, sizeof to->ne);
  const gr_dtype want = wanted_type(i, type);
  if (to->dtype != want) fail_msg("%s to %s: %s, not %s", to->name, gr_dtype_name(type), gr_dtype_name(to->dtype), gr_dtype_name(want));
  assert_true(report->from == from->dtype && report->to == want && report->bytes_from == from->bytes && report->bytes_to == to->bytes);
  assert_int_equal(report->encoded, from->dtype != want);
  if (from->dtype == want) {
    assert_memory_equal(to->data, from->data, to->bytes);
    assert_true(report->error == 0);
    return;
  }
  static float x[MOST], y[MOST];
  static uint8_t direct[MOST * 4];
  const int64_t n = count_of(&made[i]);
  gr_quant_decoder(from->dtype)(from->data, x, n);
  gr_quant_encoder(want)(x, direct, n);
  assert_memory_equal(to->data, direct, to->bytes);
  double miss = 0, all = 0;
  gr_quant_decoder(want)(direct, y, n);
  for (int64_t k = 0; k < n; k++) miss += ((double)y[k] - (double)x[k]) * ((double)y[k] - (double)x[k]), all += (double)x[k] * (double)x[k];
  assert_true(fabs(report->error - sqrt(miss / all)) <= 1e-9 * report->error);
}

static void every_type_follows_the_rules(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  const char *in = scratch_path(&dir, "in.gguf"), *out = scratch_path(&dir, "out.gguf");
  save_made(in, "model", NULL);
  gr_gguf *before, *after;
  assert_ok(gr_gguf_open(&before, in, &e), &e);
  int types = 0;
  for (gr_dtype type = 0; type < GR_DTYPE_COUNT; type++) {
    if (!gr_quantize_has(type)) continue;
    types++;
    seen s = { .count = 0 };
    gr_quantize_options o = { .overwrite = true, .on_tensor = see, .ctx = &s };
    assert_ok(gr_quantize_file(in, out, type, &o, &e), &e);
    assert_int_equal(s.count, MADE);
    assert_ok(gr_gguf_open(&after, out, &e), &e);
    assert_int_equal(gr_gguf_tensor_count(after), MADE);
    for (size_t i = 0; i < MADE; i++) check_tensor(before, after, i, type, &s.tensors[i]);
    assert_true(s.tensors[11].fell_back == (gr_dtype_is_quant(type)) && !s.tensors[0].fell_back && !s.tensors[1].fell_back);
    gr_gguf_close(after);
  }
  assert_int_equal(types, 13); /* F32, F16, BF16 and ten block formats */
  gr_gguf_close(before);
  scratch_close(&dir);
}

static void metadata_is_kept_and_the_file_type_set(void **state)
{
  (void)state;
  static const struct {
    gr_dtype type;
    uint64_t file_type;
  } numbers[] = { { GR_F32, 0 },  { GR_F16, 1 },   { GR_BF16, 32 }, { GR_Q4_0, 2 },  { GR_Q4_1, 3 },  { GR_Q5_0, 8 }, { GR_Q5_1, 9 },
                  { GR_Q8_0, 7 }, { GR_Q2_K, 10 }, { GR_Q3_K, 11 }, { GR_Q4_K, 14 }, { GR_Q5_K, 16 }, { GR_Q6_K, 18 } };
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  const char *in = scratch_path(&dir, "in.gguf"), *out = scratch_path(&dir, "out.gguf");
  save_made(in, NULL, NULL);
  gr_gguf *before, *after;
  assert_ok(gr_gguf_open(&before, in, &e), &e);
  for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
    gr_quantize_options o = { .overwrite = true };
    assert_ok(gr_quantize_file(in, out, numbers[k].type, &o, &e), &e);
    assert_ok(gr_gguf_open(&after, out, &e), &e);
    uint64_t value = 99;
    assert_ok(gr_gguf_u64(after, "general.file_type", GR_GGUF_REQUIRED, 0, 100, &value, &e), &e);
    assert_int_equal(value, numbers[k].file_type);
    assert_int_equal(gr_gguf_find(after, "general.quantization_version") != NULL, gr_dtype_is_quant(numbers[k].type));
    assert_null(gr_gguf_find(after, "split.count"));
    for (size_t i = 0; i < gr_gguf_kv_count(before); i++) {
      const gr_gguf_kv *a = gr_gguf_kv_at(before, i), *b = gr_gguf_find(after, a->key);
      if (strcmp(a->key, "general.file_type") == 0 || strncmp(a->key, "split.", 6) == 0) continue;
      assert_non_null(b);
      assert_true(a->type == b->type && a->is_array == b->is_array && a->count == b->count && a->bytes == b->bytes);
      if (a->bytes) assert_memory_equal(a->data, b->data, a->bytes);
    }
    gr_gguf_close(after);
  }
  gr_gguf_close(before);
  scratch_close(&dir);
}

static void threads_do_not_change_the_file(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  const char *in = scratch_path(&dir, "in.gguf"), *out[2] = { scratch_path(&dir, "1.gguf"), scratch_path(&dir, "3.gguf") };
  save_made(in, NULL, NULL);
  char *bytes[2];
  size_t size[2];
  for (int k = 0; k < 2; k++) {
    gr_quantize_options o = { 0 };
    if (k) assert_ok(gr_pool_create(&o.pool, 3, &e), &e);
    assert_ok(gr_quantize_file(in, out[k], GR_Q4_K, &o, &e), &e);
    gr_pool_free(o.pool);
    assert_ok(gr_file_read(out[k], 1 << 20, &bytes[k], &size[k], &e), &e);
  }
  assert_int_equal(size[0], size[1]);
  assert_memory_equal(bytes[0], bytes[1], size[0]);
  gr_free(bytes[0]), gr_free(bytes[1]);
  scratch_close(&dir);
}

static void assert_refused(const char *in, const char *out, gr_dtype type, const gr_quantize_options *o, gr_status want, const char *says)
{
  gr_error e = { 0 };
  gr_status s = gr_quantize_file(in, out, type, o, &e);
  if (s != want || !strstr(e.text, says)) fail_msg("wanted %s '%s', got %s '%s'", gr_status_name(want), says, gr_status_name(s), e.text);
}

static void what_cannot_be_quantized_is_refused_and_leaves_no_file(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  const char *in = scratch_path(&dir, "in.gguf"), *out = scratch_path(&dir, "out.gguf"), *bad = scratch_path(&dir, "bad.gguf");
  save_made(in, NULL, NULL);
  assert_refused(in, out, GR_IQ4_NL, NULL, GR_ERR_USAGE, "cannot quantize to IQ4_NL: the types are F32, F16, BF16, Q4_0");
  assert_refused(in, out, GR_I32, NULL, GR_ERR_USAGE, "cannot quantize to I32");
  assert_refused(in, out, GR_F64, NULL, GR_ERR_USAGE, "cannot quantize to F64");
  assert_refused(scratch_path(&dir, "none.gguf"), out, GR_Q4_0, NULL, GR_ERR_IO, "none.gguf");
  assert_refused(in, in, GR_Q4_0, &(gr_quantize_options){ .overwrite = true }, GR_ERR_USAGE, "is the input");
  assert_refused(in, scratch_path(&dir, "no/out.gguf"), GR_Q4_0, NULL, GR_ERR_IO, "no/out.gguf");

  save_made(bad, "adapter", NULL);
  assert_refused(bad, out, GR_Q4_0, NULL, GR_ERR_UNSUPPORTED, "is an adapter");
  assert_ok(sample_adapter_save(bad, &e), &e);
  assert_refused(bad, out, GR_Q4_0, NULL, GR_ERR_UNSUPPORTED, "is an adapter");
  assert_ok(sample_model_save(bad, 32, &e), &e);
  assert_refused(bad, out, GR_Q4_0, NULL, GR_ERR_UNSUPPORTED, "3 tensors are quantized already, first 'blk.0.q8.weight' (Q8_0)");
  save_made(bad, NULL, &(float){ NAN });
  assert_refused(bad, out, GR_Q4_0, NULL, GR_ERR_NUMERIC, "'token_embd.weight' holds NaN or infinity, first at [44, 1, 0, 0]");
  save_made(bad, NULL, &(float){ -INFINITY });
  assert_refused(bad, out, GR_Q6_K, NULL, GR_ERR_NUMERIC, "'token_embd.weight' holds NaN or infinity");
  save_made(bad, NULL, &(float){ -65505 });
  assert_refused(bad, out, GR_F16, NULL, GR_ERR_NUMERIC, "'token_embd.weight' holds a weight of magnitude 65505");
  assert_refused(bad, out, GR_Q4_K, NULL, GR_ERR_NUMERIC, "use BF16");
  assert_int_equal(scratch_count(&dir), 2);
  assert_ok(gr_quantize_file(bad, out, GR_BF16, NULL, &e), &e);
  assert_refused(in, out, GR_Q4_0, NULL, GR_ERR_USAGE, "exists already: --overwrite replaces it");

  seen s = { .stop_after = 3 };
  const gr_quantize_options stop = { .overwrite = true, .on_tensor = see, .ctx = &s };
  struct stat old, new;
  assert_int_equal(stat(out, &old), 0);
  assert_refused(in, out, GR_Q4_0, &stop, GR_ERR_CANCELLED, "stopped at tensor 'blk.0.attn_q.weight'");
  assert_int_equal(s.count, 3);
  assert_int_equal(stat(out, &new), 0);
  assert_true(old.st_ino == new.st_ino &&old.st_size == new.st_size);
  assert_int_equal(scratch_count(&dir), 3);
  scratch_close(&dir);
}

static void every_allocation_may_fail(void **state)
{
  (void)state;
  scratch dir;
  scratch_open(&dir);
  const char *in = scratch_path(&dir, "in.gguf"), *out = scratch_path(&dir, "out.gguf");
  save_made(in, NULL, NULL);
  const long live = allocations.live;
  const gr_quantize_options o = { .overwrite = true };
  size_t tried = 0, unnoticed = 0; /* one may be: the folder's name, for its flush after the rename */
  for (bool done = false; !done; tried++) {
    gr_error e = { 0 };
    allocations_fail(tried + 1, false);
    gr_status s = gr_quantize_file(in, out, GR_Q4_0, &o, &e);
    done = allocations.failed == 0;
    allocations_fail(0, false);
    if (done) assert_ok(s, &e);
    else if (s == GR_OK) unnoticed++;
    else if (s != GR_ERR_MEMORY || !e.text[0]) fail_msg("allocation %zu: %s, '%s'", tried + 1, gr_status_name(s), e.text);
    assert_int_equal(allocations.live, live);
    assert_int_equal(scratch_count(&dir), s == GR_OK ? 2 : 1);
    unlink(out);
  }
  assert_true(unnoticed <= 1);
  assert_true(tried > 10);
  scratch_close(&dir);
}

/* A real model: all of it quantized, decoded again, close to what it was. */
static void stories260K_quantizes(void **state)
{
  (void)state;
  require_shared();
  scratch dir;
  scratch_open(&dir);
  gr_error e = { 0 };
  gr_gguf *g;
  const char *out = scratch_path(&dir, "out.gguf");
  assert_ok(gr_quantize_file(SHARED_DATA "models/stories260K-f32.gguf", out, GR_Q8_0, NULL, &e), &e);
  assert_ok(gr_gguf_open(&g, out, &e), &e);
  size_t q8 = 0, f16 = 0;
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    q8 += t->dtype == GR_Q8_0, f16 += t->dtype == GR_F16;
    if (strstr(t->name, "ffn_down")) assert_int_equal(t->dtype, GR_F16); /* rows of 172 */
  }
  assert_int_equal(q8, 5 * 6 + 1);
  assert_int_equal(f16, 5);
  gr_gguf_close(g);
  scratch_close(&dir);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_type_follows_the_rules),   cmocka_unit_test(metadata_is_kept_and_the_file_type_set),
    cmocka_unit_test(threads_do_not_change_the_file), cmocka_unit_test(what_cannot_be_quantized_is_refused_and_leaves_no_file),
    cmocka_unit_test(every_allocation_may_fail),      cmocka_unit_test(stories260K_quantizes),
  };
  return cmocka_run_group_tests_name("quantize", tests, NULL, NULL);
}
