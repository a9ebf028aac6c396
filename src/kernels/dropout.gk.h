/* y = x / (1 - rate) where the mask keeps it, else 0: the mask of src/ops/dropout.h, four channels a thread, of one Philox block. */
#include "kernels/gk/index.h"

/* Philox4x32-10, as src/base/rng.c has it. */
GK_FN void gk_philox(uint64_t key, GK_PRIVATE uint32_t *c)
{
  uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
  for (uint32_t round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
    c[0] = (uint32_t)(p1 >> 32) ^ c[1] ^ k0;
    c[1] = (uint32_t)p1;
    c[2] = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
    c[3] = (uint32_t)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

/* run: the words of seed and step; keys: sample and token of each row. */
GK_KERNEL(dropout_f32, gk_dropout_args, const GK_GLOBAL float *x, const GK_GLOBAL int32_t *keys, const GK_GLOBAL int32_t *run,
          GK_GLOBAL float *y)
{
  GK_ENTER(t);
  uint32_t i[4];
  gk_element(t, a.walk, a.blocks, i);
  const uint32_t q = i[0], row = i[1];
  if (4 * q >= a.length) return;
  uint32_t c[4] = { (uint32_t)run[2 * a.run_stride], (uint32_t)run[3 * a.run_stride], a.adapter, 0x64726f70u };
  gk_philox((uint64_t)(uint32_t)run[a.run_stride] << 32 | (uint32_t)run[0], c);
  const uint64_t key = (uint64_t)c[1] << 32 | c[0];
  c[0] = GK_MUTANT(emu_dropout_no_sample) ? 0u : (uint32_t)keys[row * a.key_stride[1]];
  c[1] = (uint32_t)keys[a.key_stride[0] + row * a.key_stride[1]];
  c[2] = q, c[3] = 0;
  gk_philox(key, c);
  for (uint32_t e = 0; e < 4; e++) {
    if (4 * q + e >= a.length) continue;
    const float v = x[(4 * q + e) * a.x_stride[0] + row * a.x_stride[1]];
    y[(4 * q + e) * a.y_stride[0] + row * a.y_stride[1]] = c[e] >= a.threshold ? v * a.scale : 0.0f;
  }
}
