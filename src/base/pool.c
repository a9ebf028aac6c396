/* Workers spin briefly between runs (a training step is thousands of short runs), then sleep on a condition variable, so
 * that a machine shared with another process is not held by idle spinning.
 *
 * A run ends when its jobs are done, not when every worker has noticed it: one whose core was taken by another process is not waited for.
 * Such a worker may wake in any later run. So what a run is (work, ctx, jobs) is read only by a thread that has claimed a job which is not
 * done yet: until it is, the run cannot end and nothing of it changes.
 *
 * Threads of even number take jobs from the front, the others from the back: from run to run the same rows then stand in the same core's
 * cache. Cores of a machine may share none, and a row that another one wrote comes from memory. */
#define _GNU_SOURCE
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/numa.h"

enum { SPIN_PAUSES = 2000, SPIN_YIELDS = 50, THREADS_MAX = 1024 };

struct gr_pool {
  int threads;
  pthread_t *ids;
  int started;
  gr_numa *numa;
  pthread_mutex_t mutex;
  pthread_cond_t wake, done;
  atomic_uint round; /* changes when there is work (or the end) */
  atomic_bool stop;
  _Atomic uint64_t unclaimed; /* jobs of the present round: from the low half up to, not including, the high half */
  atomic_size_t unfinished;
  gr_pool_work *work;
  void *ctx;
};

struct worker {
  gr_pool *pool;
  int thread;
};

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

void gr_pool_relax(int turn)
{
  if (turn < SPIN_PAUSES) pause_cpu();
  else sched_yield();
}

/* Whether there was a job to claim: those left may be those of a later round than the one read first, which is as good. */
static bool claim(gr_pool *p, int thread, size_t *job)
{
  const uint64_t last = (uint64_t)1 << 32;
  uint64_t left = atomic_load_explicit(&p->unclaimed, memory_order_relaxed);
  while ((uint32_t)left < left >> 32)
    if (atomic_compare_exchange_weak_explicit(&p->unclaimed, &left, thread % 2 ? left - last : left + 1, memory_order_acquire,
                                              memory_order_relaxed)) {
      *job = thread % 2 ? (size_t)(left >> 32) - 1 : (size_t)(uint32_t)left;
      return true;
    }
  return false;
}

static void take_jobs(gr_pool *p, int thread)
{
  for (size_t job; claim(p, thread, &job);) {
    p->work(p->ctx, job, thread);
    if (atomic_fetch_sub_explicit(&p->unfinished, 1, memory_order_acq_rel) != 1) continue;
    if (thread == 0) return;
    pthread_mutex_lock(&p->mutex);
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->mutex);
  }
}

static unsigned wait_for_round(gr_pool *p, unsigned seen)
{
  for (int i = 0; i < SPIN_PAUSES + SPIN_YIELDS; i++) {
    unsigned round = atomic_load_explicit(&p->round, memory_order_acquire);
    if (round != seen) return round;
    gr_pool_relax(i);
  }
  pthread_mutex_lock(&p->mutex);
  unsigned round;
  while ((round = atomic_load_explicit(&p->round, memory_order_acquire)) == seen) pthread_cond_wait(&p->wake, &p->mutex);
  pthread_mutex_unlock(&p->mutex);
  return round;
}

static void *worker_main(void *arg)
{
  struct worker me = *(struct worker *)arg;
  gr_free(arg);
  for (unsigned seen = 0;;) {
    seen = wait_for_round(me.pool, seen);
    if (atomic_load(&me.pool->stop)) return NULL;
    take_jobs(me.pool, me.thread);
  }
}

static void start_round(gr_pool *p)
{
  pthread_mutex_lock(&p->mutex);
  atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->mutex);
}

int gr_pool_processors(void)
{
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

gr_status gr_pool_create(gr_pool **out, int threads, gr_error *e)
{
  if (threads < 0 || threads > THREADS_MAX)
    return gr_fail(e, GR_ERR_USAGE, "%d threads: give 1 to %d, or 0 for one a processor", threads, THREADS_MAX);
  gr_numa *numa;
  GR_TRY(gr_numa_find(&numa, NULL, e));
  gr_pool *p = gr_calloc(1, sizeof *p);
  if (!p) {
    gr_numa_free(numa);
    return gr_fail_memory(e, sizeof *p);
  }
  p->numa = numa;
  p->threads = threads ? threads : gr_pool_processors();
  p->ids = gr_calloc((size_t)p->threads, sizeof *p->ids);
  pthread_mutex_init(&p->mutex, NULL);
  pthread_cond_init(&p->wake, NULL);
  pthread_cond_init(&p->done, NULL);
  for (int i = 1; p->ids && i < p->threads; i++) {
    struct worker *w = gr_alloc(sizeof *w);
    if (w) *w = (struct worker){ p, i };
    if (!w || pthread_create(&p->ids[i], NULL, worker_main, w) != 0) {
      gr_free(w);
      break;
    }
    p->started++;
  }
  if (!p->ids || p->started < p->threads - 1) {
    int started = p->started;
    gr_pool_free(p);
    return gr_fail(e, GR_ERR_MEMORY, "could start only %d threads: ask for fewer with -t", started + 1);
  }
  *out = p;
  return GR_OK;
}

void gr_pool_free(gr_pool *p)
{
  if (!p) return;
  atomic_store(&p->stop, true);
  start_round(p);
  for (int i = 1; i <= p->started; i++) pthread_join(p->ids[i], NULL);
  pthread_cond_destroy(&p->done);
  pthread_cond_destroy(&p->wake);
  pthread_mutex_destroy(&p->mutex);
  gr_numa_free(p->numa);
  gr_free(p->ids);
  gr_free(p);
}

int gr_pool_threads(const gr_pool *p) { return p ? p->threads : 1; }
const gr_numa *gr_pool_nodes(const gr_pool *p) { return p ? p->numa : NULL; }

static double seconds_of(clockid_t clock)
{
  struct timespec t = { 0 };
  clock_gettime(clock, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Thread by thread: the clock of a whole process counts what its other threads run only at the next tick of the scheduler, so that a
 * millisecond of two threads looks like one of one. */
double gr_pool_seconds(const gr_pool *p)
{
#if defined(__APPLE__)
  (void)p;
  return seconds_of(CLOCK_PROCESS_CPUTIME_ID); /* which has no clocks of single threads */
#else
  double sum = seconds_of(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 1; p && i < p->threads; i++) {
    clockid_t clock;
    if (pthread_getcpuclockid(p->ids[i], &clock) == 0) sum += seconds_of(clock);
  }
  return sum;
#endif
}

void gr_pool_run(gr_pool *p, size_t jobs, gr_pool_work *work, void *ctx)
{
  if (!p || p->threads == 1 || jobs <= 1 || jobs > UINT32_MAX) {
    for (size_t job = 0; job < jobs; job++) work(ctx, job, 0);
    return;
  }
  p->work = work;
  p->ctx = ctx;
  atomic_store_explicit(&p->unfinished, jobs, memory_order_relaxed);
  atomic_store_explicit(&p->unclaimed, (uint64_t)jobs << 32, memory_order_release);
  start_round(p);
  take_jobs(p, 0);
  for (int i = 0; i < SPIN_PAUSES + SPIN_YIELDS; i++) {
    if (atomic_load_explicit(&p->unfinished, memory_order_acquire) == 0) return;
    gr_pool_relax(i);
  }
  pthread_mutex_lock(&p->mutex);
  while (atomic_load_explicit(&p->unfinished, memory_order_acquire) != 0) pthread_cond_wait(&p->done, &p->mutex);
  pthread_mutex_unlock(&p->mutex);
}
