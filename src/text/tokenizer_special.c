/* Special tokens in a text. The rule is that of llama.cpp: longer tokens are looked for first, each from left to right in what
 * the ones before it left over. Searching the text once for each of thousands of tokens would do it; instead one pass finds
 * where any token begins, and a heap tries those places, longest token first. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_impl.h"

/* ---- the table ---- */

struct sortable {
  gr_text_view text;
  int32_t id;
};

static int compare_texts(const void *a, const void *b)
{
  const struct sortable *x = a, *y = b;
  size_t n = x->text.len < y->text.len ? x->text.len : y->text.len;
  int order = memcmp(x->text.data, y->text.data, n);
  return order ? order : (x->text.len > y->text.len) - (x->text.len < y->text.len);
}

static bool starts_with(gr_text_view text, gr_text_view start)
{
  return text.len >= start.len && !memcmp(text.data, start.data, start.len);
}

/* Sorted, the texts that one starts with stand above it, each starting with the next further up: walking up that chain from
 * the row above finds the longest. */
static void link_shorter(gr_tokenizer *t, const struct sortable *rows)
{
  for (size_t i = 0; i < t->special_count; i++) {
    int32_t k = (int32_t)i - 1;
    while (k >= 0 && !starts_with(rows[i].text, rows[k].text)) k = t->special_shorter[k];
    t->special_shorter[i] = k;
  }
}

gr_status gr_tokenizer_init_specials(gr_tokenizer *t, gr_error *e)
{
  size_t n = 0;
  for (size_t id = 0; id < t->count; id++) n += t->flags[id] & (GR_MATCH_ALWAYS | GR_MATCH_TRUSTED) && t->text[id].len;
  struct sortable *rows = gr_calloc(n, sizeof *rows);
  t->special = gr_calloc(n, sizeof *t->special);
  t->special_shorter = gr_calloc(n, sizeof *t->special_shorter);
  if (!rows || !t->special || !t->special_shorter) {
    gr_free(rows);
    return gr_fail_memory(e, n * sizeof *rows);
  }
  for (size_t id = 0; id < t->count; id++)
    if (t->flags[id] & (GR_MATCH_ALWAYS | GR_MATCH_TRUSTED) && t->text[id].len)
      rows[t->special_count++] = (struct sortable){ t->text[id], (int32_t)id };
  qsort(rows, n, sizeof *rows, compare_texts);
  for (size_t i = 0; i < n; i++) {
    t->special[i] = rows[i].id;
    t->first_byte[(unsigned char)rows[i].text.data[0] + 1]++;
  }
  for (int b = 0; b < 256; b++) t->first_byte[b + 1] += t->first_byte[b];
  link_shorter(t, rows);
  gr_free(rows);
  return GR_OK;
}

/* The longest special token that text[0..n) starts with: its row, or -1. Rows lo..hi-1 share the text's first `depth` bytes. */
static int32_t longest_match(const gr_tokenizer *t, const char *text, size_t n)
{
  unsigned char first = (unsigned char)text[0];
  size_t lo = t->first_byte[first], hi = t->first_byte[first + 1];
  int32_t best = -1;
  for (size_t depth = 1; lo < hi; depth++) {
    if (t->text[t->special[lo]].len == depth) best = (int32_t)lo++;
    if (depth == n) break;
    unsigned char c = (unsigned char)text[depth];
    for (size_t end = hi; lo < end;) { /* the first row whose next byte is not below c */
      size_t mid = lo + (end - lo) / 2;
      if ((unsigned char)t->text[t->special[mid]].data[depth] < c) lo = mid + 1;
      else end = mid;
    }
    size_t start = lo;
    for (size_t end = hi; start < end;) { /* the first above c */
      size_t mid = start + (end - start) / 2;
      if ((unsigned char)t->text[t->special[mid]].data[depth] <= c) start = mid + 1;
      else end = mid;
    }
    hi = start;
  }
  return best;
}

/* ---- the search ---- */

struct search {
  const gr_tokenizer *t;
  const char *text;
  size_t n;
  const gr_trusted_span *trusted; /* touching spans joined */
  size_t trusted_count;
  gr_heap places;
  char *taken; /* 1 where a byte belongs to a match */
};

