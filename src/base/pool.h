/* A pool of threads that runs numbered jobs. Jobs are handed out in order from both ends; how many threads there are never
 * changes what a job computes, only who runs it (promise 4: callers split work by shape, never by thread count). */
#ifndef GR_BASE_POOL_H
#define GR_BASE_POOL_H
#include <stddef.h>

#include "base/error.h"

typedef struct gr_pool gr_pool;
struct gr_numa;

/* threads counts the caller: 1 makes no thread at all. 0 means one for each processor this process may run on. */
gr_status gr_pool_create(gr_pool **pool, int threads, gr_error *e);
void gr_pool_free(gr_pool *pool);         /* NULL is fine */
int gr_pool_threads(const gr_pool *pool); /* 1 for NULL */
double gr_pool_seconds(const gr_pool *);  /* of processor time that the caller and the pool's threads have taken so far, NULL: the caller */
const struct gr_numa *gr_pool_nodes(const gr_pool *); /* of memory, as they were when the pool was made (numa.h); NULL: one */
int gr_pool_processors(void);                         /* those that this process may run on */

/* Runs work(ctx, job, thread) for job = 0..jobs-1, thread = 0..threads-1 (for per-thread scratch), and returns when all are
 * done. A NULL pool runs them in order on the caller. Not reentrant: work must not call gr_pool_run on the same pool. */
typedef void gr_pool_work(void *ctx, size_t job, int thread);
void gr_pool_run(gr_pool *pool, size_t jobs, gr_pool_work *work, void *ctx);

/* What a thread does between two looks at what another one is about to do, for the turn-th time from 0: nothing for a while, and then it
 * gives its core away. For jobs that wait for jobs of smaller number. */
void gr_pool_relax(int turn);

#endif
