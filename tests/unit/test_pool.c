/* The thread pool: a run is over when its jobs are, and a worker that wakes late does no harm to the run it wakes in. */
#define _DEFAULT_SOURCE /* usleep */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "check.h"

#include "base/pool.h"

/* ---- every job once, by the run's own work and context ---- */

enum { THREADS = 9, JOBS = 37, ROUNDS = 1500 };

typedef struct round_of {
  unsigned char seen[JOBS];
  atomic_bool busy[THREADS]; /* what is a thread's own is used by one at a time */
  atomic_int shared;
  int step;
} round_of;

static void add_step(void *ctx, size_t job, int thread)
{
  round_of *r = ctx;
  if (atomic_exchange(&r->busy[thread], true)) atomic_fetch_add(&r->shared, 1);
  sched_yield(); /* to the workers, which come when they can */
  r->seen[job] = (unsigned char)(r->seen[job] + r->step);
  atomic_store(&r->busy[thread], false);
}

static void add_two_steps(void *ctx, size_t job, int thread)
{
  round_of *r = ctx;
  add_step(ctx, job, thread);
  r->seen[job] = (unsigned char)(r->seen[job] + r->step);
}

/* Short rounds of many threads on few processors: most of them wake in a later round than the one they were woken for. */
static void every_job_runs_once_whoever_wakes_when(void **state)
{
  (void)state;
  gr_error e;
  gr_pool *pool = NULL;
  assert_ok(gr_pool_create(&pool, THREADS, &e), &e);
  for (int i = 0; i < ROUNDS; i++) {
    round_of r = { .step = 1 + i % 3 };
    size_t jobs = (size_t)(i * 17 % JOBS);
    gr_pool_run(pool, jobs, i % 2 ? add_two_steps : add_step, &r);
    for (size_t j = 0; j < JOBS; j++) assert_int_equal(r.seen[j], j < jobs ? r.step * (1 + i % 2) : 0);
    assert_int_equal(atomic_load(&r.shared), 0);
  }
  gr_pool_free(pool);
}

/* ---- who takes what ---- */

static atomic_int first_taken[2];

static void note_first(void *ctx, size_t job, int thread)
{
  (void)ctx;
  int none = -1;
  atomic_compare_exchange_strong(&first_taken[thread], &none, (int)job);
  while (atomic_load(&first_taken[1 - thread]) < 0) usleep(100);
}

/* From run to run a thread meets the same rows: they stand in its core's cache. */
static void threads_begin_at_either_end(void **state)
{
  (void)state;
  gr_error e;
  gr_pool *pool = NULL;
  assert_ok(gr_pool_create(&pool, 2, &e), &e);
  for (int jobs = 2; jobs < 9; jobs++) {
    for (int i = 0; i < 2; i++) atomic_store(&first_taken[i], -1);
    gr_pool_run(pool, (size_t)jobs, note_first, NULL);
    assert_int_equal(atomic_load(&first_taken[0]), 0);
    assert_int_equal(atomic_load(&first_taken[1]), jobs - 1);
  }
  gr_pool_free(pool);
}

/* ---- a worker that lost its processor ---- */

static atomic_bool released, gave_up, stopped;
static atomic_int met;
static pthread_t worker;

static void stop_here(int number)
{
  (void)number;
  atomic_store(&stopped, true);
  while (!atomic_load(&released)) usleep(1000);
}

/* Each of two threads takes one of two jobs. */
static void meet(void *ctx, size_t job, int thread)
{
  (void)ctx;
  (void)job;
  if (thread == 1) worker = pthread_self();
  for (atomic_fetch_add(&met, 1); atomic_load(&met) < 2;) usleep(100);
}

static void nothing(void *ctx, size_t job, int thread)
{
  (void)job;
  (void)thread;
  atomic_fetch_add((atomic_int *)ctx, 1);
}

/* So that a pool that does wait fails the test, and does not hang. */
static void *release_after_all(void *ctx)
{
  (void)ctx;
  for (int i = 0; i < 600 && !atomic_load(&released); i++) usleep(100000);
  if (!atomic_exchange(&released, true)) atomic_store(&gave_up, true);
  return NULL;
}

static void a_worker_that_does_not_run_is_not_waited_for(void **state)
{
  (void)state;
  gr_error e;
  gr_pool *pool = NULL;
  pthread_t guard;
  atomic_int ran = 0;
  struct sigaction action = { .sa_handler = stop_here }, before;
  assert_int_equal(sigaction(SIGUSR1, &action, &before), 0);
  assert_ok(gr_pool_create(&pool, 2, &e), &e);
  gr_pool_run(pool, 2, meet, NULL);
  usleep(200000); /* until it sleeps, holding nothing */
  assert_int_equal(pthread_create(&guard, NULL, release_after_all, NULL), 0);
  pthread_kill(worker, SIGUSR1);
  while (!atomic_load(&stopped)) usleep(100);
  for (int i = 0; i < 50; i++) gr_pool_run(pool, 20, nothing, &ran);
  atomic_store(&released, true);
  pthread_join(guard, NULL);
  assert_false(atomic_load(&gave_up));
  assert_int_equal(atomic_load(&ran), 1000);
  gr_pool_run(pool, 20, nothing, &ran);
  assert_int_equal(atomic_load(&ran), 1020);
  gr_pool_free(pool);
  sigaction(SIGUSR1, &before, NULL);
}

/* ---- processor time ---- */

enum { BURNT_NS = 700000 }; /* less than a tick of the scheduler */

typedef struct burning {
  gr_pool *pool;
  double pool_before, own_before; /* of the caller */
  double of_worker;               /* what the pool's clock gave it */
  atomic_int met;
  atomic_bool burnt, read;
} burning;

static double own_seconds(void)
{
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The worker burns its share, and then runs on without a call that the scheduler would notice until the caller has read the clock. */
static void burn(void *ctx, size_t job, int thread)
{
  (void)job;
  burning *b = ctx;
  for (atomic_fetch_add(&b->met, 1); atomic_load(&b->met) < 2;) sched_yield();
  if (thread == 1) {
    for (double end = own_seconds() + 1e-9 * BURNT_NS; own_seconds() < end;) {
    }
    atomic_store(&b->burnt, true);
    while (!atomic_load(&b->read)) {
    }
    return;
  }
  while (!atomic_load(&b->burnt)) {
  }
  b->of_worker = gr_pool_seconds(b->pool) - b->pool_before - (own_seconds() - b->own_before);
  atomic_store(&b->read, true);
}

static void what_workers_take_is_counted_at_once(void **state)
{
  (void)state;
  gr_error e;
  gr_pool *pool = NULL;
  assert_ok(gr_pool_create(&pool, 2, &e), &e);
  for (int i = 0; i < 50; i++) {
    burning b = { .pool = pool, .pool_before = gr_pool_seconds(pool), .own_before = own_seconds() };
    gr_pool_run(pool, 2, burn, &b);
    if (b.of_worker < 0.9e-9 * BURNT_NS) fail_msg("round %d: %g s", i, b.of_worker);
  }
  gr_pool_free(pool);
  double start = own_seconds(), alone = gr_pool_seconds(NULL);
  assert_true(alone >= start && own_seconds() >= alone);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(every_job_runs_once_whoever_wakes_when),
    cmocka_unit_test(threads_begin_at_either_end),
    cmocka_unit_test(a_worker_that_does_not_run_is_not_waited_for),
    cmocka_unit_test(what_workers_take_is_counted_at_once),
  };
  return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
