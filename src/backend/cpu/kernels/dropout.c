/* dropout (ops/dropout.h): GR_LANES Philox blocks at a time, a lane for each, so that one vector operation serves as many masks. */
#include "backend/cpu/kernels/kernels.h"
#include "base/rng.h"

#if GR_LANES > 4 || defined(GR_NEON)
/* Lane by lane a * m: the low 32 bits; the high ones go to *high. */
static inline vu multiply(vu a, uint32_t m, vu *high)
{
#if GR_LANES == 16
  const __m512i by = _mm512_set1_epi32((int32_t)m);
  __m512i even = _mm512_mul_epu32((__m512i)a, by), odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), by);
  *high = (vu)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
  return (vu)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
#elif GR_LANES == 8
  const __m256i by = _mm256_set1_epi32((int32_t)m);
  __m256i even = _mm256_mul_epu32((__m256i)a, by), odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), by);
  *high = (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
  return (vu)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
#elif defined(GR_NEON)
  const uint32x4_t from = (uint32x4_t)a;
  uint32x4_t low = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(from), m));
  uint32x4_t top = vreinterpretq_u32_u64(vmull_high_n_u32(from, m));
  *high = (vu)vuzp2q_u32(low, top);
  return (vu)vuzp1q_u32(low, top);
#endif
}

/* Words of the blocks that the lanes of c name. */
static inline void philox(uint64_t key, vu c[4])
{
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (int round = 0; round < GR_PHILOX_ROUNDS; round++, k0 += GR_PHILOX_W0, k1 += GR_PHILOX_W1) {
    vu high0, high1, low0 = multiply(c[0], GR_PHILOX_M0, &high0), low1 = multiply(c[2], GR_PHILOX_M1, &high1);
    c[0] = high1 ^ c[1] ^ k0;
    c[1] = low1;
    c[2] = high0 ^ c[3] ^ k1;
    c[3] = low0;
  }
}

/* Four vectors of a word of each block become four of whole blocks, in order. */
static inline void in_order(vu c[4])
{
  vu t[4] = { __builtin_shufflevector(c[0], c[2], GR_ZIP_LO), __builtin_shufflevector(c[0], c[2], GR_ZIP_HI),
              __builtin_shufflevector(c[1], c[3], GR_ZIP_LO), __builtin_shufflevector(c[1], c[3], GR_ZIP_HI) };
  c[0] = __builtin_shufflevector(t[0], t[2], GR_ZIP_LO), c[1] = __builtin_shufflevector(t[0], t[2], GR_ZIP_HI);
  c[2] = __builtin_shufflevector(t[1], t[3], GR_ZIP_LO), c[3] = __builtin_shufflevector(t[1], t[3], GR_ZIP_HI);
}

/* Words of 4 GR_LANES channels from 4 q on. */
static inline void words_from(uint64_t key, int32_t sample, int32_t token, uint32_t q, vu c[4])
{
  vu blocks;
  for (int i = 0; i < GR_LANES; i++) blocks[i] = (uint32_t)i;
  c[0] = (vu){ 0 } + (uint32_t)sample;
  c[1] = (vu){ 0 } + (uint32_t)token;
  c[2] = blocks + q;
  c[3] = (vu){ 0 };
  philox(key, c);
  in_order(c);
}
#else
/* A vector is a block, and without wide products of lanes they are no faster at once. */
static inline void words_from(uint64_t key, int32_t sample, int32_t token, uint32_t q, vu c[4])
{
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t out[4];
    gr_philox(key, (uint32_t[4]){ (uint32_t)sample, (uint32_t)token, q + i, 0 }, out);
    memcpy(&c[i], out, sizeof out);
  }
}
#endif

static inline vf kept(vf x, vu words, const gr_cpu_mask *m) { return (vf)((vi)(x * vset(m->scale)) & (vi)(words >= m->threshold)); }

void GR_ISA_FN(dropout)(float *y, const float *x, const gr_cpu_mask *m, int32_t sample, int32_t token, int64_t channel, int64_t n)
{
  for (int64_t i = 0; i < n; i += 4 * GR_LANES) {
    vu c[4];
    words_from(m->key, sample, token, (uint32_t)((channel + i) / 4), c);
    for (int v = 0; v < 4; v++) {
      int64_t at = i + v * GR_LANES, live = gr_min(n - at, GR_LANES);
      if (live == GR_LANES) vstore(y + at, kept(vload(x + at), c[v], m));
      else if (live > 0) vstore_part(y + at, kept(vload_part(x + at, live), c[v], m), live);
    }
  }
}
