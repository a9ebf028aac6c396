#include "text/tokenizer_merge.h"

#include "base/alloc.h"

bool gr_heap_push(gr_heap *h, gr_heap_entry entry)
{
  if (!gr_grow((void **)&h->entries, &h->cap, h->count + 1, sizeof *h->entries)) return false;
  size_t i = h->count++;
  for (; i && h->entries[(i - 1) / 2].key > entry.key; i = (i - 1) / 2) h->entries[i] = h->entries[(i - 1) / 2];
  h->entries[i] = entry;
  return true;
}

gr_heap_entry gr_heap_pop(gr_heap *h)
{
  gr_heap_entry top = h->entries[0], last = h->entries[--h->count];
  size_t i = 0;
  for (size_t child; (child = 2 * i + 1) < h->count; i = child) {
    if (child + 1 < h->count && h->entries[child + 1].key < h->entries[child].key) child++;
    if (last.key <= h->entries[child].key) break;
    h->entries[i] = h->entries[child];
  }
  h->entries[i] = last;
  return top;
}

void gr_heap_free(gr_heap *h)
{
  gr_free(h->entries);
  *h = (gr_heap){ 0 };
}

void gr_merger_clear(gr_merger *m) { m->count = m->heap.count = 0; }

bool gr_merger_add(gr_merger *m, uint32_t start, uint32_t length, uint32_t at, int32_t symbol)
{
  if (m->count >= INT32_MAX || !gr_grow((void **)&m->pieces, &m->cap, m->count + 1, sizeof *m->pieces)) return false;
  int32_t i = (int32_t)m->count++;
  m->pieces[i] = (gr_piece){ i - 1, -1, start, length, at, symbol };
  if (i) m->pieces[i - 1].next = i;
  return true;
}

/* An entry's a is the right piece, b the symbol of the merged piece, c its length, by which a stale entry is known: a piece only
 * grows, so the lengths of a pair that has changed add up to more. */
static bool consider(gr_merger *m, int32_t left, int32_t right, gr_merge_rule *rule, const void *ctx)
{
  if (left < 0 || right < 0) return true;
  const gr_piece *l = &m->pieces[left], *r = &m->pieces[right];
  uint32_t rank;
  int32_t symbol;
  if (!rule(ctx, l, r, &rank, &symbol)) return true;
  gr_heap_entry entry = { (uint64_t)rank << 32 | (uint32_t)left, (uint32_t)right, (uint32_t)symbol, l->length + r->length };
  return gr_heap_push(&m->heap, entry);
}

bool gr_merger_run(gr_merger *m, gr_merge_rule *rule, const void *ctx)
{
  for (size_t i = 1; i < m->count; i++)
    if (!consider(m, (int32_t)i - 1, (int32_t)i, rule, ctx)) return false;
  while (m->heap.count) {
    gr_heap_entry best = gr_heap_pop(&m->heap);
    int32_t left = (int32_t)(uint32_t)best.key;
    gr_piece *l = &m->pieces[left], *r = &m->pieces[best.a];
    if (!l->length || !r->length || l->length + r->length != best.c) continue;
    l->length = best.c;
    l->symbol = (int32_t)best.b;
    l->next = r->next;
    r->length = 0;
    if (l->next >= 0) m->pieces[l->next].prev = left;
    if (!consider(m, l->prev, left, rule, ctx) || !consider(m, left, l->next, rule, ctx)) return false;
  }
  return true;
}

void gr_merger_free(gr_merger *m)
{
  gr_free(m->pieces);
  gr_heap_free(&m->heap);
  *m = (gr_merger){ 0 };
}
