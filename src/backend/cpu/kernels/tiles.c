#include "backend/cpu/kernels/tiles.h"

#include "base/mutant.h"
#include "quant/blocks.h"

/* ---- words of many rows ---- */

/* Word j (4 bytes) of the 16 bytes at x of each row becomes lane r of w[j]: 4 x 4 transposes within 128 bits. */
static inline void load_words(vi w[4], const uint8_t *x, int64_t stride)
{
#if GR_LANES == 16
  __m512i z[4], t[4];
  GR_UNROLL
  for (int i = 0; i < 4; i++) {
    z[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(x + i * stride)));
    z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(x + (4 + i) * stride)), 1);
    z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(x + (8 + i) * stride)), 2);
    z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(x + (12 + i) * stride)), 3);
  }
  t[0] = _mm512_unpacklo_epi32(z[0], z[1]), t[1] = _mm512_unpacklo_epi32(z[2], z[3]);
  t[2] = _mm512_unpackhi_epi32(z[0], z[1]), t[3] = _mm512_unpackhi_epi32(z[2], z[3]);
  w[0] = (vi)_mm512_unpacklo_epi64(t[0], t[1]), w[1] = (vi)_mm512_unpackhi_epi64(t[0], t[1]);
  w[2] = (vi)_mm512_unpacklo_epi64(t[2], t[3]), w[3] = (vi)_mm512_unpackhi_epi64(t[2], t[3]);
#elif GR_LANES == 8
  __m256i z[4], t[4];
  GR_UNROLL
  for (int i = 0; i < 4; i++) {
    z[i] = _mm256_castsi128_si256(_mm_loadu_si128((const void *)(x + i * stride)));
    z[i] = _mm256_inserti128_si256(z[i], _mm_loadu_si128((const void *)(x + (4 + i) * stride)), 1);
  }
  t[0] = _mm256_unpacklo_epi32(z[0], z[1]), t[1] = _mm256_unpacklo_epi32(z[2], z[3]);
  t[2] = _mm256_unpackhi_epi32(z[0], z[1]), t[3] = _mm256_unpackhi_epi32(z[2], z[3]);
  w[0] = (vi)_mm256_unpacklo_epi64(t[0], t[1]), w[1] = (vi)_mm256_unpackhi_epi64(t[0], t[1]);
  w[2] = (vi)_mm256_unpacklo_epi64(t[2], t[3]), w[3] = (vi)_mm256_unpackhi_epi64(t[2], t[3]);
#elif defined(GR_NEON)
  uint32x4_t z[4], t[4];
  GR_UNROLL
  for (int i = 0; i < 4; i++) z[i] = vreinterpretq_u32_u8(vld1q_u8(x + i * stride));
  t[0] = vzip1q_u32(z[0], z[2]), t[1] = vzip1q_u32(z[1], z[3]);
  t[2] = vzip2q_u32(z[0], z[2]), t[3] = vzip2q_u32(z[1], z[3]);
  w[0] = (vi)vzip1q_u32(t[0], t[1]), w[1] = (vi)vzip2q_u32(t[0], t[1]);
  w[2] = (vi)vzip1q_u32(t[2], t[3]), w[3] = (vi)vzip2q_u32(t[2], t[3]);
#else
  int32_t words[GR_LANES][4];
  for (int r = 0; r < GR_LANES; r++) memcpy(words[r], x + r * stride, sizeof words[r]);
  for (int j = 0; j < 4; j++) w[j] = (vi){ words[0][j], words[1][j], words[2][j], words[3][j] };
#endif
}

/* The two or four bytes at x of each row. */
static inline vi load_halves(const uint8_t *x, int64_t stride)
{
  int32_t v[GR_LANES];
  for (int r = 0; r < GR_LANES; r++) v[r] = gr_load_u16(x + r * stride);
  vi w;
  memcpy(&w, v, sizeof w);
  return w;
}

