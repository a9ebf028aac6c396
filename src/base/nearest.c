#include "base/nearest.h"

#include <stdbool.h>
#include <string.h>

static bool same_letter(char a, char b) { return a == b || ((a == '_' || a == '-') && (b == '_' || b == '-')); }

/* Levenshtein's distance, one row at a time. Longer words than MOST are far from everything. */
static size_t edit_distance(const char *a, const char *b)
{
  enum { MOST = 63 };
  size_t n = strlen(a), m = strlen(b), row[MOST + 1];
  if (n > MOST || m > MOST) return MOST;
  for (size_t j = 0; j <= m; j++) row[j] = j;
  for (size_t i = 1; i <= n; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= m; j++) {
      size_t best = diagonal + !same_letter(a[i - 1], b[j - 1]);
      if (row[j] + 1 < best) best = row[j] + 1;
      if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
      diagonal = row[j];
      row[j] = best;
    }
  }
  return row[m];
}

const char *gr_nearest(const char *word, const char *const *names, size_t n)
{
  const char *best = NULL;
  size_t least = strlen(word) / 3 + 1;
  for (size_t i = 0; i < n; i++) {
    size_t d = edit_distance(word, names[i]);
    if (d < least || (d == least && !best)) {
      least = d;
      best = names[i];
    }
  }
  return best;
}
