/* The machine's F32 fused multiply-add limit: what all threads of a pool reach from registers alone, in GFLOP/s, now. Measured
 * beside each timing, because the clock of a shared machine moves. */
#ifndef GR_BENCH_LIMIT_H
#define GR_BENCH_LIMIT_H
#include "base/pool.h"

double bench_fma_limit(gr_pool *pool);

#endif