static inline vi load_word(const uint8_t *x, int64_t stride)
{
  int32_t v[GR_LANES];
  for (int r = 0; r < GR_LANES; r++) memcpy(&v[r], x + r * stride, sizeof *v);
  vi w;
  memcpy(&w, v, sizeof w);
  return w;
}

/* The halves in the low 16 bits of each lane as floats. */
static inline vf half_floats(vi v)
{
#if GR_LANES == 16
  return (vf)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)v));
#elif GR_LANES == 8
  __m256i low = _mm256_packus_epi32((__m256i)(v & 0xffff), _mm256_setzero_si256());
  return (vf)_mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(low, 0x08)));
#elif defined(GR_NEON)
  return (vf)vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32((int32x4_t)v)));
#else
  float f[GR_LANES];
  for (int i = 0; i < GR_LANES; i++) f[i] = gr_f16_to_f32((uint16_t)v[i]);
  return vload(f);
#endif
}

static inline vf to_float(vi v) { return __builtin_convertvector(v, vf); }

/* scale * code + offset, the product being exact. Without a fused operation in the set, it is two. */
static inline vf scaled(vi code, vf scale, vf offset) { return madd(to_float(code), scale, offset); }

/* Elements i and i + 1, i even, of every row. */
static inline void put(bool words, float *dst, int64_t i, vf even, vf odd)
{
#if GR_WORDS
  if (words) {
    vstore(dst + i / 2 * GR_COLS, vpair(even, odd));
    return;
  }
#endif
  (void)words;
  vstore(dst + i * GR_COLS, even);
  vstore(dst + (i + 1) * GR_COLS, odd);
}

/* Defines format_tile, and format_words where there are such words, from what follows: the decoder of n elements. */
#define DECODE_ROWS(format)                                                                                                                \
  static inline __attribute__((always_inline)) void format##_rows(bool words, const uint8_t *x, int64_t stride, int64_t n, float *dst);    \
  static void format##_tile(const uint8_t *x, int64_t stride, int64_t n, float *dst) { format##_rows(false, x, stride, n, dst); }          \
  DECODE_WORDS(format)                                                                                                                     \
  static inline __attribute__((always_inline)) void format##_rows(bool words, const uint8_t *x, int64_t stride, int64_t n, float *dst)
#if GR_WORDS
#define DECODE_WORDS(format)                                                                                                               \
  static void format##_words(const uint8_t *x, int64_t stride, int64_t n, float *dst) { format##_rows(true, x, stride, n, dst); }
#else
#define DECODE_WORDS(format)
#endif

/* Floats that n elements of a strip take. */
static inline int64_t strip_of(bool words, int64_t n) { return (words ? n / 2 : n) * GR_COLS; }

/* ---- blocks of 32 ---- */

DECODE_ROWS(q4_1)
{
  for (int64_t i = 0; i < n; i += GR_QK, x += sizeof(gr_block_q4_1), dst += strip_of(words, GR_QK)) {
    vi head = load_word(x, stride), w[4];
    vf d = half_floats(head), m = half_floats((vi)((vu)head >> 16));
    load_words(w, x + 4, stride);
    GR_UNROLL
    for (int j = 0; j < 4; j++) {
      GR_UNROLL
      for (int b = 0; b < 4; b += 2) {
        vi low = w[j] >> 8 * b, high = w[j] >> (8 * b + 4);
        put(words, dst, 4 * j + b, scaled(low & 15, d, m), scaled(low >> 8 & 15, d, m));
        put(words, dst, 16 + 4 * j + b, scaled(high & 15, d, m), scaled(high >> 8 & 15, d, m));
      }
    }
  }
}

