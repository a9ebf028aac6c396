/* Code points, white space and letter case, as Python's str has them. Case is mapped one to one for the scripts that have one in
 * common use (Latin, Greek, Cyrillic, Armenian); other letters stay as they are. */
#include "text/jinja.h"

size_t gr_jinja_utf8_length(const char *s, size_t n)
{
  size_t count = 0;
  for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xc0) != 0x80;
  return count;
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
