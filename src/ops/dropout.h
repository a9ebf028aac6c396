/* The mask of dropout, exactly: every implementation computes these integers, so a run's masks do not depend on packing, order,
 * threads or device.
 *
 * run = (seed low, seed high, step low, step high), each a 32-bit word. The key of a run, step and adapter is
 *   (word 1 << 32 | word 0) of Philox(key = seed, counter = (step low, step high, adapter, 0x64726f70)).
 * Channels c = 4 q + w of the row of (sample, token) take word w of
 *   Philox(that key, counter = (sample, token, q, 0)).
 * An element is kept iff its word >= floor(rate * 2^32), and is then multiplied by 1 / (1 - rate). */
#ifndef GR_OPS_DROPOUT_H
#define GR_OPS_DROPOUT_H
#include "base/rng.h"

static inline uint64_t gr_dropout_key(const int32_t run[4], int32_t adapter)
{
  const uint32_t counter[4] = { (uint32_t)run[2], (uint32_t)run[3], (uint32_t)adapter, 0x64726f70u };
  uint32_t out[4];
  gr_philox((uint64_t)(uint32_t)run[1] << 32 | (uint32_t)run[0], counter, out);
  return (uint64_t)out[1] << 32 | out[0];
}

/* The words of channels 4 q to 4 q + 3. */
static inline void gr_dropout_words(uint64_t key, int32_t sample, int32_t token, uint32_t q, uint32_t out[4])
{
  const uint32_t counter[4] = { (uint32_t)sample, (uint32_t)token, q, 0 };
  gr_philox(key, counter, out);
}

/* Words from here on are kept. */
static inline uint32_t gr_dropout_threshold(float rate) { return (uint32_t)((double)rate * 4294967296.0); }
static inline double gr_dropout_scale(float rate) { return 1 / (1 - (double)rate); }

#endif
