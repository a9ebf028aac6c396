/* Machines whose memory stands beside several nodes of processors: a page belongs to the node of the processor that touches it first, and
 * others read it over a link. Memory that lasts and that every thread uses is touched in turns, a stripe a node: which thread will take
 * which job is not known, and this way the links and the memories of all nodes carry their part. Threads are not bound to nodes: one
 * goes to a node to touch its stripes, and is then let go. On one node, where threads are one, and where there is no Linux, nothing is
 * done. */
#ifndef GR_BASE_NUMA_H
#define GR_BASE_NUMA_H
#include <stddef.h>

#include "base/pool.h"

/* A stripe is all between two multiples of this, whole huge pages. */
#define GR_NUMA_STRIPE ((size_t)2 << 20)

typedef struct gr_numa gr_numa;

/* Nodes with processors that this process may run on. *numa is NULL where there is one, or where nobody says. folder: what describes them,
 * NULL: the system's. GRAFT_NUMA_NODES=N in the environment deals the processors to N nodes instead, for tests; 1 leaves all as it is. */
gr_status gr_numa_find(gr_numa **numa, const char *folder, gr_error *e);
void gr_numa_free(gr_numa *numa);       /* NULL is fine */
int gr_numa_nodes(const gr_numa *numa); /* 1 for NULL */

/* Touches what no one has: every page of `bytes` from p on is written with what is in it, stripe i of all by a thread on node i modulo
 * their number. Pages that have been touched stay where they are. Bytes that were touched: 0 where there is one node, one thread, or one
 * stripe. Not while other threads write there. pool may be NULL. */
size_t gr_numa_spread(gr_pool *pool, void *p, size_t bytes);

/* The same for any nodes; note, if there is one, is called by the thread that has touched a stripe, where it did so. */
typedef void gr_numa_note(void *ctx, size_t stripe, int node);
size_t gr_numa_touch(const gr_numa *numa, gr_pool *pool, void *p, size_t bytes, gr_numa_note *note, void *ctx);

#endif
