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
    if (sscanf(line, "%15s %15s %1023s %4095s", kind, name, text, values) != 4) continue;
    if (strcmp(kind, "hash") != 0 && strcmp(kind, "block") != 0) continue;
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

/* ---- Encoders. ---- */

enum { ROWS = 64, WEIGHTS = ROWS * 256 };

/* The rows of tools/judge_quant.py: a bell of four uniform numbers, and its cube. */
static float *make_rows(bool tailed)
{
  float *x = gr_alloc(WEIGHTS * sizeof *x);
  assert_non_null(x);
  for (uint64_t i = 0; i < WEIGHTS; i++) {
    uint64_t word = mix(1 + (i + 1) * UINT64_C(0x9E3779B97F4A7C15));
    int64_t sum = 0;
    for (int k = 0; k < 4; k++) sum += (int64_t)(word >> 16 * k & 0xffff);
    double bell = (double)(sum - 131070) / 0x1p18;
    x[i] = (float)(tailed ? bell * bell * bell * 16 : bell);
  }
  return x;
}

static double relative_rms(const float *x, const float *y, int64_t n)
{
  double miss = 0, all = 0;
  for (int64_t i = 0; i < n; i++) {
    double d = (double)y[i] - (double)x[i];
    miss += d * d, all += (double)x[i] * (double)x[i];
  }
  return sqrt(miss / all);
}

typedef struct encoded {
  uint8_t *bytes;
  size_t size;
  float *y; /* decoded again */
} encoded;

static encoded encode_decode(gr_dtype t, const float *x, int64_t n)
{
  encoded r = { .size = gr_row_bytes(t, n) };
  r.bytes = gr_alloc(r.size), r.y = gr_alloc((size_t)n * sizeof *r.y);
  assert_true(r.bytes && r.y);
  memset(r.bytes, 0xA5, r.size); /* an encoder writes every byte */
  gr_quant_encoder(t)(x, r.bytes, n);
  gr_quant_decoder(t)(r.bytes, r.y, n);
  return r;
}

static void encoded_free(encoded *r)
{
  gr_free(r->bytes);
  gr_free(r->y);
}

static void check_encoder(gr_dtype t, const char *kind, const char *what, const char *value)
{
  float *x = make_rows(strcmp(kind, "tailed") == 0);
  encoded r = encode_decode(t, x, WEIGHTS);
  if (strcmp(what, "rms") == 0) {
    double ours = relative_rms(x, r.y, WEIGHTS),
           theirs = strtod(value, NULL) * (1 + 1e-10); /* F16 and BF16 are equal but for the printing */
    if (!(ours <= theirs)) fail_msg("%s %s: relative RMS error %.6g, llama.cpp has %.6g", gr_dtype_name(t), kind, ours, theirs);
  } else {
    float *bytes = gr_alloc(r.size * sizeof *bytes);
    assert_non_null(bytes);
    for (size_t i = 0; i < r.size; i++) bytes[i] = (float)r.bytes[i];
    if (hash_floats(bytes, r.size) != strtoull(value, NULL, 16)) fail_msg("%s %s: other bytes than recorded", gr_dtype_name(t), kind);
    gr_free(bytes);
  }
  encoded_free(&r);
  gr_free(x);
}

/* RMS error no worse than llama.cpp's on the same rows, and the same bytes under every compiler. */
static void encoders_are_no_worse_than_llama_cpp(void **state)
{
  (void)state;
  FILE *golden = fopen(GR_SOURCE_DIR "/tests/golden/quant.txt", "r");
  assert_non_null(golden);
  static char line[8192];
  char what[16], name[16], kind[16], value[32];
  int checks[GR_DTYPE_COUNT] = { 0 };
  while (fgets(line, sizeof line, golden)) {
    gr_dtype t;
    if (sscanf(line, "%15s %15s %15s %31s", what, name, kind, value) != 4) continue;
    if (strcmp(what, "rms") != 0 && strcmp(what, "bytes") != 0) continue;
    assert_true(gr_dtype_from_name(name, &t));
    check_encoder(t, kind, what, value);
    checks[t]++;
  }
  fclose(golden);
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    bool exact = t == GR_F32 || t == GR_F64;
    assert_int_equal(checks[t], gr_quant_encoder((gr_dtype)t) && !exact ? 4 : 0);
  }
}

static void only_the_promised_types_lack_an_encoder(void **state)
{
  (void)state;
  for (int t = 0; t < GR_DTYPE_COUNT; t++) {
    bool none = t == GR_IQ4_NL || t == GR_IQ4_XS || t == GR_MXFP4 || gr_dtype_get((gr_dtype)t)->kind == GR_KIND_INT;
    assert_int_equal(gr_quant_encoder((gr_dtype)t) == NULL, none);
  }
}

#define EACH_ENCODER(t)                                                                                                                    \
  for (gr_dtype t = 0; t < GR_DTYPE_COUNT; t++)                                                                                            \
    if (gr_quant_encoder(t))

static void zeros_stay_zeros(void **state)
{
  (void)state;
  static const float zeros[512];
  EACH_ENCODER(t)
  {
    encoded r = encode_decode(t, zeros, 512);
    assert_memory_equal(r.y, zeros, sizeof zeros);
    encoded_free(&r);
  }
}

/* One value throughout is kept to the precision of a normal half scale (BF16: of its own eight bits). */
static void constants_are_kept(void **state)
{
  (void)state;
  const float values[] = { 1, -1, 0.1f, -0.1f, 3.14159f, 0.01f, -2048.7f };
  EACH_ENCODER(t)
  for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
    float x[512];
    for (int i = 0; i < 512; i++) x[i] = values[v];
    encoded r = encode_decode(t, x, 512);
    double miss = relative_rms(x, r.y, 512), allowed = t == GR_BF16 ? 0x1p-8 : 0x1p-11;
    if (miss > allowed) fail_msg("%s: %g decodes to %g", gr_dtype_name(t), (double)x[0], (double)r.y[0]);
    encoded_free(&r);
  }
}

