/* Counter-based random numbers: a value is a pure function of its key, so it does not depend on order, threads or packing.
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC 2011). */
#ifndef GR_BASE_RNG_H
#define GR_BASE_RNG_H
#include <stdint.h>

/* Multipliers of words 0 and 2, what the key's words grow by each round, and how many rounds there are. */
#define GR_PHILOX_M0 0xD2511F53u
#define GR_PHILOX_M1 0xCD9E8D57u
#define GR_PHILOX_W0 0x9E3779B9u
#define GR_PHILOX_W1 0xBB67AE85u
enum { GR_PHILOX_ROUNDS = 10 };

/* out[4] = Philox(key, counter). */
void gr_philox(uint64_t key, const uint32_t counter[4], uint32_t out[4]);

/* 64 random bits for (seed, a, b): seed is the run's, a and b name the use, for example (stream, index). */
uint64_t gr_random_u64(uint64_t seed, uint64_t a, uint64_t b);

/* Uniform in [0, 1), 53 bits; and standard normal (Box-Muller on the same two keys). */
double gr_random_uniform(uint64_t seed, uint64_t a, uint64_t b);
double gr_random_normal(uint64_t seed, uint64_t a, uint64_t b);

/* Uniform integer in [0, n), n > 0, without modulo bias beyond 2^-64. */
uint64_t gr_random_below(uint64_t seed, uint64_t a, uint64_t b, uint64_t n);

#endif
