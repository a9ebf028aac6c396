/* UTF-8, strictly: overlong forms, surrogates and values beyond U+10FFFF are not well-formed (Unicode 15, table 3-7). */
#ifndef GR_TEXT_UTF8_H
#define GR_TEXT_UTF8_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that someone else owns; NULs are bytes like any other, and no NUL ends them. */
typedef struct gr_text_view {
  const char *data;
  size_t len;
} gr_text_view;

/* Length (1 to 4) of the well-formed sequence at p, of which n bytes may be read; 0 when there is none. */
size_t gr_utf8_length(const char *p, size_t n);

/* The code point of a well-formed sequence of `length` bytes, as gr_utf8_length told. */
uint32_t gr_utf8_decode(const char *p, size_t length);

/* Writes the sequence of a code point and returns its length; 0 for surrogates and values beyond U+10FFFF. */
size_t gr_utf8_encode(uint32_t code_point, char out[4]);

bool gr_utf8_valid(const char *p, size_t n);

/* How many of the n bytes may be shown now when more are to come: all but a last sequence that is still being written
 * (1 to 3 bytes). Malformed bytes are never held back. */
size_t gr_utf8_complete(const char *p, size_t n);

#endif
