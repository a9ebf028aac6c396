/* An index of byte strings that stand in a table: from the bytes to their place. Open addressing, grown as needed. */
#ifndef GR_TEXT_STRMAP_H
#define GR_TEXT_STRMAP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/utf8.h"

typedef struct gr_strmap {
  uint64_t *slots; /* upper half of the hash << 32 | place + 1; 0: free */
  size_t mask, used;
} gr_strmap;

enum { GR_STRMAP_NONE = -1 };

/* Makes room for `count` strings; false when out of memory. */
bool gr_strmap_reserve(gr_strmap *m, const gr_text_view *table, size_t count);

/* The place of the string, or GR_STRMAP_NONE. */
int32_t gr_strmap_find(const gr_strmap *m, const gr_text_view *table, const char *p, size_t n);

/* Adds table[place] unless an equal string is there; returns the place that the string has, or GR_STRMAP_NONE when out of memory. */
int32_t gr_strmap_add(gr_strmap *m, const gr_text_view *table, int32_t place);

void gr_strmap_free(gr_strmap *m);

#endif
