#define _GNU_SOURCE
#include "bench/limit.h"

#include <time.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LOOPS = 4000000 };

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#if defined(__x86_64__)
#define FMA16(REG)                                                                                                                         \
  "vfmadd231ps %%" REG "0, %%" REG "1, %%" REG "2\n\tvfmadd231ps %%" REG "0, %%" REG "1, %%" REG "3\n\t"                                   \
  "vfmadd231ps %%" REG "0, %%" REG "1, %%" REG "4\n\tvfmadd231ps %%" REG "0, %%" REG "1, %%" REG "5\n\t"                                   \
  "vfmadd231ps %%" REG "0, %%" REG "1, %%" REG "6\n\tvfmadd231ps %%" REG "0, %%" REG "1, %%" REG "7\n\t"                                   \
  "vfmadd231ps %%" REG "0, %%" REG "1, %%" REG "8\n\tvfmadd231ps %%" REG "0, %%" REG "1, %%" REG "9\n\t"                                   \
  "vfmadd231ps %%" REG "0, %%" REG "1, %%" REG "10\n\tvfmadd231ps %%" REG "0, %%" REG "1, %%" REG "11\n\t"                                 \
  "vfmadd231ps %%" REG "0, %%" REG "1, %%" REG "12\n\tvfmadd231ps %%" REG "0, %%" REG "1, %%" REG "13\n\t"
#define CLEAR(REG)                                                                                                                         \
  "vxorps %%xmm0, %%xmm0, %%xmm0\n\tvxorps %%xmm1, %%xmm1, %%xmm1\n\tvxorps %%xmm2, %%xmm2, %%xmm2\n\tvxorps %%xmm3, %%xmm3, %%xmm3\n\t"   \
  "vxorps %%xmm4, %%xmm4, %%xmm4\n\tvxorps %%xmm5, %%xmm5, %%xmm5\n\tvxorps %%xmm6, %%xmm6, %%xmm6\n\tvxorps %%xmm7, %%xmm7, %%xmm7\n\t"   \
  "vxorps %%xmm8, %%xmm8, %%xmm8\n\tvxorps %%xmm9, %%xmm9, %%xmm9\n\tvxorps %%xmm10, %%xmm10, %%xmm10\n\t"                                 \
  "vxorps %%xmm11, %%xmm11, %%xmm11\n\tvxorps %%xmm12, %%xmm12, %%xmm12\n\tvxorps %%xmm13, %%xmm13, %%xmm13\n\t"
#define LOOP(REG)                                                                                                                          \
  __asm__ volatile(CLEAR(REG) "1:\n\t" FMA16(REG) "dec %0\n\tjnz 1b\n\tvzeroupper"                                                         \
                   : "+r"(loops)                                                                                                           \
                   :                                                                                                                       \
                   : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",   \
                     "cc")
#endif

/* Floating-point operations done. */
static double burn(void)
{
  long loops = LOOPS;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) {
    LOOP("zmm");
    return 2.0 * 16 * 12 * LOOPS;
  }
  if (__builtin_cpu_supports("avx2")) {
    LOOP("ymm");
    return 2.0 * 8 * 12 * LOOPS;
  }
#endif
  typedef float v4 __attribute__((vector_size(16)));
  v4 sum[12] = { 0 }, x = { 1, 1, 1, 1 };
  while (loops--)
    for (int i = 0; i < 12; i++) {
      for (int k = 0; k < 4; k++) sum[i][k] = __builtin_fmaf(x[k], x[k], sum[i][k]);
      __asm__ volatile("" : "+m"(sum[i]));
    }
  return 2.0 * 4 * 12 * LOOPS;
}

static void job(void *ctx, size_t i, int thread)
{
  (void)thread;
  double *rates = ctx, start = now(), flops = burn();
  rates[i] = flops / (now() - start) * 1e-9;
}

double bench_fma_limit(gr_pool *pool)
{
  double rates[64] = { 0 }, total = 0;
  size_t n = (size_t)gr_pool_threads(pool) < 64 ? (size_t)gr_pool_threads(pool) : 64;
  gr_pool_run(pool, n, job, rates);
  for (size_t i = 0; i < n; i++) total += rates[i];
  return total;
}
