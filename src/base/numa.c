#define _GNU_SOURCE /* cpu_set_t */
#include "base/numa.h"

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#if defined(__linux__)

enum { NODES_MAX = 64, PAGE = 4096 }; /* PAGE: the smallest there is */

struct gr_numa {
  int nodes;
  cpu_set_t cpus[NODES_MAX];
};

/* ---- finding nodes ---- */

/* Reads "0-3,8" into a set; false: no such file, or another text. */
static bool read_list(const char *folder, const char *name, cpu_set_t *set)
{
  char path[512];
  int from, to, end;
  CPU_ZERO(set);
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return false;
  FILE *f = fopen(path, "r");
  if (!f) return false;
  do {
    if (fscanf(f, "%d", &from) != 1) break; /* an empty list is one too */
    to = from;
    if ((end = fgetc(f)) == '-') end = fscanf(f, "%d", &to) == 1 ? fgetc(f) : 0;
    for (int i = from; i >= 0 && i <= to && i < CPU_SETSIZE; i++) CPU_SET(i, set);
  } while (end == ',');
  fclose(f);
  return true;
}

static void read_nodes(gr_numa *n, const char *folder, const cpu_set_t *mine)
{
  cpu_set_t online;
  if (!read_list(folder, "online", &online)) return;
  for (int node = 0; node < CPU_SETSIZE && n->nodes < NODES_MAX; node++) {
    char name[32];
    cpu_set_t *cpus = &n->cpus[n->nodes];
    snprintf(name, sizeof name, "node%d/cpulist", node);
    if (!CPU_ISSET(node, &online) || !read_list(folder, name, cpus)) continue;
    CPU_AND(cpus, cpus, mine);
    if (CPU_COUNT(cpus) > 0) n->nodes++;
  }
}

/* Neighbours share a node; where there are fewer processors than nodes, nodes share a processor. */
static void deal_processors(gr_numa *n, int nodes, const cpu_set_t *mine)
{
  const int count = CPU_COUNT(mine);
  for (int node = 0; node < nodes; node++) {
    int from = node * count / nodes, to = (node + 1) * count / nodes, at = 0;
    if (to == from) to++;
    CPU_ZERO(&n->cpus[node]);
    for (int i = 0; i < CPU_SETSIZE; i++) {
      if (!CPU_ISSET(i, mine)) continue;
      if (at >= from && at < to) CPU_SET(i, &n->cpus[node]);
      at++;
    }
  }
  n->nodes = nodes;
}

gr_status gr_numa_find(gr_numa **numa, const char *folder, gr_error *e)
{
  const char *forced = getenv("GRAFT_NUMA_NODES");
  char *end = NULL;
  long nodes = forced && forced[0] ? strtol(forced, &end, 10) : 0;
  cpu_set_t mine;
  *numa = NULL;
  if (end && (*end || nodes < 1 || nodes > NODES_MAX))
    return gr_fail(e, GR_ERR_USAGE, "GRAFT_NUMA_NODES=%s: give 1 to %d, or leave it out for what the machine has", forced, NODES_MAX);
  if (nodes == 1 || sched_getaffinity(0, sizeof mine, &mine) != 0) return GR_OK;
  gr_numa *n = gr_calloc(1, sizeof *n);
  if (!n) return gr_fail_memory(e, sizeof *n);
  if (nodes) deal_processors(n, (int)nodes, &mine);
  else read_nodes(n, folder ? folder : "/sys/devices/system/node", &mine);
  if (n->nodes > 1) *numa = n;
  else gr_free(n);
  return GR_OK;
}

int gr_numa_nodes(const gr_numa *numa) { return numa ? numa->nodes : 1; }

/* ---- touching ---- */

struct touching {
  const gr_numa *numa;
  char *p;
  size_t bytes, stripes, parts;
  gr_numa_note *note;
  void *ctx;
};

/* Page by page: what stands in a page is written back to it. */
static void touch_stripe(const struct touching *t, size_t stripe)
{
  const uintptr_t first = (uintptr_t)t->p / GR_NUMA_STRIPE * GR_NUMA_STRIPE;
  const uintptr_t from = stripe ? first + stripe * GR_NUMA_STRIPE - (uintptr_t)t->p : 0;
  const uintptr_t next = first + (stripe + 1) * GR_NUMA_STRIPE - (uintptr_t)t->p, to = next < t->bytes ? next : t->bytes;
  for (uintptr_t at = from; at < to; at += PAGE - ((uintptr_t)t->p + at) % PAGE) {
    volatile char *c = t->p + at;
    *c = *c;
  }
}

/* Job: a node and one of its parts of stripes. Whichever thread takes it goes there for as long as that takes. */
static void touch_part(void *ctx, size_t job, int thread)
{
  const struct touching *t = ctx;
  const size_t nodes = (size_t)t->numa->nodes, node = job % nodes;
  cpu_set_t before;
  (void)thread;
  bool went = sched_getaffinity(0, sizeof before, &before) == 0 && sched_setaffinity(0, sizeof before, &t->numa->cpus[node]) == 0;
  for (size_t stripe = job; stripe < t->stripes; stripe += nodes * t->parts) {
    touch_stripe(t, stripe);
    if (t->note) t->note(t->ctx, stripe, (int)node);
  }
  if (went) (void)sched_setaffinity(0, sizeof before, &before);
}

size_t gr_numa_touch(const gr_numa *numa, gr_pool *pool, void *p, size_t bytes, gr_numa_note *note, void *ctx)
{
  struct touching t = { .numa = numa, .p = p, .bytes = bytes, .note = note, .ctx = ctx };
  if (!numa || numa->nodes < 2 || gr_pool_threads(pool) < 2 || !bytes) return 0;
  t.stripes = ((uintptr_t)p + bytes - 1) / GR_NUMA_STRIPE - (uintptr_t)p / GR_NUMA_STRIPE + 1;
  if (t.stripes < 2) return 0;
  t.parts = ((size_t)gr_pool_threads(pool) + (size_t)numa->nodes - 1) / (size_t)numa->nodes;
  gr_pool_run(pool, (size_t)numa->nodes * t.parts, touch_part, &t);
  return bytes;
}

#else

gr_status gr_numa_find(gr_numa **numa, const char *folder, gr_error *e)
{
  (void)folder, (void)e;
  *numa = NULL;
  return GR_OK;
}

int gr_numa_nodes(const gr_numa *numa)
{
  (void)numa;
  return 1;
}

size_t gr_numa_touch(const gr_numa *numa, gr_pool *pool, void *p, size_t bytes, gr_numa_note *note, void *ctx)
{
  (void)numa, (void)pool, (void)p, (void)bytes, (void)note, (void)ctx;
  return 0;
}

#endif

void gr_numa_free(gr_numa *numa) { gr_free(numa); }

size_t gr_numa_spread(gr_pool *pool, void *p, size_t bytes)
{
  return pool ? gr_numa_touch(gr_pool_nodes(pool), pool, p, bytes, NULL, NULL) : 0;
}
