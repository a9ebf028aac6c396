#include "base/rng.h"

#include <math.h>

void gr_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4])
{
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  for (int round = 0; round < GR_PHILOX_ROUNDS; round++) {
    uint64_t p0 = (uint64_t)GR_PHILOX_M0 * c0, p1 = (uint64_t)GR_PHILOX_M1 * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += GR_PHILOX_W0;
    k1 += GR_PHILOX_W1;
  }
  out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

static void random_words(uint64_t seed, uint64_t a, uint64_t b, uint32_t out[4])
{
  const uint32_t counter[4] = { (uint32_t)a, (uint32_t)(a >> 32), (uint32_t)b, (uint32_t)(b >> 32) };
  gr_philox(seed, counter, out);
}

uint64_t gr_random_u64(uint64_t seed, uint64_t a, uint64_t b)
{
  uint32_t w[4];
  random_words(seed, a, b, w);
  return (uint64_t)w[1] << 32 | w[0];
}

double gr_random_uniform(uint64_t seed, uint64_t a, uint64_t b) { return (double)(gr_random_u64(seed, a, b) >> 11) * 0x1p-53; }

double gr_random_normal(uint64_t seed, uint64_t a, uint64_t b)
{
  uint32_t w[4];
  random_words(seed, a, b, w);
  double u = ((double)(((uint64_t)w[1] << 32 | w[0]) >> 11) + 1) * 0x1p-53; /* (0, 1] */
  double v = (double)(((uint64_t)w[3] << 32 | w[2]) >> 11) * 0x1p-53;
  return sqrt(-2 * log(u)) * cos(6.283185307179586477 * v);
}

uint64_t gr_random_below(uint64_t seed, uint64_t a, uint64_t b, uint64_t n)
{
  uint64_t r = gr_random_u64(seed, a, b), hi = r >> 32, lo = r & 0xffffffff, n_hi = n >> 32, n_lo = n & 0xffffffff;
  uint64_t mid = hi * n_lo + (lo * n_lo >> 32), mid2 = lo * n_hi + (mid & 0xffffffff);
  return hi * n_hi + (mid >> 32) + (mid2 >> 32);
}
