/* Decoding GR_LANES rows of W at once, a lane for each row: packed words are transposed before they are unpacked, so that one shuffle
 * serves many weights, and each lane keeps its own row's scales. Shared by tiles.c, which stores what comes out, and thin.c, which
 * multiplies with it at once.
 *
 * A type is two or three functions. <type>_open reads what a super-block shares; <type>_load the codes of a block, or of one part of a
 * super-block; <type>_at gives element e of those, in ascending order, e a constant once the loops are unrolled.
 *
 * The values are those of kernels/decode.c, bit by bit: where a product of scale and code is written as a fused multiply-add, it is exact
 * (a half has 11 bits, scales and codes have the rest of at most 24), and so rounds once either way. */
#ifndef GR_CPU_BLOCKS_H
#define GR_CPU_BLOCKS_H
#include "backend/cpu/kernels/kernels.h"
#include "base/mutant.h"
#include "quant/blocks.h"

#define GR_INLINE static inline __attribute__((always_inline))

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

/* The byte, the two or the four bytes at x of each row. */
static inline vi load_bytes(const uint8_t *x, int64_t stride)
{
  int32_t v[GR_LANES];
  for (int r = 0; r < GR_LANES; r++) v[r] = x[r * stride];
  vi w;
  memcpy(&w, v, sizeof w);
  return w;
}

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

/* ---- blocks of 32 ---- */

typedef struct gr_part_32 {
  vf scale, offset;
  vi w[8];
} gr_part_32;

/* A number for each of the lowest four bits of `index`, the others being anything: those bits themselves, or less 8. Or of the lowest five.
 */
GR_INLINE vf q4_float(vi index)
{
#if GR_LANES == 16
  const vf codes = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
  return (vf)_mm512_permutexvar_ps((__m512i)index, (__m512)codes);
#else
  return to_float(index & 15);
#endif
}

GR_INLINE vf q4_less_8(vi index)
{
#if GR_LANES == 16
  const vf codes = { -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7 };
  return (vf)_mm512_permutexvar_ps((__m512i)index, (__m512)codes);
#else
  return to_float((index & 15) - 8);
#endif
}

GR_INLINE vf q5_float(vi index)
{
#if GR_LANES == 16
  const vf codes = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
  const vf others = { 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31 };
  return (vf)_mm512_permutex2var_ps((__m512)codes, (__m512i)index, (__m512)others);
#else
  return to_float(index & 31);
#endif
}

GR_INLINE vf q5_less_16(vi index)
{
#if GR_LANES == 16
  const vf codes = { -16, -15, -14, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, -1 };
  const vf others = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
  return (vf)_mm512_permutex2var_ps((__m512)codes, (__m512i)index, (__m512)others);
#else
  return to_float((index & 31) - 16);
#endif
}

/* Code e of a block of nibbles, below anything: the low ones come first. */
GR_INLINE vi nibble(const vi *w, int e) { return w[e % 16 / 4] >> (8 * (e % 4) + 4 * (e / 16)); }

GR_INLINE void q4_1_load(gr_part_32 *p, const uint8_t *x, int64_t stride)
{
  vi head = load_word(x, stride);
  p->scale = half_floats(head), p->offset = half_floats((vi)((vu)head >> 16));
  load_words(p->w, x + 4, stride);
}
GR_INLINE vf q4_1_at(const gr_part_32 *p, int e) { return madd(q4_float(nibble(p->w, e)), p->scale, p->offset); }

GR_INLINE void q4_0_load(gr_part_32 *p, const uint8_t *x, int64_t stride)
{
  p->scale = half_floats(load_halves(x, stride));
  load_words(p->w, x + 2, stride);
}
GR_INLINE vf q4_0_at(const gr_part_32 *p, int e) { return p->scale * q4_less_8(nibble(p->w, e)); }

/* Byte i of each word at its top and nothing below: a signed code times 2^24, by which its scale has been divided (nothing rounds). */
GR_INLINE vi top_byte(vi w, int i)
{
#if GR_LANES == 16
  const int at = i << 24;
  if (i > 0 && i < 3)
    return (vi)_mm512_shuffle_epi8(
        (__m512i)w, _mm512_add_epi32(_mm512_set1_epi32(at | 0x808080),
                                     _mm512_set_epi32(0x0c000000, 0x08000000, 0x04000000, 0, 0x0c000000, 0x08000000, 0x04000000, 0,
                                                      0x0c000000, 0x08000000, 0x04000000, 0, 0x0c000000, 0x08000000, 0x04000000, 0)));
#endif
  return (i < 3 ? w << (24 - 8 * i) : w) & (int32_t)0xff000000;
}

