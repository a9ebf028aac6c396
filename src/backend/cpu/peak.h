/* The machine's limit, for the roofline lines of benchmarks: every thread runs multiply-adds on registers alone. */
#ifndef GR_CPU_PEAK_H
#define GR_CPU_PEAK_H
#include "backend/backend.h"

/* Runs `loops` rounds on every thread of the pool (NULL: one thread); returns the floating-point operations done. b: an open CPU backend.
 */
double gr_cpu_peak(const gr_backend *b, gr_pool *pool, int64_t loops, bool bf16);

/* Reads bytes[n], a piece for every thread of the pool; the sum of its words, which is of no interest. What the memory gives is measured
 * with more bytes than the caches hold. */
uint64_t gr_cpu_read(gr_pool *pool, const void *bytes, size_t n);

#endif
