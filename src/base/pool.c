/* Workers spin briefly between runs (a training step is thousands of short runs), then sleep on a condition variable, so
 * that a machine shared with another process is not held by idle spinning. */
#define _GNU_SOURCE
#include "base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/alloc.h"

enum { SPIN_PAUSES = 2000, SPIN_YIELDS = 50, THREADS_MAX = 1024 };

struct gr_pool {
  int threads;
  pthread_t *ids;
  int started;
  pthread_mutex_t mutex;
  pthread_cond_t wake, done;
  atomic_uint round; /* changes when there is work (or the end) */
  atomic_int busy;   /* workers that have not finished the present round */
  atomic_bool stop;
  atomic_size_t next;
  size_t jobs;
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

static void take_jobs(gr_pool *p, int thread)
{
  for (size_t job; (job = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->jobs;) p->work(p->ctx, job, thread);
}

static unsigned wait_for_round(gr_pool *p, unsigned seen)
{
  for (int i = 0; i < SPIN_PAUSES + SPIN_YIELDS; i++) {
    unsigned round = atomic_load_explicit(&p->round, memory_order_acquire);
    if (round != seen) return round;
    if (i < SPIN_PAUSES) pause_cpu();
    else sched_yield();
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
    if (atomic_fetch_sub_explicit(&me.pool->busy, 1, memory_order_acq_rel) == 1) {
      pthread_mutex_lock(&me.pool->mutex);
      pthread_cond_signal(&me.pool->done);
      pthread_mutex_unlock(&me.pool->mutex);
    }
  }
}

static void start_round(gr_pool *p)
{
  pthread_mutex_lock(&p->mutex);
  atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
  pthread_cond_broadcast(&p->wake);
  pthread_mutex_unlock(&p->mutex);
}

static int processors(void)
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
  gr_pool *p = gr_calloc(1, sizeof *p);
  if (!p) return gr_fail_memory(e, sizeof *p);
  p->threads = threads ? threads : processors();
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
  gr_free(p->ids);
  gr_free(p);
}

int gr_pool_threads(const gr_pool *p) { return p ? p->threads : 1; }

void gr_pool_run(gr_pool *p, size_t jobs, gr_pool_work *work, void *ctx)
{
  if (!p || p->threads == 1 || jobs <= 1) {
    for (size_t job = 0; job < jobs; job++) work(ctx, job, 0);
    return;
  }
  p->work = work;
  p->ctx = ctx;
  p->jobs = jobs;
  atomic_store_explicit(&p->next, 0, memory_order_relaxed);
  atomic_store_explicit(&p->busy, p->started, memory_order_relaxed);
  start_round(p);
  take_jobs(p, 0);
  for (int i = 0; i < SPIN_PAUSES + SPIN_YIELDS; i++) {
    if (atomic_load_explicit(&p->busy, memory_order_acquire) == 0) return;
    if (i < SPIN_PAUSES) pause_cpu();
    else sched_yield();
  }
  pthread_mutex_lock(&p->mutex);
  while (atomic_load_explicit(&p->busy, memory_order_acquire) != 0) pthread_cond_wait(&p->done, &p->mutex);
  pthread_mutex_unlock(&p->mutex);
}