GR_INLINE void q8_0_load(gr_part_32 *p, const uint8_t *x, int64_t stride)
{
  p->scale = half_floats(load_halves(x, stride)) * vset(0x1p-24f);
  load_words(p->w, x + 2, stride);
  load_words(p->w + 4, x + 18, stride);
}
GR_INLINE vf q8_0_at(const gr_part_32 *p, int e) { return p->scale * to_float(top_byte(p->w[e / 4], e % 4)); }

/* Codes of five bits, one to a byte: four nibbles of qs below four bits of qh, which a product spreads (no two of its terms meet). */
GR_INLINE void five_bits(vi w[8], const uint8_t *qh, const uint8_t *qs, int64_t stride)
{
  const vi top = load_word(qh, stride);
  load_words(w, qs, stride);
  for (int i = 7; i >= 0; i--)
    w[i] = (w[i % 4] >> i / 4 * 4 & 0x0f0f0f0f) | ((top >> 4 * i & 15) * (1 << 4 | 1 << 11 | 1 << 18 | 1 << 25) & 0x10101010);
}

GR_INLINE void q5_0_load(gr_part_32 *p, const uint8_t *x, int64_t stride)
{
  p->scale = half_floats(load_halves(x, stride));
  five_bits(p->w, x + 2, x + 6, stride);
}
GR_INLINE vf q5_0_at(const gr_part_32 *p, int e) { return p->scale * q5_less_16(p->w[e / 4] >> 8 * (e % 4)); }

GR_INLINE void q5_1_load(gr_part_32 *p, const uint8_t *x, int64_t stride)
{
  vi head = load_word(x, stride);
  p->scale = half_floats(head), p->offset = half_floats((vi)((vu)head >> 16));
  five_bits(p->w, x + 4, x + 8, stride);
}
GR_INLINE vf q5_1_at(const gr_part_32 *p, int e) { return madd(q5_float(p->w[e / 4] >> 8 * (e % 4)), p->scale, p->offset); }

/* ---- codes of four bits that name a value of an alphabet ---- */

/* Codes of 32 elements, as they are and with the alphabet beside them; where that is no vector, a byte of each word is a value already. */
typedef struct gr_named {
#if GR_LANES == 16
  vf alphabet;
  vi w[4];
#else
  vi w[8];
#endif
} gr_named;

/* The value of each byte, which is a code. */
GR_INLINE vi named_bytes(const int8_t alphabet[16], vi codes)
{
#if GR_LANES == 8
  return (vi)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)alphabet)), (__m256i)codes);
#elif defined(GR_NEON)
  return (vi)vqtbl1q_s8(vld1q_s8(alphabet), (uint8x16_t)codes);
#else
  int8_t b[4 * GR_LANES];
  memcpy(b, &codes, sizeof b);
  for (size_t i = 0; i < sizeof b; i++) b[i] = alphabet[b[i]];
  memcpy(&codes, b, sizeof b);
  return codes;
#endif
}

GR_INLINE void named_load(gr_named *p, const int8_t alphabet[16], const uint8_t *x, int64_t stride)
{
  load_words(p->w, x, stride);
#if GR_LANES == 16
  p->alphabet = (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)alphabet)));
#else
  for (int i = 0; i < 4; i++) {
    p->w[i + 4] = named_bytes(alphabet, p->w[i] >> 4 & 0x0f0f0f0f);
    p->w[i] = named_bytes(alphabet, p->w[i] & 0x0f0f0f0f);
  }
#endif
}

GR_INLINE vf named_at(const gr_named *p, int e)
{
#if GR_LANES == 16 /* of an index the four lowest bits count */
  return (vf)_mm512_permutexvar_ps((__m512i)(p->w[e % 16 / 4] >> (8 * (e % 4) + 4 * (e / 16))), (__m512)p->alphabet);
#else
  return to_float(p->w[e / 4] << (24 - 8 * (e % 4)) >> 24);
#endif
}

