/* First fit over a bounded number of open windows: order stays close to the one given, and windows fill to a few per cent. */
#include <string.h>

#include "base/alloc.h"
#include "text/dataset.h"

enum { OPEN_MAX = 64 };

/* A window being filled: its samples are chained through next[], in order. */
struct open_window {
  size_t head, tail, n;
  int32_t tokens;
};

struct packer {
  gr_packing *p;
  size_t *next; /* [n] */
  const size_t *indices;
  struct open_window open[OPEN_MAX];
  size_t n_open, written;
};

static void close_window(struct packer *k, size_t i)
{
  const struct open_window *w = &k->open[i];
  k->p->windows[k->p->n_windows++] = (gr_window){ .first = k->written, .n = w->n, .tokens = w->tokens };
  for (size_t at = w->head, left = w->n; left--; at = k->next[at]) k->p->order[k->written++] = k->indices[at];
  memmove(&k->open[i], &k->open[i + 1], (--k->n_open - i) * sizeof *k->open);
}

static void place(struct packer *k, size_t at, int32_t length, int32_t budget, bool pack)
{
  size_t i = 0;
  while (i < k->n_open && k->open[i].tokens > budget - length) i++;
  if (!pack || i == k->n_open) {
    if (k->n_open == OPEN_MAX || (!pack && k->n_open)) close_window(k, 0);
    i = k->n_open++;
    k->open[i] = (struct open_window){ .head = at, .tail = at, .n = 1, .tokens = length };
    return;
  }
  struct open_window *w = &k->open[i];
  k->next[w->tail] = at;
  w->tail = at;
  w->n++;
  w->tokens += length;
}

gr_status gr_pack(gr_packing *p, const gr_dataset *d, const size_t *indices, size_t n, int32_t budget, bool pack, gr_error *e)
{
  *p = (gr_packing){ 0 };
  for (size_t i = 0; i < n; i++)
    if (gr_dataset_at(d, indices[i])->n > budget)
      return gr_fail(e, GR_ERR_MISMATCH, "a sample of %d tokens does not fit a window of %d", gr_dataset_at(d, indices[i])->n, budget);
  struct packer k = { .p = p, .indices = indices, .next = gr_calloc(n, sizeof *k.next) };
  p->order = gr_calloc(n, sizeof *p->order);
  p->windows = gr_calloc(n, sizeof *p->windows);
  if (!k.next || !p->order || !p->windows) {
    gr_free(k.next);
    gr_packing_free(p);
    return gr_fail_memory(e, n * sizeof *p->windows);
  }
  int64_t tokens = 0;
  for (size_t i = 0; i < n; i++) {
    int32_t length = gr_dataset_at(d, indices[i])->n;
    tokens += length;
    place(&k, i, length, budget, pack);
  }
  while (k.n_open) close_window(&k, 0);
  p->fill = p->n_windows ? (double)tokens / ((double)p->n_windows * budget) : 0;
  gr_free(k.next);
  return GR_OK;
}

void gr_packing_free(gr_packing *p)
{
  gr_free(p->order);
  gr_free(p->windows);
  *p = (gr_packing){ 0 };
}
