#include "backend/cpu/peak.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/cpu.h"

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

/* ---- limits ---- */

enum { TRIES = 64, PIECES = 8, JOBS_MOST = 1024, LOOPS = 2500 };

static double now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct peak {
  const gr_cpu_isa *isa;
  bool bf16;
  double rate[JOBS_MOST]; /* of each job */
} peak;

static void peak_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  peak *p = ctx;
  double start = now(), flops = p->isa->peak(LOOPS, p->bf16);
  p->rate[job] = flops / (now() - start);
}

static int ascending(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* As many small jobs for every thread, each timed by itself: the middle one's rate for all threads. A thread that starts late, or whose
 * core another process holds, lowers it no more than a moment in which fewer threads than all run raises it. */
static double try_peak(peak *p, gr_pool *pool)
{
  size_t threads = (size_t)gr_pool_threads(pool), jobs = threads * PIECES < JOBS_MOST ? threads * PIECES : JOBS_MOST;
  gr_pool_run(pool, jobs, peak_job, p);
  qsort(p->rate, jobs, sizeof *p->rate, ascending);
  return p->rate[jobs / 2] * (double)threads;
}

void gr_cpu_limits_raise(gr_cpu_limits *l, const gr_backend *b, gr_pool *pool, const void *memory, size_t bytes)
{
  const size_t piece = bytes / TRIES;
  peak p = { .isa = gr_cpu_isa_of(b) };
  for (size_t i = 0; i < TRIES; i++) {
    p.bf16 = i % 2;
    double flop_s = try_peak(&p, pool), start = now();
    if (memory) (void)gr_cpu_read(pool, (const unsigned char *)memory + i * piece, piece);
    double byte_s = memory ? (double)piece / (now() - start) : 0;
    if (flop_s > l->flop_s[i % 2]) l->flop_s[i % 2] = flop_s;
    if (byte_s > l->byte_s) l->byte_s = byte_s;
  }
  if (!p.isa->words) l->flop_s[0] = l->flop_s[1] = l->flop_s[0] > l->flop_s[1] ? l->flop_s[0] : l->flop_s[1];
}