/* Blocks that no format can hold well, or at all: every encoder gives finite blocks, writes every byte, and the same twice; NaN becomes 0.
 */
static void hostile_weights_encode_to_finite_blocks(void **state)
{
  (void)state;
  const uint32_t odd[] = { 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff, 0x7f7fffff, 0xff7fffff, 0x00000001,
                           0x80000001, 0x007fffff, 0x33800000, 0x33000000, 0x477fe000, 0x4e800000, 0x80000000, 0x3f800000 };
  enum { N = sizeof odd / sizeof *odd };
  EACH_ENCODER(t)
  for (int pattern = 0; pattern < 2 * N + 2; pattern++) {
    float x[512];
    for (int i = 0; i < 512; i++) { /* all alike; one among small weights; a mixture */
      uint32_t bits = pattern < N ? odd[pattern] : (uint32_t)mix((uint64_t)i);
      if (pattern >= N && pattern < 2 * N) bits = i == 100 ? odd[pattern - N] : gr_float_bits(0.01f * (float)(i % 7 - 3));
      if (pattern == 2 * N) bits = odd[mix((uint64_t)i) % N];
      x[i] = gr_bits_float(bits);
    }
    encoded a = encode_decode(t, x, 512), b = encode_decode(t, x, 512);
    assert_memory_equal(a.bytes, b.bytes, a.size);
    for (int i = 0; i < 512 && gr_dtype_is_quant(t); i++) {
      const bool alike = pattern < N, large = fabsf(x[i]) >= 65504;
      bool good = isfinite(a.y[i]);
      if (alike && isnan(x[i])) good = a.y[i] == 0;
      if (alike && large) good = good && fabsf(a.y[i]) > 65000 && signbit(a.y[i]) == signbit(x[i]); /* saturated, not lost */
      if (!good) fail_msg("%s, pattern %d: element %d, %g, decodes to %g", gr_dtype_name(t), pattern, i, (double)x[i], (double)a.y[i]);
    }
    encoded_free(&a), encoded_free(&b);
  }
}

/* Weights far from 1 lose nothing: scaling by a power of two, as long as the scales stay normal halves, scales what is decoded. */
static void encoding_commutes_with_powers_of_two(void **state)
{
  (void)state;
  float *x = make_rows(true), *scaled = gr_alloc(WEIGHTS * sizeof *scaled);
  assert_non_null(scaled);
  for (int i = 0; i < WEIGHTS; i++) scaled[i] = 64 * x[i];
  EACH_ENCODER(t)
  if (gr_dtype_is_quant(t)) {
    encoded a = encode_decode(t, x, WEIGHTS), b = encode_decode(t, scaled, WEIGHTS);
    double one = relative_rms(x, a.y, WEIGHTS), other = relative_rms(scaled, b.y, WEIGHTS);
    if (fabs(one - other) > 0.002 * one) fail_msg("%s: relative error %g, and %g scaled by 64", gr_dtype_name(t), one, other);
    encoded_free(&a), encoded_free(&b);
  }
  gr_free(scaled);
  gr_free(x);
}

/* Rows are blocks side by side: encoding them together or one at a time is the same. */
static void encoding_is_blockwise(void **state)
{
  (void)state;
  float *x = make_rows(false);
  EACH_ENCODER(t)
  {
    const gr_dtype_info *info = gr_dtype_get(t);
    encoded all = encode_decode(t, x, 1024);
    for (int i = 0; i < 1024 / info->block_elems; i++) {
      encoded one = encode_decode(t, x + i * info->block_elems, info->block_elems);
      assert_memory_equal(one.bytes, all.bytes + (size_t)i * one.size, one.size);
      encoded_free(&one);
    }
    encoded_free(&all);
  }
  gr_free(x);
}

/* What an encoder made, encoded again, moves by little of the first error, and not at all where the search is exhaustive enough. */
static void encoding_again_changes_little(void **state)
{
  (void)state;
  for (int tailed = 0; tailed < 2; tailed++) {
    float *x = make_rows(tailed);
    EACH_ENCODER(t)
    {
      encoded once = encode_decode(t, x, WEIGHTS), twice = encode_decode(t, once.y, WEIGHTS);
      double first = relative_rms(x, once.y, WEIGHTS), moved = relative_rms(once.y, twice.y, WEIGHTS);
      bool exact = !gr_dtype_is_quant(t) || t == GR_Q4_0 || t == GR_Q5_0;
      if (moved > (exact ? 0 : 0.25 * first)) fail_msg("%s: error %g, encoded again %g more", gr_dtype_name(t), first, moved);
      encoded_free(&once), encoded_free(&twice);
    }
    gr_free(x);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_float_and_quantized_type_has_a_decoder),
    cmocka_unit_test(decoders_equal_the_gguf_package),
    cmocka_unit_test(decoding_is_blockwise_and_needs_no_alignment),
    cmocka_unit_test(f32_and_bf16_keep_every_bit),
    cmocka_unit_test(only_the_promised_types_lack_an_encoder),
    cmocka_unit_test(encoders_are_no_worse_than_llama_cpp),
    cmocka_unit_test(zeros_stay_zeros),
    cmocka_unit_test(constants_are_kept),
    cmocka_unit_test(hostile_weights_encode_to_finite_blocks),
    cmocka_unit_test(encoding_commutes_with_powers_of_two),
    cmocka_unit_test(encoding_is_blockwise),
    cmocka_unit_test(encoding_again_changes_little),
  };
  return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}
