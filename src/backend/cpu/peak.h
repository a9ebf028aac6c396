/* The machine's limits, for the roofline lines of benchmarks: every thread runs multiply-adds on registers alone, or reads memory. */
#ifndef GR_CPU_PEAK_H
#define GR_CPU_PEAK_H
#include "backend/backend.h"

/* Reads bytes[n], a piece for every thread of the pool; the sum of its words, which is of no interest. What the memory gives is measured
 * with more bytes than the caches hold. */
uint64_t gr_cpu_read(gr_pool *pool, const void *bytes, size_t n);

/* The limits of a machine over a run: the best of short tries, taken anew before each thing that is timed. A limit is what the machine
 * gives while nobody else is served; one try that another process disturbs would be far below, and shares of it above 100 %. */
typedef struct gr_cpu_limits {
  double flop_s[2]; /* multiply-adds on registers: of F32, of bf16 (where the set has no products of bf16, those of F32) */
  double byte_s;    /* read from memory */
} gr_cpu_limits;

/* A few milliseconds of tries by an open CPU backend; they can only raise the limits. memory[bytes]: more than the caches hold, read a
 * piece a try, so that none of it is in a cache; NULL: only multiply-adds are measured. */
void gr_cpu_limits_raise(gr_cpu_limits *l, const gr_backend *b, gr_pool *pool, const void *memory, size_t bytes);

#endif