typedef struct gr_part_named {
  vf scale;
  gr_named codes;
} gr_part_named;

GR_INLINE void iq4_nl_load(gr_part_named *p, const uint8_t *x, int64_t stride)
{
  p->scale = half_floats(load_halves(x, stride));
  named_load(&p->codes, gr_iq4_values, x + 2, stride);
}
GR_INLINE vf iq4_nl_at(const gr_part_named *p, int e) { return p->scale * named_at(&p->codes, e); }

/* The power of two is halved because the alphabet is doubled: denormal for the two smallest (quant/mxfp4.c). */
GR_INLINE void mxfp4_load(gr_part_named *p, const uint8_t *x, int64_t stride)
{
  const vi e = load_bytes(x, stride), least = e < 2;
  p->scale = (vf)((least & 0x00200000 << (e & 1)) | (~least & (e - 1) << 23));
  named_load(&p->codes, gr_mxfp4_values, x + 1, stride);
}
GR_INLINE vf mxfp4_at(const gr_part_named *p, int e) { return p->scale * named_at(&p->codes, e); }

/* ---- super-blocks of 256 ---- */

/* Scales and minima of the eight sub-blocks, from the first 16 bytes of Q4_K and Q5_K (quant/kquant.h); Q5_K's fifth bits. */
typedef struct gr_head_k {
  vf scale[8], min[8];
  vi fifth[8];
} gr_head_k;

/* Two sub-blocks. */
typedef struct gr_part_k {
  vf scale[2], min[2];
  vi w[8], fifth[8];
} gr_part_k;

enum { GR_Q2_K_PART = 128, GR_Q3_K_PART = 128, GR_Q4_K_PART = 64, GR_Q5_K_PART = 64, GR_Q6_K_PART = 128 };

GR_INLINE void q4_k_open(gr_head_k *h, const uint8_t *x, int64_t stride)
{
  vi w[4];
  load_words(w, x, stride);
  vf d = half_floats(w[0]), dmin = half_floats((vi)((vu)w[0] >> 16));
  for (int i = 0; i < 4; i++) {
    vi a = w[1] >> 8 * i, b = w[2] >> 8 * i, c = w[3] >> 8 * i;
    h->scale[i] = d * to_float(a & 63);
    h->min[i] = -(dmin * to_float(b & 63));
    h->scale[i + 4] = d * to_float((c & 15) | (a >> 6 & 3) << 4);
    h->min[i + 4] = -(dmin * to_float((c >> 4 & 15) | (b >> 6 & 3) << 4));
  }
}
GR_INLINE void q4_k_load(gr_part_k *p, const gr_head_k *h, const uint8_t *x, int64_t stride, int part)
{
  for (int i = 0; i < 2; i++) p->scale[i] = h->scale[2 * part + i], p->min[i] = h->min[2 * part + i];
  if (GR_MUTANT(matmul_q4_k_no_min)) p->min[1] = vset(0);
  load_words(p->w, x + 16 + 32 * part, stride);
  load_words(p->w + 4, x + 32 + 32 * part, stride);
}
GR_INLINE vi k_nibble(const vi *w, int e) { return w[e % 32 / 4] >> (8 * (e % 4) + 4 * (e / 32)); }
GR_INLINE vf q4_k_at(const gr_part_k *p, int e) { return madd(q4_float(k_nibble(p->w, e)), p->scale[e / 32], p->min[e / 32]); }

GR_INLINE void q5_k_open(gr_head_k *h, const uint8_t *x, int64_t stride)
{
  q4_k_open(h, x, stride);
  load_words(h->fifth, x + 16, stride);
  load_words(h->fifth + 4, x + 32, stride);
}
/* Bit 2 * part of each byte is the first sub-block's. */
GR_INLINE void q5_k_load(gr_part_k *p, const gr_head_k *h, const uint8_t *x, int64_t stride, int part)
{
  for (int i = 0; i < 2; i++) p->scale[i] = h->scale[2 * part + i], p->min[i] = h->min[2 * part + i];
  load_words(p->w, x + 48 + 32 * part, stride);
  load_words(p->w + 4, x + 64 + 32 * part, stride);
  for (int i = 0; i < 8; i++) p->fifth[i] = h->fifth[i] >> 2 * part;
}
GR_INLINE vf q5_k_at(const gr_part_k *p, int e)
{
  const vi four = (vi){ 0 } + 15, fifth = p->fifth[e % 32 / 4];
  const int bit = 8 * (e % 4) + e / 32 - 4;
  return madd(q5_float((k_nibble(p->w, e) & four) | ((bit < 0 ? fifth << -bit : fifth >> bit) & ~four)), p->scale[e / 32], p->min[e / 32]);
}

