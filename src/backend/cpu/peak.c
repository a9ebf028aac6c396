#include "backend/cpu/peak.h"

#include "backend/cpu/cpu.h"

typedef struct peak {
  const gr_cpu_isa *isa;
  int64_t loops;
  bool bf16;
  double flops; /* of one job: all do the same, and only job 0 writes it */
} peak;

static void peak_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  peak *p = ctx;
  double flops = p->isa->peak(p->loops, p->bf16);
  if (job == 0) p->flops = flops;
}

/* In small jobs, so that a thread that starts late or loses its core does not leave the others idle. */
double gr_cpu_peak(const gr_backend *b, gr_pool *pool, int64_t loops, bool bf16)
{
  enum { PIECES = 8 };
  peak p = { gr_cpu_isa_of(b), loops / PIECES + 1, bf16, 0 };
  size_t jobs = (size_t)gr_pool_threads(pool) * PIECES;
  gr_pool_run(pool, jobs, peak_job, &p);
  return (double)jobs * p.flops;
}
