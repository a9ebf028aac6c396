/* What two data sets, or two parts of one, have in common. */
#include <string.h>

#include "base/alloc.h"
#include "text/dataset.h"

/* Of the tokens alone: what is trained of them may differ. Never 0. */
static uint64_t hash_ids(const gr_sample *x)
{
  uint64_t h = 0x9e3779b97f4a7c15u ^ (uint64_t)x->n;
  for (int32_t i = 0; i < x->n; i++) {
    h = (h ^ (uint64_t)(uint32_t)x->ids[i]) * 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  }
  return h | 1;
}

gr_status gr_dataset_shared(const gr_sample_list *a, const gr_sample_list *b, size_t *shared, gr_error *e)
{
  *shared = 0;
  size_t cap = 2 * a->n + 1;
  uint64_t *seen = gr_calloc(cap, sizeof *seen);
  if (!seen) return gr_fail_memory(e, cap * sizeof *seen);
  for (size_t i = 0; i < a->n; i++) {
    uint64_t h = hash_ids(gr_dataset_at(a->data, a->items[i]));
    size_t at = h % cap;
    while (seen[at] && seen[at] != h) at = (at + 1) % cap;
    seen[at] = h;
  }
  for (size_t i = 0; i < b->n; i++) {
    uint64_t h = hash_ids(gr_dataset_at(b->data, b->items[i]));
    size_t at = h % cap;
    while (seen[at] && seen[at] != h) at = (at + 1) % cap;
    *shared += seen[at] == h;
  }
  gr_free(seen);
  return GR_OK;
}
