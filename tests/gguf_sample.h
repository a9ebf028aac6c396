/* Sample GGUF files made by our own writer, for tests, fuzz seeds and the outside judge: every value type, every shape of tensor. */
#ifndef GR_TESTS_GGUF_SAMPLE_H
#define GR_TESTS_GGUF_SAMPLE_H
#include <math.h>
#include <string.h>

#include "io/adapter.h"
#include "io/gguf_write.h"

static const uint8_t sample_bytes[1024] = { 1, 60, 2, 3, 60, 5, 8, 13, 21, 34, 55, 89 }; /* finite in every type */
static const float sample_floats[256] = { 0.5f, -1.25f, 3.0f, 0, 1e-20f, 7, 65504, -0.0f };

static inline void sample_put_scalars(gr_gguf_writer *w)
{
  gr_gguf_put_scalar(w, "t.u8", GR_GGUF_U8, &(uint8_t){ 200 });
  gr_gguf_put_scalar(w, "t.i8", GR_GGUF_I8, &(int8_t){ -100 });
  gr_gguf_put_scalar(w, "t.u16", GR_GGUF_U16, &(uint16_t){ 60000 });
  gr_gguf_put_scalar(w, "t.i16", GR_GGUF_I16, &(int16_t){ -30000 });
  gr_gguf_put_u32(w, "t.u32", 4000000000u);
  gr_gguf_put_i32(w, "t.i32", -2000000000);
  gr_gguf_put_f32(w, "t.f32", 0.15625f);
  gr_gguf_put_bool(w, "t.bool", true);
  gr_gguf_put_string(w, "t.string", "text");
  gr_gguf_put_u64(w, "t.u64", UINT64_MAX);
  gr_gguf_put_scalar(w, "t.i64", GR_GGUF_I64, &(int64_t){ INT64_MIN });
  gr_gguf_put_scalar(w, "t.f64", GR_GGUF_F64, &(double){ 1e300 });
  gr_gguf_put_string(w, "t.empty", "");
  gr_gguf_put_str(w, "t.nul", (gr_gguf_str){ "a\0b", 3 });
}

static inline void sample_put_arrays(gr_gguf_writer *w)
{
  static const gr_gguf_type types[] = { GR_GGUF_U8,  GR_GGUF_I8,   GR_GGUF_U16, GR_GGUF_I16, GR_GGUF_U32, GR_GGUF_I32,
                                        GR_GGUF_F32, GR_GGUF_BOOL, GR_GGUF_U64, GR_GGUF_I64, GR_GGUF_F64 };
  static const uint8_t elements[24] = { 1, 0, 1, 1, 0, 0, 0, 1 };
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    char key[32] = "a.";
    strcat(key, gr_gguf_type_name(types[i]));
    gr_gguf_put_array(w, key, types[i], elements, 3);
  }
  gr_gguf_put_strs(w, "a.string", (gr_gguf_str[]){ { "one", 3 }, { "", 0 }, { "thr\0e", 5 } }, 3);
  gr_gguf_put_array(w, "a.none", GR_GGUF_U32, NULL, 0);
  gr_gguf_put_strs(w, "a.nostrings", NULL, 0);
}

static inline void sample_add_tensors(gr_gguf_writer *w)
{
  gr_gguf_add_data(w, "norm.weight", GR_F32, 1, (int64_t[]){ 8 }, sample_floats);
  gr_gguf_add_data(w, "half.weight", GR_F16, 2, (int64_t[]){ 8, 5 }, sample_bytes);
  gr_gguf_add_data(w, "blk.0.q8.weight", GR_Q8_0, 2, (int64_t[]){ 32, 3 }, sample_bytes);
  gr_gguf_add_data(w, "blk.0.q4.weight", GR_Q4_0, 2, (int64_t[]){ 64, 2 }, sample_bytes);
  gr_gguf_add_data(w, "blk.0.q4k.weight", GR_Q4_K, 1, (int64_t[]){ 256 }, sample_bytes);
  gr_gguf_add_data(w, "exps.weight", GR_F32, 3, (int64_t[]){ 4, 2, 3 }, sample_floats);
  gr_gguf_add_data(w, "four.weight", GR_BF16, 4, (int64_t[]){ 3, 1, 2, 2 }, sample_bytes);
  gr_gguf_add_data(w, "ids", GR_I32, 1, (int64_t[]){ 5 }, sample_bytes);
  gr_gguf_add_data(w, "scalar", GR_F32, 0, NULL, sample_floats);
}

static inline gr_status sample_model_save(const char *path, uint64_t alignment, gr_error *e)
{
  gr_gguf_writer *w;
  GR_TRY(gr_gguf_writer_create(&w, e));
  gr_gguf_put_string(w, "general.architecture", "llama");
  gr_gguf_writer_set_alignment(w, alignment);
  sample_put_scalars(w);
  sample_put_arrays(w);
  sample_add_tensors(w);
  gr_status s = gr_gguf_writer_save(w, path, e);
  gr_gguf_writer_free(w);
  return s;
}

static const gr_adapter_out sample_pairs[] = {
  { "blk.0.attn_q.weight", 6, 4, 1, 2, sample_floats, sample_floats },
  { "blk.0.ffn_down_exps.weight", 4, 5, 3, 2, sample_floats, sample_floats },
  { "token_embd.weight", 6, 9, 1, 3, sample_floats, sample_floats },
};

static inline gr_status sample_adapter_save(const char *path, gr_error *e)
{
  const gr_adapter_info info = {
    .architecture = "llama", .name = "sample", .alpha = 8, .base_hash = "0123abcd", .pairs = sample_pairs, .pair_count = 3
  };
  return gr_adapter_save(path, &info, e);
}

/* The base that the sample adapter fits. */
static inline gr_status sample_base_save(const char *path, const char *architecture, int64_t experts, gr_error *e)
{
  gr_gguf_writer *w;
  GR_TRY(gr_gguf_writer_create(&w, e));
  gr_gguf_put_string(w, "general.architecture", architecture);
  gr_gguf_add_data(w, "token_embd.weight", GR_F32, 2, (int64_t[]){ 6, 9 }, sample_floats);
  gr_gguf_add_data(w, "blk.0.attn_q.weight", GR_F32, 2, (int64_t[]){ 6, 4 }, sample_floats);
  gr_gguf_add_data(w, "blk.0.ffn_down_exps.weight", GR_F32, 3, (int64_t[]){ 4, 5, experts }, sample_floats);
  gr_status s = gr_gguf_writer_save(w, path, e);
  gr_gguf_writer_free(w);
  return s;
}

#endif