DECODE_ROWS(q4_0)
{
  for (int64_t i = 0; i < n; i += GR_QK, x += sizeof(gr_block_q4_0), dst += strip_of(words, GR_QK)) {
    vi w[4];
    vf d = half_floats(load_halves(x, stride));
    load_words(w, x + 2, stride);
    GR_UNROLL
    for (int j = 0; j < 4; j++) {
      GR_UNROLL
      for (int b = 0; b < 4; b += 2) {
        vi low = w[j] >> 8 * b, high = w[j] >> (8 * b + 4);
        put(words, dst, 4 * j + b, d * to_float((low & 15) - 8), d * to_float((low >> 8 & 15) - 8));
        put(words, dst, 16 + 4 * j + b, d * to_float((high & 15) - 8), d * to_float((high >> 8 & 15) - 8));
      }
    }
  }
}

DECODE_ROWS(q8_0)
{
  for (int64_t i = 0; i < n; i += GR_QK, x += sizeof(gr_block_q8_0), dst += strip_of(words, GR_QK)) {
    vf d = half_floats(load_halves(x, stride));
    for (int half = 0; half < 2; half++) {
      vi w[4];
      load_words(w, x + 2 + 16 * half, stride);
      GR_UNROLL
      for (int j = 0; j < 4; j++) {
        GR_UNROLL
        for (int b = 0; b < 4; b += 2)
          put(words, dst, 16 * half + 4 * j + b, d * to_float(w[j] << (24 - 8 * b) >> 24), d * to_float(w[j] << (16 - 8 * b) >> 24));
      }
    }
  }
}

/* ---- super-blocks of 256 ---- */

/* Scales and minima of the eight sub-blocks, from the first 16 bytes of Q4_K and Q5_K (quant/kquant.h). */
static inline void load_pairs(vf scale[8], vf min[8], const uint8_t *x, int64_t stride)
{
  vi w[4];
  load_words(w, x, stride);
  vf d = half_floats(w[0]), dmin = half_floats((vi)((vu)w[0] >> 16));
  for (int i = 0; i < 4; i++) {
    vi a = w[1] >> 8 * i, b = w[2] >> 8 * i, c = w[3] >> 8 * i;
    scale[i] = d * to_float(a & 63);
    min[i] = dmin * to_float(b & 63);
    scale[i + 4] = d * to_float((c & 15) | (a >> 6 & 3) << 4);
    min[i + 4] = dmin * to_float((c >> 4 & 15) | (b >> 6 & 3) << 4);
  }
}

DECODE_ROWS(q4_k)
{
  for (int64_t i = 0; i < n; i += GR_QK_K, x += sizeof(gr_block_q4_k), dst += strip_of(words, GR_QK_K)) {
    vf scale[8], min[8];
    load_pairs(scale, min, x, stride);
    for (int part = 0; part < 8; part++) { /* 16 bytes: half of two sub-blocks */
      int s = part & ~1, at = 32 * s + 16 * (part & 1);
      vf s0 = scale[s], m0 = -min[s], s1 = scale[s + 1], m1 = GR_MUTANT(matmul_q4_k_no_min) ? vset(0) : -min[s + 1];
      vi w[4];
      load_words(w, x + 16 + 16 * part, stride);
      GR_UNROLL
      for (int j = 0; j < 4; j++) {
        GR_UNROLL
        for (int b = 0; b < 4; b += 2) {
          vi low = w[j] >> 8 * b, high = w[j] >> (8 * b + 4);
          put(words, dst, at + 4 * j + b, scaled(low & 15, s0, m0), scaled(low >> 8 & 15, s0, m0));
          put(words, dst, at + 32 + 4 * j + b, scaled(high & 15, s1, m1), scaled(high >> 8 & 15, s1, m1));
        }
      }
    }
  }
}

/* The code of Q5_K: four low bits of w, the lowest of top. */
static inline vi q5(vi w, vi top) { return (w & 15) | (top & 1) << 4; }

