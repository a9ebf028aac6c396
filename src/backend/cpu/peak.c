#include "backend/cpu/peak.h"

#include <string.h>

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

enum { READ_PIECE = 1 << 18 };

typedef struct reading {
  const unsigned char *bytes;
  size_t n;
  _Atomic uint64_t sum;
} reading;

typedef uint64_t v2 __attribute__((vector_size(16)));

static inline v2 words_at(const unsigned char *p)
{
  v2 v;
  memcpy(&v, p, sizeof v);
  return v;
}

static void read_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  reading *r = ctx;
  size_t from = job * READ_PIECE, n = (r->n - from < READ_PIECE ? r->n - from : READ_PIECE) / 64;
  v2 a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };
  for (const unsigned char *p = r->bytes + from, *end = p + 64 * n; p < end; p += 64) {
    a += words_at(p);
    b += words_at(p + 16);
    c += words_at(p + 32);
    d += words_at(p + 48);
  }
  a += b + c + d;
  r->sum += a[0] + a[1];
}

uint64_t gr_cpu_read(gr_pool *pool, const void *bytes, size_t n)
{
  reading r = { .bytes = bytes, .n = n };
  gr_pool_run(pool, n / READ_PIECE + (n % READ_PIECE != 0), read_job, &r);
  return r.sum;
}
