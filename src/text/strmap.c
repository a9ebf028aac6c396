#include "text/strmap.h"

#include <string.h>

#include "base/alloc.h"

static uint64_t hash_bytes(const char *p, size_t n)
{
  const uint64_t k = 0x9e3779b97f4a7c15u;
  uint64_t h = n * k;
  for (; n >= 8; p += 8, n -= 8) {
    uint64_t word;
    memcpy(&word, p, 8);
    h = (h ^ word) * k;
    h ^= h >> 32;
  }
  uint64_t rest = 0;
  memcpy(&rest, p, n);
  h = (h ^ rest) * k;
  return h ^ h >> 29;
}

enum { UPPER = 32 };

/* The slot of a string, or the free one where it would stand. Only a string whose hash agrees is looked at. */
static size_t slot_of(const gr_strmap *m, const gr_text_view *table, const char *p, size_t n, uint64_t hash)
{
  size_t i = (size_t)hash & m->mask;
  for (; m->slots[i]; i = (i + 1) & m->mask) {
    if (m->slots[i] >> UPPER != hash >> UPPER) continue;
    gr_text_view v = table[(uint32_t)m->slots[i] - 1];
    if (v.len == n && (!n || !memcmp(v.data, p, n))) break;
  }
  return i;
}

bool gr_strmap_reserve(gr_strmap *m, const gr_text_view *table, size_t count)
{
  size_t size = 16;
  while (size / 2 < count) {
    if (size > SIZE_MAX / 4) return false;
    size *= 2;
  }
  if (m->slots && m->mask + 1 >= size) return true;
  gr_strmap grown = { gr_calloc(size, sizeof *grown.slots), size - 1, m->used };
  if (!grown.slots) return false;
  for (size_t i = 0; m->slots && i <= m->mask; i++)
    if (m->slots[i]) {
      gr_text_view v = table[(uint32_t)m->slots[i] - 1];
      grown.slots[slot_of(&grown, table, v.data, v.len, hash_bytes(v.data, v.len))] = m->slots[i];
    }
  gr_free(m->slots);
  *m = grown;
  return true;
}

int32_t gr_strmap_find(const gr_strmap *m, const gr_text_view *table, const char *p, size_t n)
{
  if (!m->slots) return GR_STRMAP_NONE;
  return (int32_t)(uint32_t)m->slots[slot_of(m, table, p, n, hash_bytes(p, n))] - 1;
}

int32_t gr_strmap_add(gr_strmap *m, const gr_text_view *table, int32_t place)
{
  if (!gr_strmap_reserve(m, table, m->used + 1)) return GR_STRMAP_NONE;
  uint64_t hash = hash_bytes(table[place].data, table[place].len);
  uint64_t *slot = &m->slots[slot_of(m, table, table[place].data, table[place].len, hash)];
  if (!*slot) {
    *slot = hash >> UPPER << UPPER | ((uint32_t)place + 1);
    m->used++;
  }
  return (int32_t)(uint32_t)*slot - 1;
}

void gr_strmap_free(gr_strmap *m)
{
  gr_free(m->slots);
  *m = (gr_strmap){ 0 };
}