DECODE_ROWS(q5_k)
{
  for (int64_t i = 0; i < n; i += GR_QK_K, x += sizeof(gr_block_q5_k), dst += strip_of(words, GR_QK_K)) {
    vf scale[8], min[8];
    load_pairs(scale, min, x, stride);
    for (int part = 0; part < 8; part++) {
      int s = part & ~1, at = 32 * s + 16 * (part & 1);
      vf s0 = scale[s], m0 = -min[s], s1 = scale[s + 1], m1 = -min[s + 1];
      vi w[4], fifth[4];
      load_words(fifth, x + 16 + 16 * (part & 1), stride);
      load_words(w, x + 48 + 16 * part, stride);
      GR_UNROLL
      for (int j = 0; j < 4; j++) {
        vi bits = fifth[j] >> s; /* bit 8 b: of byte b, sub-block s */
        GR_UNROLL
        for (int b = 0; b < 4; b += 2) {
          vi low = w[j] >> 8 * b, high = w[j] >> (8 * b + 4), top = bits >> 8 * b;
          put(words, dst, at + 4 * j + b, scaled(q5(low, top), s0, m0), scaled(q5(low >> 8, top >> 8), s0, m0));
          put(words, dst, at + 32 + 4 * j + b, scaled(q5(high, top >> 1), s1, m1), scaled(q5(high >> 8, top >> 9), s1, m1));
        }
      }
    }
  }
}

/* One vector of Q6_K: the four low bits are at `low` of w, the two high ones at `high` of top. */
static inline vf q6(vi w, int low, vi top, int high, vf scale) { return scale * to_float(((w >> low & 15) | (top >> high & 3) << 4) - 32); }

DECODE_ROWS(q6_k)
{
  for (int64_t i = 0; i < n; i += GR_QK_K, x += sizeof(gr_block_q6_k), dst += strip_of(words, GR_QK_K)) {
    vf d = half_floats(load_halves(x + 208, stride));
    vi scales[4];
    load_words(scales, x + 192, stride);
    for (int part = 0; part < 4; part++) { /* 16 of each 32 elements l, of half h of the block */
      int h = part >> 1, side = part & 1, at = 128 * h + 16 * side;
      vf scale[4];
      for (int t = 0; t < 4; t++) {
        int s = 8 * h + 2 * t + side;
        scale[t] = d * to_float(scales[s >> 2] << (24 - 8 * (s & 3)) >> 24);
      }
      vi first[4], second[4], top[4];
      load_words(first, x + 64 * h + 16 * side, stride);
      load_words(second, x + 64 * h + 32 + 16 * side, stride);
      load_words(top, x + 128 + 32 * h + 16 * side, stride);
      GR_UNROLL
      for (int j = 0; j < 4; j++) {
        GR_UNROLL
        for (int b = 0; b < 32; b += 16) {
          int e = at + 4 * j + b / 8;
          put(words, dst, e, q6(first[j], b, top[j], b, scale[0]), q6(first[j], b + 8, top[j], b + 8, scale[0]));
          put(words, dst, e + 32, q6(second[j], b, top[j], b + 2, scale[1]), q6(second[j], b + 8, top[j], b + 10, scale[1]));
          put(words, dst, e + 64, q6(first[j], b + 4, top[j], b + 4, scale[2]), q6(first[j], b + 12, top[j], b + 12, scale[2]));
          put(words, dst, e + 96, q6(second[j], b + 4, top[j], b + 6, scale[3]), q6(second[j], b + 12, top[j], b + 14, scale[3]));
        }
      }
    }
  }
}

gr_tile_fn *const GR_ISA_FN(tiles)[1 + GR_WORDS][GR_DTYPE_COUNT] = {
#define TILES(variant)                                                                                                                     \
  { [GR_Q4_0] = q4_0_##variant, [GR_Q4_1] = q4_1_##variant, [GR_Q8_0] = q8_0_##variant,                                                    \
    [GR_Q4_K] = q4_k_##variant, [GR_Q5_K] = q5_k_##variant, [GR_Q6_K] = q6_k_##variant },
  TILES(tile)
#if GR_WORDS
      TILES(words)
#endif
};
