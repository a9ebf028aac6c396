#include "text/utf8.h"

#include <string.h>

/* Length that a first byte announces, and the range its second byte must lie in; 0 for a byte that starts nothing. */
static size_t announced(unsigned char first, unsigned char *low, unsigned char *high)
{
  *low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  *high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

size_t gr_utf8_length(const char *p, size_t n)
{
  const unsigned char *u = (const unsigned char *)p;
  unsigned char low, high;
  size_t length = n ? announced(u[0], &low, &high) : 0;
  if (length <= 1) return length;
  if (length > n || u[1] < low || u[1] > high) return 0;
  for (size_t i = 2; i < length; i++)
    if (u[i] < 0x80 || u[i] > 0xbf) return 0;
  return length;
}

uint32_t gr_utf8_decode(const char *p, size_t length)
{
  const unsigned char *u = (const unsigned char *)p;
  if (length == 1) return u[0];
  uint32_t value = u[0] & (0xffu >> (length + 1));
  for (size_t i = 1; i < length; i++) value = value << 6 | (u[i] & 0x3f);
  return value;
}

size_t gr_utf8_encode(uint32_t c, char out[4])
{
  if (c < 0x80) {
    out[0] = (char)c;
    return 1;
  }
  if (c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return 0;
  size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = length - 1; i > 0; i--, c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
  out[0] = (char)((0xf00u >> length & 0xff) | c);
  return length;
}

bool gr_utf8_valid(const char *p, size_t n)
{
  for (size_t i = 0; i < n;) {
    uint64_t eight;
    if (n - i >= sizeof eight) {
      memcpy(&eight, p + i, sizeof eight);
      if (!(eight & 0x8080808080808080u)) {
        i += sizeof eight;
        continue;
      }
    }
    size_t length = gr_utf8_length(p + i, n - i);
    if (!length) return false;
    i += length;
  }
  return true;
}

size_t gr_utf8_complete(const char *p, size_t n)
{
  const unsigned char *u = (const unsigned char *)p;
  for (size_t back = 1; back <= 3 && back <= n; back++) {
    unsigned char low, high, first = u[n - back];
    if (first >= 0x80 && first <= 0xbf) continue;
    size_t length = announced(first, &low, &high);
    if (length <= back || (back > 1 && (u[n - back + 1] < low || u[n - back + 1] > high))) return n;
    return n - back;
  }
  return n;
}
