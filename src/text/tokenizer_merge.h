/* The loop that both tokenizers share: pieces of a text in a linked list, the candidate merges of neighbours in a heap, best
 * first and leftmost among equals. n pieces take n log n. */
#ifndef GR_TEXT_TOKENIZER_MERGE_H
#define GR_TEXT_TOKENIZER_MERGE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A min-heap of (key, payload). */
typedef struct gr_heap_entry {
  uint64_t key;
  uint32_t a, b, c;
} gr_heap_entry;
typedef struct gr_heap {
  gr_heap_entry *entries;
  size_t count, cap;
} gr_heap;
bool gr_heap_push(gr_heap *h, gr_heap_entry entry); /* false: out of memory */
gr_heap_entry gr_heap_pop(gr_heap *h);              /* the heap must not be empty */
void gr_heap_free(gr_heap *h);

enum { GR_NO_SYMBOL = -1 };

typedef struct gr_piece {
  int32_t prev, next;     /* indices, -1 at the ends */
  uint32_t start, length; /* bytes of the working text; length 0: merged away */
  uint32_t at;            /* where its first byte lies in the caller's text */
  int32_t symbol;         /* what its bytes are in the vocabulary, or GR_NO_SYMBOL */
} gr_piece;

/* Whether two neighbours may merge; *rank (lower merges first) and *symbol of the result when they may. */
typedef bool gr_merge_rule(const void *ctx, const gr_piece *left, const gr_piece *right, uint32_t *rank, int32_t *symbol);

typedef struct gr_merger {
  gr_piece *pieces; /* piece 0 is never merged away */
  size_t count, cap;
  gr_heap heap;
} gr_merger;

void gr_merger_clear(gr_merger *m);
bool gr_merger_add(gr_merger *m, uint32_t start, uint32_t length, uint32_t at, int32_t symbol); /* false: out of memory */
bool gr_merger_run(gr_merger *m, gr_merge_rule *rule, const void *ctx);                         /* false: out of memory */
void gr_merger_free(gr_merger *m);

#endif
