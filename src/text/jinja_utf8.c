/* UTF-8, white space and letter case, as Python's str has them. Case is mapped one to one for the scripts that have one in
 * common use (Latin, Greek, Cyrillic, Armenian); other letters stay as they are. */
#include "text/jinja.h"

size_t gr_jinja_utf8_valid(const char *s, size_t n)
{
  const unsigned char *p = (const unsigned char *)s;
  size_t i = 0;
  while (i < n) {
    unsigned char c = p[i];
    if (c < 0x80) {
      i++;
      continue;
    }
    size_t len = c < 0xc2 || c > 0xf4 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    if (!len || len > n - i) return i;
    unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80, high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (p[i + 1] < low || p[i + 1] > high) return i;
    for (size_t k = 2; k < len; k++)
      if ((p[i + k] & 0xc0) != 0x80) return i;
    i += len;
  }
  return n;
}

size_t gr_jinja_utf8_length(const char *s, size_t n)
{
  size_t count = 0;
  for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
  return count;
}

size_t gr_jinja_utf8_next(const char *s, size_t n, uint32_t *cp)
{
  const unsigned char *p = (const unsigned char *)s;
  size_t len = p[0] < 0x80 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
  if (len > n) len = n;
  uint32_t v = len == 1 ? p[0] : p[0] & (0xffu >> (len + 1));
  for (size_t i = 1; i < len; i++) v = v << 6 | (p[i] & 0x3f);
  *cp = v;
  return len;
}

size_t gr_jinja_utf8_put(uint32_t cp, char out[4])
{
  if (cp < 0x80) {
    out[0] = (char)cp;
    return 1;
  }
  size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
  for (size_t i = len - 1; i > 0; i--) {
    out[i] = (char)(0x80 | (cp & 0x3f));
    cp >>= 6;
  }
  out[0] = (char)((0xf00u >> len & 0xff) | cp);
  return len;
}

size_t gr_jinja_utf8_offset(const char *s, size_t n, size_t index)
{
  size_t at = 0;
  while (at < n && index) {
    at++;
    while (at < n && ((unsigned char)s[at] & 0xc0) == 0x80) at++;
    index--;
  }
  return at;
}

bool gr_jinja_space(uint32_t cp)
{
  return (cp >= 9 && cp <= 13) || (cp >= 0x1c && cp <= 0x20) || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
         (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

/* Letters whose cases differ by a fixed distance, and (distance 0) those that alternate, capital first, from an even or odd
 * first code point. Ranges are of the small letters, or of both when they alternate. */
static const struct case_range {
  uint16_t first, last, distance;
} case_ranges[] = {
  { 'a', 'z', 32 },     { 0xe0, 0xf6, 32 },   { 0xf8, 0xfe, 32 },   { 0x100, 0x12f, 0 },  { 0x132, 0x137, 0 },   { 0x139, 0x148, 0 },
  { 0x14a, 0x177, 0 },  { 0x179, 0x17e, 0 },  { 0x3ac, 0x3ac, 38 }, { 0x3ad, 0x3af, 37 }, { 0x3b1, 0x3c1, 32 },  { 0x3c3, 0x3cb, 32 },
  { 0x3cc, 0x3cc, 64 }, { 0x3cd, 0x3ce, 63 }, { 0x430, 0x44f, 32 }, { 0x450, 0x45f, 80 }, { 0x460, 0x481, 0 },   { 0x48a, 0x4bf, 0 },
  { 0x4c1, 0x4ce, 0 },  { 0x4cf, 0x4cf, 15 }, { 0x4d0, 0x52f, 0 },  { 0x561, 0x586, 48 }, { 0x1e00, 0x1e95, 0 }, { 0x1ea0, 0x1eff, 0 },
};

uint32_t gr_jinja_upper(uint32_t cp)
{
  if (cp == 0xff) return 0x178;
  if (cp == 0xb5) return 0x39c;
  if (cp == 0x131) return 'I';
  if (cp == 0x17f) return 'S';
  if (cp == 0x3c2) return 0x3a3;
  for (size_t i = 0; i < sizeof case_ranges / sizeof *case_ranges; i++) {
    const struct case_range *r = &case_ranges[i];
    if (cp < r->first || cp > r->last) continue;
    return r->distance ? cp - r->distance : cp - ((cp - r->first) & 1);
  }
  return cp;
}

uint32_t gr_jinja_lower(uint32_t cp)
{
  if (cp == 0x178) return 0xff;
  for (size_t i = 0; i < sizeof case_ranges / sizeof *case_ranges; i++) {
    const struct case_range *r = &case_ranges[i];
    if (r->distance && cp >= (uint32_t)r->first - r->distance && cp <= (uint32_t)r->last - r->distance) return cp + r->distance;
    if (!r->distance && cp >= r->first && cp <= r->last) return cp + !((cp - r->first) & 1);
  }
  return cp;
}
