/* The pairs of one expert op: (slot, token), numbered p = slot + used * token, and dealt to experts by group_experts. Work is cut by these
 * groups: what no pair asks for is neither read nor computed, however many experts there are. */
#ifndef GR_CPU_PAIRS_H
#define GR_CPU_PAIRS_H
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/mutant.h"

typedef struct gr_cpu_pairs {
  const gr_array *ids, *perm, *offsets;
  int64_t used, tokens, experts;
} gr_cpu_pairs;

static inline gr_cpu_pairs gr_cpu_pairs_of(const gr_array *ids, const gr_array *perm, const gr_array *offsets)
{
  return (gr_cpu_pairs){ ids, perm, offsets, ids->ne[0], ids->ne[1], offsets->ne[0] - 1 };
}

static inline int64_t gr_cpu_pairs_count(const gr_cpu_pairs *p) { return p->used * p->tokens; }

static inline int32_t gr_cpu_integer(const gr_array *a, int64_t i0, int64_t i1)
{
  int32_t v;
  memcpy(&v, gr_array_at(a, i0, i1, 0, 0), sizeof v);
  return v;
}

/* Where the pairs of expert e begin in perm; e = experts: where they end. */
static inline int64_t gr_cpu_pairs_begin(const gr_cpu_pairs *p, int64_t e) { return gr_cpu_integer(p->offsets, e, 0); }

/* The s-th pair, in order of experts; perm is contiguous. */
static inline uint32_t gr_cpu_pair(const gr_cpu_pairs *p, int64_t s) { return (uint32_t)((const int32_t *)p->perm->data)[s]; }

static inline bool gr_cpu_routed(const gr_cpu_pairs *p, int64_t slot, int64_t token)
{
  int32_t id = gr_cpu_integer(p->ids, slot, token);
  return id >= 0 && id < p->experts;
}

/* Bytes from x [., slots, tokens] to the row that a pair reads: slot i reads i mod slots. One division of 32 bits, mostly. */
static inline int64_t gr_cpu_pair_row(const gr_cpu_pairs *p, const gr_array *x, uint32_t pair)
{
  uint32_t used = (uint32_t)p->used, slots = (uint32_t)x->ne[1], token = pair / used, slot = pair - token * used;
  if (slots < used) slot = slots == 1 || GR_MUTANT(matmul_id_no_broadcast) ? 0 : slot % slots;
  return slot * x->nb[1] + token * x->nb[2];
}

/* Up to `most` pairs of one expert that are one job's: rows of its product, or its whole contraction. */
typedef struct gr_cpu_part {
  int32_t expert, first, count; /* pairs perm[first .. first + count) */
} gr_cpu_part;

/* How many parts there can be, whatever the routing. */
int64_t gr_cpu_parts_most(const gr_cpu_pairs *p, int64_t most);

/* Deals the pairs of each expert that has any, of tokens [from, to), evenly to few parts that hold at most `most` each; returns their
 * number. Slots of one token stay together, as long as there are fewer than half of `most`. */
int64_t gr_cpu_parts_make(const gr_cpu_pairs *p, int64_t from, int64_t to, int64_t most, gr_cpu_part *parts);

#endif
