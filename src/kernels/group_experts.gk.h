/* Sorts the pairs (slot, token) of ids [k,n] by expert: perm and offsets of src/ops/experts.h. Group e puts expert e's pairs, which it
 * finds in every tile of 256 pairs by one look each, behind those of the experts before it, which it counts first: no group waits for
 * another, and the order within an expert is that of the pairs. The last group has the pairs that go nowhere. */
#include "kernels/gk/index.h"

enum { GK_GROUP_THREADS = 256 };

/* Sum over the group of v, and in *before that of the threads before this one: log2(256) steps of doubling reach. */
GK_FN uint32_t gk_group_scan(gk_thread t, uint32_t v, GK_SHARED_AS uint32_t *room, GK_PRIVATE uint32_t *before)
{
  const uint32_t mine = v;
  room[gk_tid(t)] = v;
  gk_barrier(t);
  for (uint32_t reach = 1; reach < GK_GROUP_THREADS; reach *= 2) {
    const uint32_t add = gk_tid(t) >= reach ? room[gk_tid(t) - reach] : 0;
    gk_barrier(t);
    room[gk_tid(t)] += add;
    gk_barrier(t);
  }
  *before = room[gk_tid(t)] - mine;
  const uint32_t sum = room[GK_GROUP_THREADS - 1];
  gk_barrier(t); /* room may be reused */
  return sum;
}

/* The expert of pair p: `experts` for one that goes nowhere or lies beyond the last. */
GK_FN uint32_t gk_expert_of(const GK_CONST_AS gk_group_args &a, const GK_GLOBAL int32_t *ids, uint32_t p)
{
  if (p >= a.pairs) return a.experts;
  const int32_t id = ids[p % a.used * a.id_stride[0] + p / a.used * a.id_stride[1]];
  return id >= 0 && (uint32_t)id < a.experts ? (uint32_t)id : a.experts;
}

GK_KERNEL(group_experts_i32, gk_group_args, const GK_GLOBAL int32_t *ids, GK_GLOBAL int32_t *perm, GK_GLOBAL int32_t *offsets)
{
  GK_ENTER(t);
  GK_SHARED(uint32_t, room, GK_GROUP_THREADS);
  const uint32_t expert = gk_group(t);
  uint32_t count = 0, before;
  for (uint32_t p = gk_tid(t); p < a.pairs; p += GK_GROUP_THREADS) count += gk_expert_of(a, ids, p) < expert ? 1 : 0;
  uint32_t next = gk_group_scan(t, count, room, &before);
  if (gk_tid(t) == 0) offsets[expert * a.offset_stride] = (int32_t)(GK_MUTANT(emu_group_experts_offset_by_one) ? next + 1 : next);
  for (uint32_t first = 0; first < a.pairs; first += GK_GROUP_THREADS) {
    const uint32_t p = first + gk_tid(t);
    const bool mine = p < a.pairs && gk_expert_of(a, ids, p) == expert;
    const uint32_t found = gk_group_scan(t, mine ? 1 : 0, room, &before), at = next + before;
    if (mine) perm[at % a.used * a.perm_stride[0] + at / a.used * a.perm_stride[1]] = expert < a.experts ? (int32_t)p : -1;
    next += found;
  }
}
