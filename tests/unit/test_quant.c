#include "check.h"

#include <math.h>

#include "base/alloc.h"
#include "base/half.h"
#include "quant/blocks.h"
#include "quant/quant.h"

enum { BLOCKS = 512 };

/* ---- Pseudo-random blocks, made as tools/judge_quant.py makes them (the scheme is described there). ---- */

static uint64_t mix(uint64_t z)
{
  z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
  return z ^ z >> 31;
}

static void fill_stream(uint64_t seed, uint8_t *bytes, size_t n)
{
  for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)(mix(seed + (i / 8 + 1) * UINT64_C(0x9E3779B97F4A7C15)) >> 8 * (i % 8));
}

static const uint16_t extreme_halves[16] = { 0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x3C00, 0xBC00,
                                             0x2E66, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x7C01, 0xFFFF };

/* Byte offsets of the half-precision scales of a block; -1: none. */
static void scale_offsets(gr_dtype t, int at[2])
{
  at[0] = at[1] = -1;
  switch (t) {
  case GR_Q4_1:
  case GR_Q5_1:
  case GR_Q4_K:
  case GR_Q5_K: at[1] = 2; /* fall through */
  case GR_F16:
  case GR_Q4_0:
  case GR_Q5_0:
  case GR_Q8_0:
  case GR_IQ4_NL:
  case GR_IQ4_XS: at[0] = 0; break;
  case GR_Q2_K: at[0] = offsetof(gr_block_q2_k, d), at[1] = offsetof(gr_block_q2_k, dmin); break;
  case GR_Q3_K: at[0] = offsetof(gr_block_q3_k, d); break;
  case GR_Q6_K: at[0] = offsetof(gr_block_q6_k, d); break;
  default: break;
  }
}

static uint8_t *make_blocks(gr_dtype t, const char *family)
{
  const gr_dtype_info *info = gr_dtype_get(t);
  const size_t bytes = (size_t)info->block_bytes;
  const bool bounded = strcmp(family, "bounded") == 0, extreme = strcmp(family, "extreme") == 0;
  uint8_t *blocks = gr_alloc(BLOCKS * bytes);
  assert_non_null(blocks);
  fill_stream(16 * (uint64_t)info->ggml_id + (bounded ? 1 : extreme ? 2 : 0), blocks, BLOCKS * bytes);
  int at[2];
  scale_offsets(t, at);
  for (int i = 0; i < BLOCKS; i++) {
    uint8_t *block = blocks + (size_t)i * bytes;
    for (int k = 0; k < 2 && at[k] >= 0; k++) {
      if (bounded) block[at[k] + 1] &= 0xBF;
      if (extreme) gr_store_u16(block + at[k], extreme_halves[(k ? i / 16 : i) % 16]);
    }
    if (extreme && t == GR_MXFP4) block[0] = (uint8_t)i;
  }
  return blocks;
}

static uint32_t word_of(float f) { return isnan(f) ? 0x7fc00000u : gr_float_bits(f); }

static uint64_t hash_floats(const float *y, size_t n)
{
  uint64_t sum = 0;
  for (size_t i = 0; i < n; i++) sum += mix(word_of(y[i]) | (uint64_t)i << 32);
  return sum;
}

/* ---- The goldens of the gguf package. ---- */

static void check_hash(gr_dtype t, const char *family, uint64_t want)
{
  int64_t n = (int64_t)BLOCKS * gr_dtype_get(t)->block_elems;
  uint8_t *blocks = make_blocks(t, family);
  float *y = gr_alloc((size_t)n * sizeof *y);
  assert_non_null(y);
  gr_quant_decoder(t)(blocks, y, n);
  if (hash_floats(y, (size_t)n) != want) fail_msg("%s %s: decoded values are not the gguf package's", gr_dtype_name(t), family);
  gr_free(y);
  gr_free(blocks);
}