static bool is_trusted(const struct search *s, size_t start, size_t length)
{
  size_t lo = 0, hi = s->trusted_count;
  while (lo < hi) { /* the first span that ends behind start */
    size_t mid = lo + (hi - lo) / 2;
    if (s->trusted[mid].end <= start) lo = mid + 1;
    else hi = mid;
  }
  return lo < s->trusted_count && s->trusted[lo].start <= start && start + length <= s->trusted[lo].end;
}

/* Offers the token of that row, or the longest shorter one that may stand there, to the heap. */
static bool offer(struct search *s, size_t start, int32_t row)
{
  for (; row >= 0; row = s->t->special_shorter[row]) {
    int32_t id = s->t->special[row];
    size_t length = s->t->text[id].len;
    if (!(s->t->flags[id] & GR_MATCH_ALWAYS) && !is_trusted(s, start, length)) continue;
    return gr_heap_push(&s->places,
                        (gr_heap_entry){ (uint64_t)(UINT32_MAX - (uint32_t)length) << 32 | (uint32_t)start, (uint32_t)row, 0, 0 });
  }
  return true;
}

static gr_status take_matches(struct search *s, gr_special_matches *out, gr_error *e)
{
  s->taken = gr_calloc(s->n, 1);
  if (!s->taken) return gr_fail_memory(e, s->n);
  while (s->places.count) {
    gr_heap_entry top = gr_heap_pop(&s->places);
    size_t start = (uint32_t)top.key;
    int32_t id = s->t->special[top.a];
    size_t length = s->t->text[id].len;
    if (s->taken[start]) continue;
    if (memchr(s->taken + start, 1, length)) {
      if (!offer(s, start, s->t->special_shorter[top.a])) return gr_fail_memory(e, s->n);
      continue;
    }
    size_t end = start + length, skip = 0;
    if (s->t->flags[id] & GR_TOKEN_STRIPS)
      while (end + skip < s->n && !s->taken[end + skip] && isspace((unsigned char)s->text[end + skip])) skip++;
    memset(s->taken + start, 1, length + skip);
    if (!gr_grow((void **)&out->items, &out->cap, out->count + 1, sizeof *out->items)) return gr_fail_memory(e, s->n);
    out->items[out->count++] = (gr_special_match){ (uint32_t)start, (uint32_t)length, (uint32_t)skip, id };
  }
  return GR_OK;
}

static int compare_starts(const void *a, const void *b)
{
  const gr_special_match *x = a, *y = b;
  return (x->start > y->start) - (x->start < y->start);
}

static gr_status join_trusted(const gr_trusted_span *trusted, size_t count, size_t n, gr_trusted_span **joined, size_t *joined_count,
                              gr_error *e)
{
  *joined = gr_calloc(count, sizeof **joined);
  *joined_count = 0;
  if (!*joined) return gr_fail_memory(e, count * sizeof **joined);
  for (size_t i = 0; i < count; i++) {
    if (trusted[i].start > trusted[i].end || trusted[i].end > n || (i && trusted[i].start < trusted[i - 1].end))
      return gr_fail(e, GR_ERR_USAGE, "trusted span %zu is bytes %zu to %zu of %zu: spans must ascend within the text", i, trusted[i].start,
                     trusted[i].end, n);
    if (trusted[i].start == trusted[i].end) continue;
    gr_trusted_span *last = *joined_count ? &(*joined)[*joined_count - 1] : NULL;
    if (last && last->end == trusted[i].start) last->end = trusted[i].end;
    else (*joined)[(*joined_count)++] = trusted[i];
  }
  return GR_OK;
}

gr_status gr_tokenizer_match_specials(const gr_tokenizer *t, const char *text, size_t n, const gr_trusted_span *trusted,
                                      size_t trusted_count, gr_special_matches *out, gr_error *e)
{
  struct search s = { .t = t, .text = text, .n = n };
  gr_trusted_span *joined = NULL;
  gr_status status = join_trusted(trusted, trusted_count, n, &joined, &s.trusted_count, e);
  s.trusted = joined;
  for (size_t i = 0; status == GR_OK && i < n; i++) {
    unsigned char first = (unsigned char)text[i];
    if (t->first_byte[first] == t->first_byte[first + 1]) continue;
    if (!offer(&s, i, longest_match(t, text + i, n - i))) status = gr_fail_memory(e, n);
  }
  if (status == GR_OK && s.places.count) status = take_matches(&s, out, e);
  if (status == GR_OK && out->count) qsort(out->items, out->count, sizeof *out->items, compare_starts);
  gr_heap_free(&s.places);
  gr_free(s.taken);
  gr_free(joined);
  return status;
}