typedef struct gr_head_q6 {
  vf d;
  vi scales[4];
} gr_head_q6;

/* Half a block. */
typedef struct gr_part_q6 {
  vf scale[8];
  vi w[16], top[8];
} gr_part_q6;

GR_INLINE void q6_k_open(gr_head_q6 *h, const uint8_t *x, int64_t stride)
{
  h->d = half_floats(load_halves(x + 208, stride));
  load_words(h->scales, x + 192, stride);
}
GR_INLINE void q6_k_load(gr_part_q6 *p, const gr_head_q6 *h, const uint8_t *x, int64_t stride, int part)
{
  for (int i = 0; i < 8; i++) p->scale[i] = h->d * to_float(h->scales[2 * part + i / 4] << (24 - 8 * (i % 4)) >> 24) * vset(0x1p-26f);
  for (int i = 0; i < 4; i++) load_words(p->w + 4 * i, x + 64 * part + 16 * i, stride);
  for (int i = 0; i < 2; i++) load_words(p->top + 4 * i, x + 128 + 32 * part + 16 * i, stride);
}
/* Elements 4 j to 4 j + 3: codes less 32 are the six highest bits of bytes, times 2^26 as they are converted, by which scales have been
 * divided. */
GR_INLINE vi q6_k_word(const gr_part_q6 *p, int j)
{
  const vi q = p->w[j % 16], low = (j < 16 ? q << 2 : q >> 2) & 0x3c3c3c3c;
  const vi high = p->top[j % 8] << (6 - 2 * (j / 8)) & (int32_t)0xc0c0c0c0;
  return (low | high) ^ (int32_t)0x80808080;
}
GR_INLINE vf q6_k_at(const gr_part_q6 *p, int e) { return p->scale[e / 16] * to_float(top_byte(q6_k_word(p, e / 4), e % 4)); }

/* ---- super-blocks of 256 in sub-blocks of 16, codes of two and three bits ---- */

/* Bits 0 and 1 of q, above them those of top. */
GR_INLINE vi two_bits(vi q, vi top)
{
  const vi two = (vi){ 0 } + 3;
  return (q & two) | (top & ~two);
}

/* A number for each of the lowest bits of `index`, the others being anything: of two bits themselves, of three less 4. */
GR_INLINE vf q2_float(vi index)
{
#if GR_LANES == 16
  const vf codes = { 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3 };
  return (vf)_mm512_permutexvar_ps((__m512i)index, (__m512)codes);
#else
  return to_float(index & 3);
#endif
}

GR_INLINE vf q3_float(vi index)
{
#if GR_LANES == 16
  const vf codes = { -4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3 };
  return (vf)_mm512_permutexvar_ps((__m512i)index, (__m512)codes);
#else
  return to_float((index & 7) - 4);
#endif
}

typedef struct gr_head_q2 {
  vf d, dmin;
  vi scales[4];
} gr_head_q2;

/* Half a block. */
typedef struct gr_part_q2 {
  vf scale[8], min[8];
  vi w[8];
} gr_part_q2;

GR_INLINE void q2_k_open(gr_head_q2 *h, const uint8_t *x, int64_t stride)
{
  vi d = load_word(x + 80, stride);
  h->d = half_floats(d), h->dmin = half_floats((vi)((vu)d >> 16));
  load_words(h->scales, x, stride);
}
GR_INLINE vf q2_k_scale(const gr_head_q2 *h, int s) { return h->d * to_float(h->scales[s / 4] >> 8 * (s % 4) & 15); }
GR_INLINE vf q2_k_min(const gr_head_q2 *h, int s) { return -(h->dmin * to_float(h->scales[s / 4] >> (8 * (s % 4) + 4) & 15)); }
GR_INLINE void q2_k_load(gr_part_q2 *p, const gr_head_q2 *h, const uint8_t *x, int64_t stride, int part)
{
  for (int i = 0; i < 8; i++) p->scale[i] = q2_k_scale(h, 8 * part + i), p->min[i] = q2_k_min(h, 8 * part + i);
  for (int i = 0; i < 2; i++) load_words(p->w + 4 * i, x + 16 + 32 * part + 16 * i, stride);
}
GR_INLINE vf q2_k_at(const gr_part_q2 *p, int e)
{
  return madd(q2_float(p->w[e % 32 / 4] >> (8 * (e % 4) + 2 * (e / 32))), p->scale[e / 16], p->min[e / 16]);
}