static void check_block(gr_dtype t, const char *block_hex, const char *values_hex)
{
  uint8_t block[256];
  float y[256];
  const gr_dtype_info *info = gr_dtype_get(t);
  assert_int_equal(strlen(block_hex), 2 * info->block_bytes);
  assert_int_equal(strlen(values_hex), 8 * info->block_elems);
  for (int i = 0; i < info->block_bytes; i++) {
    unsigned byte = 0;
    assert_int_equal(sscanf(block_hex + 2 * i, "%2x", &byte), 1);
    block[i] = (uint8_t)byte;
  }
  gr_quant_decoder(t)(block, y, info->block_elems);
  for (int i = 0; i < info->block_elems; i++) {
    unsigned want = 0;
    assert_int_equal(sscanf(values_hex + 8 * i, "%8x", &want), 1);
    if (word_of(y[i]) != want) fail_msg("%s: element %d is %08x, not %08x", info->name, i, word_of(y[i]), want);
  }
}

static void decoders_equal_the_gguf_package(void **state)
{
  (void)state;
  FILE *golden = fopen(GR_SOURCE_DIR "/tests/golden/quant.txt", "r");
  assert_non_null(golden);
  static char line[8192], values[4096];
  char kind[16], name[16], text[1024];
  int hashes[GR_DTYPE_COUNT] = { 0 };
  while (fgets(line, sizeof line, golden)) {
    gr_dtype t;
    if (sscanf(line, "%15s %15s %1023s %4095s", kind, name, text, values) != 4 || *kind == '#') continue;
    assert_true(gr_dtype_from_name(name, &t));
    if (strcmp(kind, "block") == 0) check_block(t, text, values);
    unsigned long long hash = 0;
    if (sscanf(line, "hash %*s %*s 512 %llx", &hash) == 1) check_hash(t, text, hash), hashes[t]++;
  }
  fclose(golden);
  for (int t = 0; t < GR_DTYPE_COUNT; t++) assert_int_equal(hashes[t], gr_quant_decoder((gr_dtype)t) ? 3 : 0);
}

static void every_float_and_quantized_type_has_a_decoder(void **state)
{
  (void)state;
  for (int t = 0; t < GR_DTYPE_COUNT; t++)
    assert_int_equal(gr_quant_decoder((gr_dtype)t) != NULL, gr_dtype_get((gr_dtype)t)->kind != GR_KIND_INT);
}

/* A decoder given several blocks, at an odd address, gives what it gives block by block. */
static void decoding_is_blockwise_and_needs_no_alignment(void **state)
{
  (void)state;
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    gr_decode_fn *decode = gr_quant_decoder((gr_dtype)t);
    if (!decode) continue;
    const gr_dtype_info *info = gr_dtype_get((gr_dtype)t);
    uint8_t *blocks = make_blocks((gr_dtype)t, "bounded"), *shifted = gr_alloc(1 + BLOCKS * (size_t)info->block_bytes);
    float *y = gr_alloc(BLOCKS * sizeof *y * (size_t)info->block_elems), one[256];
    assert_true(shifted && y);
    memcpy(shifted + 1, blocks, BLOCKS * (size_t)info->block_bytes);
    decode(shifted + 1, y, (int64_t)BLOCKS * info->block_elems);
    for (int i = 0; i < BLOCKS; i++) {
      decode(blocks + (size_t)i * (size_t)info->block_bytes, one, info->block_elems);
      for (int k = 0; k < info->block_elems; k++) assert_int_equal(word_of(one[k]), word_of(y[i * info->block_elems + k]));
    }
    gr_free(y);
    gr_free(shifted);
    gr_free(blocks);
  }
}

/* Floats that are stored as they are keep their bits, NaNs' payloads and signs included. */
static void f32_and_bf16_keep_every_bit(void **state)
{
  (void)state;
  const uint32_t odd[] = { 0x7f800001, 0xff800001, 0x7fc12345, 0xffffffff, 0x80000000, 0x00000001, 0x7f800000 };
  enum { N = sizeof odd / sizeof *odd };
  float y[N];
  gr_quant_decoder(GR_F32)(odd, y, N);
  assert_memory_equal(y, odd, sizeof odd);
  for (uint32_t h = 0; h < 0x10000; h++) {
    uint16_t stored = (uint16_t)h;
    gr_quant_decoder(GR_BF16)(&stored, y, 1);
    assert_int_equal(gr_float_bits(*y), h << 16);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_float_and_quantized_type_has_a_decoder),
    cmocka_unit_test(decoders_equal_the_gguf_package),
    cmocka_unit_test(decoding_is_blockwise_and_needs_no_alignment),
    cmocka_unit_test(f32_and_bf16_keep_every_bit),
  };
  return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
