/* Launches behind each other that need nothing of one another run together, where their rows can (gr_kernel_row.together): q, k and v,
 * gate and up. A single token's product is over in microseconds, and what it takes to begin and to end one is a good part of them. */
#include "graph/plan.h"

static bool writes(const gr_launch *l, int32_t place)
{
  for (int k = 0; k < l->node->n_out; k++)
    if (l->out[k] == place) return true;
  return false;
}

static bool reads_of(const gr_launch *reader, const gr_launch *writer)
{
  for (int k = 0; k < reader->node->n_in; k++)
    if (reader->in[k] >= 0 && writes(writer, reader->in[k])) return true;
  return false;
}

/* An op that may write over what it reads could do so while another reads it. */
static bool may_join(const gr_launch *l) { return l->node && l->row->together && gr_op_alias(gr_op_get(l->node->op), 0) < 0; }

static int count_joined(const gr_plan *p, size_t first)
{
  const gr_launch *l = &p->launches[first];
  int n = 0;
  while (n + 1 < GR_TOGETHER_MAX && first + (size_t)n + 1 < p->n_launches) {
    const gr_launch *next = &l[n + 1];
    if (!may_join(next) || next->row->together != l->row->together || next->backend != l->backend) break;
    for (int i = 0; i <= n; i++)
      if (reads_of(next, &l[i])) return n;
    n++;
  }
  return n;
}

void gr_plan_join(gr_plan *p)
{
  for (size_t first = 0, n; first < p->n_launches; first += n) {
    n = 1;
    if (!may_join(&p->launches[first])) continue;
    p->launches[first].joined = count_joined(p, first);
    n += (size_t)p->launches[first].joined;
    for (size_t i = first; i < first + n; i++) /* what one of them writes stands apart from what any of them reads */
      for (int k = 0; k < p->launches[i].node->n_out; k++) p->places[p->launches[i].out[k]].first = first;
  }
}