typedef struct gr_head_q3 {
  vf d;
  vi scales[4], third[8]; /* scales from their second byte before: word 0 has two bytes of codes, word 3 has d */
} gr_head_q3;

typedef struct gr_part_q3 {
  vf scale[8];
  vi w[8], third[8];
} gr_part_q3;

GR_INLINE void q3_k_open(gr_head_q3 *h, const uint8_t *x, int64_t stride)
{
  for (int i = 0; i < 2; i++) load_words(h->third + 4 * i, x + 16 * i, stride);
  load_words(h->scales, x + 94, stride);
  h->d = half_floats((vi)((vu)h->scales[3] >> 16));
}
/* Four bits of scale s stand in byte s % 8, two in byte 8 + s % 4 (quant/kquant.h). */
GR_INLINE vf q3_k_scale(const gr_head_q3 *h, int s)
{
  int at = 2 + s % 8, top = 10 + s % 4;
  vi low = h->scales[at / 4] >> (8 * (at % 4) + s / 8 * 4) & 15, high = h->scales[top / 4] >> (8 * (top % 4) + s / 4 * 2) & 3;
  return h->d * to_float((low | high << 4) - 32);
}
/* Bit 4 * part of each byte of `third` is the first 32 elements'. */
GR_INLINE void q3_k_load(gr_part_q3 *p, const gr_head_q3 *h, const uint8_t *x, int64_t stride, int part)
{
  for (int i = 0; i < 8; i++) p->scale[i] = q3_k_scale(h, 8 * part + i);
  for (int i = 0; i < 2; i++) load_words(p->w + 4 * i, x + 32 + 32 * part + 16 * i, stride);
  for (int i = 0; i < 8; i++) p->third[i] = h->third[i] >> 4 * part;
}
GR_INLINE vf q3_k_at(const gr_part_q3 *p, int e)
{
  int t = e / 32, byte = 8 * (e % 4), third = byte + t - 2;
  vi top = p->third[e % 32 / 4];
  return p->scale[e / 16] * q3_float(two_bits(p->w[e % 32 / 4] >> (byte + 2 * t), third < 0 ? top << -third : top >> third));
}

/* ---- super-blocks of 256 in sub-blocks of 32, codes of four bits that name a value ---- */

enum { GR_IQ4_XS_PART = 64 };

typedef struct gr_head_iq4 {
  vf d;
  vi low, high; /* four bits of scale s at bit 4 s, two at bit 16 + 2 s */
} gr_head_iq4;

typedef struct gr_part_iq4 {
  vf scale[2];
  gr_named codes[2];
} gr_part_iq4;

GR_INLINE void iq4_xs_open(gr_head_iq4 *h, const uint8_t *x, int64_t stride)
{
  h->high = load_word(x, stride), h->low = load_word(x + 4, stride);
  h->d = half_floats(h->high);
}
GR_INLINE vf iq4_xs_scale(const gr_head_iq4 *h, int s)
{
  return h->d * to_float(((h->low >> 4 * s & 15) | (h->high >> (16 + 2 * s) & 3) << 4) - 32);
}
GR_INLINE void iq4_xs_load(gr_part_iq4 *p, const gr_head_iq4 *h, const uint8_t *x, int64_t stride, int part)
{
  for (int i = 0; i < 2; i++) {
    p->scale[i] = iq4_xs_scale(h, 2 * part + i);
    named_load(&p->codes[i], gr_iq4_values, x + 8 + 32 * part + 16 * i, stride);
  }
}
GR_INLINE vf iq4_xs_at(const gr_part_iq4 *p, int e) { return p->scale[e / 32] * named_at(&p->codes[e / 32], e % 32); }

#endif
