/* From template text to tokens, with the white-space rules of Jinja2 under trim_blocks and lstrip_blocks: the newline behind a
 * block or comment goes, and so do blanks between the start of a line and a block or comment; a '-' at either end of any tag
 * takes all white space on that side, a '+' none. One newline at the end of the template goes too. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/jinja.h"

typedef struct lexer {
  jinja_parser *p;
  const char *s;
  size_t n, at;
  uint32_t line;
  size_t counted;     /* lines are counted up to here */
  bool line_starting; /* the text at `at` begins a line, as far as lstrip_blocks is concerned */
} lexer;

void *gr_jinja_syntax(jinja_parser *p, gr_status status, uint32_t line, const char *fmt, ...)
{
  if (p->status != GR_OK) return NULL;
  p->status = status;
  char why[512];
  va_list args;
  va_start(args, fmt);
  vsnprintf(why, sizeof why, fmt, args);
  va_end(args);
  gr_fail(p->e, status, "%s, line %u: %s", p->t->name, line, why);
  return NULL;
}

void *gr_jinja_parse_alloc(jinja_parser *p, size_t bytes)
{
  void *m = p->status == GR_OK ? gr_arena_alloc(&p->t->arena, bytes) : NULL;
  if (!m && p->status == GR_OK) p->status = gr_fail_memory(p->e, bytes);
  return m;
}

static uint32_t line_at(lexer *l, size_t at)
{
  if (at < l->counted) { /* only errors look back */
    l->counted = 0;
    l->line = 1;
  }
  for (; l->counted < at; l->counted++) l->line += l->s[l->counted] == '\n';
  return l->line;
}

static bool at_text(const lexer *l, size_t at, const char *what)
{
  size_t n = strlen(what);
  return n <= l->n - at && memcmp(l->s + at, what, n) == 0;
}

static jinja_token *add_token(lexer *l, jinja_token_kind kind, size_t at, const char *text, size_t n)
{
  jinja_parser *p = l->p;
  if (p->status != GR_OK) return NULL;
  if (!gr_grow((void **)&p->tokens, &p->cap_tokens, p->n_tokens + 1, sizeof *p->tokens)) {
    p->status = gr_fail_memory(p->e, (p->n_tokens + 1) * sizeof *p->tokens);
    return NULL;
  }
  jinja_token *t = &p->tokens[p->n_tokens++];
  *t = (jinja_token){ .kind = kind, .line = line_at(l, at), .text = text, .len = n };
  return t;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80; }

/* Skips white space forwards from `at` (Python's idea of it). */
static size_t skip_space(const lexer *l, size_t at)
{
  while (at < l->n) {
    uint32_t cp;
    size_t n = jinja_next(l->s + at, l->n - at, &cp);
    if (!gr_jinja_space(cp)) break;
    at += n;
  }
  return at;
}

static size_t strip_space_back(const lexer *l, size_t from, size_t to)
{
  while (to > from) {
    size_t at = to - 1;
    while (at > from && ((unsigned char)l->s[at] & 0xc0) == 0x80) at--;
    uint32_t cp;
    jinja_next(l->s + at, to - at, &cp);
    if (!gr_jinja_space(cp)) break;
    to = at;
  }
  return to;
}

/* The text before a tag: from..to, stripped as the tag's sign and lstrip_blocks say. */
static void text_before(lexer *l, size_t from, size_t to, char sign, bool is_output)
{
  size_t end = to;
  if (sign == '-') {
    end = strip_space_back(l, from, to);
  } else if (sign != '+' && !is_output) {
    size_t start = to;
    while (start > from && l->s[start - 1] != '\n') start--;
    if ((start > from || l->line_starting) && strip_space_back(l, start, to) == start) end = start;
  }
  if (end > from) add_token(l, JINJA_TOKEN_TEXT, from, l->s + from, end - from);
}

/* Moves past the closing "}}", "%}" or "#}" at `at` (with its sign, 0 for none) and the white space that goes with it. */
static void after_tag(lexer *l, size_t at, char sign, bool trim_newline)
{
  l->at = at + 2;
  if (sign == '-') l->at = skip_space(l, l->at);
  else if (sign != '+' && trim_newline && l->at < l->n && l->s[l->at] == '\n') l->at++;
  l->line_starting = l->s[l->at - 1] == '\n';
}

static bool skip_comment(lexer *l, size_t open, size_t body)
{
  for (size_t i = body; i + 1 < l->n; i++) {
    if (l->s[i] != '#' || l->s[i + 1] != '}') continue;
    char sign = i > body && (l->s[i - 1] == '-' || l->s[i - 1] == '+') ? l->s[i - 1] : 0;
    after_tag(l, i, sign, true);
    return true;
  }
  gr_jinja_syntax(l->p, GR_ERR_FORMAT, line_at(l, open), "the comment that begins here is never closed by #}");
  return false;
}

/* When a "{%" tag at `at` (behind its sign) is a lone word such as raw, gives where its "%}" is and the sign before it. */
static bool lone_word(const lexer *l, size_t at, const char *word, size_t *close, char *sign)
{
  at = skip_space(l, at);
  if (!at_text(l, at, word)) return false;
  at = skip_space(l, at + strlen(word));
  *sign = at < l->n && (l->s[at] == '-' || l->s[at] == '+') ? l->s[at] : 0;
  *close = at + (*sign != 0);
  return *close + 1 < l->n && at_text(l, *close, "%}");
}

/* {% raw %} at `open`; everything up to {% endraw %} is text. */
static bool raw_block(lexer *l, size_t open, size_t close, char sign)
{
  after_tag(l, close, sign, false);
  size_t from = l->at;
  for (size_t i = from; i + 1 < l->n; i++) {
    if (l->s[i] != '{' || l->s[i + 1] != '%') continue;
    char left = i + 2 < l->n && (l->s[i + 2] == '-' || l->s[i + 2] == '+') ? l->s[i + 2] : 0;
    if (!lone_word(l, i + 2 + (left != 0), "endraw", &close, &sign)) continue;
    text_before(l, from, i, left, false);
    after_tag(l, close, sign, true);
    return l->p->status == GR_OK;
  }
  gr_jinja_syntax(l->p, GR_ERR_FORMAT, line_at(l, open), "the raw block that begins here has no endraw");
  return false;
}

static int hex_value(char c)
{
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/* One escape of a string literal at s[0] == '\\'; writes to out, gives the source bytes taken, 0 when it is malformed. */
static size_t decode_escape(const char *s, size_t n, char *out, size_t *written)
{
  static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
  const char *plain = n > 1 && s[1] ? strchr(from, s[1]) : NULL;
  *written = 1;
  if (plain) {
    *out = to[plain - from];
    return 2;
  }
  if (n > 1 && s[1] == '\n') { /* a line continued */
    *written = 0;
    return 2;
  }
  size_t digits = n < 2 ? 0 : s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : s[1] == 'U' ? 8 : 0, at = 2;
  uint32_t cp = 0;
  if (digits) {
    if (n < 2 + digits) return 0;
    for (; at < 2 + digits; at++) {
      int v = hex_value(s[at]);
      if (v < 0) return 0;
      cp = cp << 4 | (uint32_t)v;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000)) return 0;
  } else if (n > 1 && s[1] >= '0' && s[1] <= '7') {
    for (at = 1; at < n && at < 4 && s[at] >= '0' && s[at] <= '7'; at++) cp = cp << 3 | (uint32_t)(s[at] - '0');
  } else { /* not an escape: the backslash stays, as in Python */
    *out = '\\';
    return 1;
  }
  *written = gr_utf8_encode(cp, out);
  return at;
}

static bool string_token(lexer *l)
{
  size_t open = l->at, close = open + 1;
  char quote = l->s[open];
  while (close < l->n && l->s[close] != quote) close += l->s[close] == '\\' ? 2 : 1;
  if (close >= l->n) {
    gr_jinja_syntax(l->p, GR_ERR_FORMAT, line_at(l, open), "the string that begins here has no closing quote");
    return false;
  }
  char *text = gr_jinja_parse_alloc(l->p, close - open + 4);
  if (!text) return false;
  size_t len = 0;
  for (size_t i = open + 1; i < close;) {
    if (l->s[i] != '\\') {
      text[len++] = l->s[i++];
      continue;
    }
    char bytes[4];
    size_t written, taken = decode_escape(l->s + i, close - i, bytes, &written);
    if (!taken) {
      gr_jinja_syntax(l->p, GR_ERR_FORMAT, line_at(l, i), "malformed escape in a string");
      return false;
    }
    memcpy(text + len, bytes, written);
    len += written;
    i += taken;
  }
  text[len] = 0;
  l->at = close + 1;
  return add_token(l, JINJA_TOKEN_STRING, open, text, len) != NULL;
}

/* Digits of a base with single underscores between them, from *at; false when the number overflows or there are none. */
static bool take_digits(const lexer *l, size_t *at, int64_t base, int64_t *value)
{
  size_t start = *at;
  *value = 0;
  for (; *at < l->n; ++*at) {
    if (l->s[*at] == '_' && *at > start && *at + 1 < l->n) continue;
    int v = hex_value(l->s[*at]);
    if (v < 0 || v >= base) break;
    if (*value > (INT64_MAX - v) / base) return false;
    *value = *value * base + v;
  }
  return *at > start;
}

/* Past [digits][.digits][e[+-]digits] from `at`; *is_float says whether there was more than digits. */
static size_t number_end(const lexer *l, size_t at, bool after_dot, bool *is_float)
{
  while (at < l->n && (is_digit(l->s[at]) || l->s[at] == '_')) at++;
  *is_float = false;
  if (after_dot) return at; /* x.0.1 is two subscripts */
  if (at + 1 < l->n && l->s[at] == '.' && is_digit(l->s[at + 1])) {
    *is_float = true;
    for (at++; at < l->n && (is_digit(l->s[at]) || l->s[at] == '_');) at++;
  }
  size_t exponent = at + 1;
  if (at < l->n && (l->s[at] == 'e' || l->s[at] == 'E')) {
    if (exponent < l->n && (l->s[exponent] == '+' || l->s[exponent] == '-')) exponent++;
    if (exponent < l->n && is_digit(l->s[exponent])) {
      *is_float = true;
      for (at = exponent; at < l->n && (is_digit(l->s[at]) || l->s[at] == '_');) at++;
    }
  }
  return at;
}

static bool number_token(lexer *l)
{
  size_t open = l->at, end = open;
  int64_t value = 0;
  char second = open + 1 < l->n ? (char)(l->s[open + 1] | 32) : 0;
  int64_t base = l->s[open] != '0' ? 10 : second == 'x' ? 16 : second == 'o' ? 8 : second == 'b' ? 2 : 10;
  bool is_float = false, ok = true;
  if (base != 10) {
    end = open + 2;
    ok = take_digits(l, &end, base, &value);
  } else {
    end = number_end(l, open, open && l->s[open - 1] == '.', &is_float);
    size_t at = open;
    if (!is_float) ok = take_digits(l, &at, 10, &value) && at == end;
  }
  jinja_token *t = ok ? add_token(l, is_float ? JINJA_TOKEN_FLOAT : JINJA_TOKEN_INT, open, "", 0) : NULL;
  if (!t) {
    gr_jinja_syntax(l->p, GR_ERR_FORMAT, line_at(l, open), "this number is malformed or does not fit 64 bits");
    return false;
  }
  t->integer = value;
  if (is_float) {
    char digits[128]; /* without the underscores */
    size_t n = 0;
    for (size_t i = open; i < end && n < sizeof digits; i++)
      if (l->s[i] != '_') digits[n++] = l->s[i];
    if (n == sizeof digits || !gr_jinja_parse_real(digits, n, &t->real)) {
      gr_jinja_syntax(l->p, GR_ERR_FORMAT, line_at(l, open), "this number is malformed or too long");
      return false;
    }
  }
  l->at = end;
  return true;
}

static const char *operator_at(const lexer *l, size_t at)
{
  static const char *const ops[] = { "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                     "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";" };
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    if (at_text(l, at, ops[i])) return ops[i];
  return NULL;
}

/* Keeps the stack of open brackets; false when a closing one does not fit. */
static bool track_bracket(lexer *l, const char *op, char *stack, size_t *depth, size_t max)
{
  static const char opening[] = "([{", closing[] = ")]}";
  const char *o = strchr(opening, *op), *c = strchr(closing, *op);
  if (o) {
    if (*depth == max) {
      gr_jinja_syntax(l->p, GR_ERR_UNSUPPORTED, line_at(l, l->at), "brackets are nested more than %zu deep", max);
      return false;
    }
    stack[(*depth)++] = closing[o - opening];
  } else if (c && (!*depth || stack[--*depth] != *op)) {
    gr_jinja_syntax(l->p, GR_ERR_FORMAT, line_at(l, l->at), "unexpected '%c'", *op);
    return false;
  }
  return true;
}

/* The inside of a {{ }} or {% %} tag that began at `open`, up to and including its end. */
static bool tag_inside(lexer *l, size_t open, bool is_output)
{
  char stack[256];
  size_t depth = 0;
  const char *end = is_output ? "}}" : "%}";
  while (l->p->status == GR_OK) {
    l->at = skip_space(l, l->at);
    if (l->at >= l->n) break;
    char c = l->s[l->at], sign = c == '-' || (c == '+' && !is_output) ? c : 0;
    if (!depth && at_text(l, l->at + (sign != 0), end)) {
      size_t at = l->at + (sign != 0);
      add_token(l, is_output ? JINJA_TOKEN_OUTPUT_END : JINJA_TOKEN_BLOCK_END, l->at, end, 2);
      after_tag(l, at, sign, !is_output);
      return l->p->status == GR_OK;
    }
    const char *op;
    if (c == '"' || c == '\'') {
      if (!string_token(l)) return false;
    } else if (is_digit(c)) {
      if (!number_token(l)) return false;
    } else if (is_name_start(c)) {
      size_t from = l->at;
      while (l->at < l->n && (is_name_start(l->s[l->at]) || is_digit(l->s[l->at]))) l->at++;
      char *name = gr_jinja_parse_alloc(l->p, l->at - from + 1);
      if (!name) return false;
      memcpy(name, l->s + from, l->at - from);
      add_token(l, JINJA_TOKEN_NAME, from, name, l->at - from);
    } else if ((op = operator_at(l, l->at))) {
      if (!track_bracket(l, op, stack, &depth, sizeof stack)) return false;
      add_token(l, JINJA_TOKEN_OP, l->at, op, strlen(op));
      l->at += strlen(op);
    } else {
      gr_jinja_syntax(l->p, GR_ERR_FORMAT, line_at(l, l->at), "unexpected character '%c'", c);
      return false;
    }
  }
  gr_jinja_syntax(l->p, GR_ERR_FORMAT, line_at(l, open), "the tag that begins here is never closed by %s", end);
  return false;
}

static bool next_tag(lexer *l, bool *done)
{
  size_t from = l->at, at = from;
  while (at + 1 < l->n && !(l->s[at] == '{' && strchr("{%#", l->s[at + 1]) && l->s[at + 1])) at++;
  *done = at + 1 >= l->n;
  if (*done) {
    if (l->n > from) add_token(l, JINJA_TOKEN_TEXT, from, l->s + from, l->n - from);
    return l->p->status == GR_OK;
  }
  char kind = l->s[at + 1], sign = at + 2 < l->n && (l->s[at + 2] == '-' || l->s[at + 2] == '+') ? l->s[at + 2] : 0;
  text_before(l, from, at, sign, kind == '{');
  size_t body = at + 2 + (sign != 0), close;
  char close_sign;
  if (kind == '#') return skip_comment(l, at, body);
  if (kind == '%' && lone_word(l, body, "raw", &close, &close_sign)) return raw_block(l, at, close, close_sign);
  l->at = body;
  l->line_starting = false;
  add_token(l, kind == '{' ? JINJA_TOKEN_OUTPUT_BEGIN : JINJA_TOKEN_BLOCK_BEGIN, at, NULL, 0);
  return tag_inside(l, at, kind == '{');
}

/* A copy with "\r\n" and "\r" as "\n", less one newline at the end. */
static bool normalise(lexer *l, const char *text, size_t n)
{
  char *copy = gr_jinja_parse_alloc(l->p, n + 1);
  if (!copy) return false;
  size_t len = 0;
  for (size_t i = 0; i < n; i++) {
    copy[len++] = text[i] == '\r' ? '\n' : text[i];
    if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n') i++;
  }
  if (len && copy[len - 1] == '\n') len--;
  l->s = copy;
  l->n = len;
  return true;
}

bool gr_jinja_lex(jinja_parser *p, const char *text, size_t n)
{
  lexer l = { .p = p, .line = 1, .line_starting = true };
  if (!normalise(&l, text, n)) return false;
  for (size_t at = 0, length; at < l.n; at += length) {
    length = gr_utf8_length(l.s + at, l.n - at);
    if (length) continue;
    gr_jinja_syntax(p, GR_ERR_FORMAT, line_at(&l, at), "the template is not valid UTF-8 here");
    return false;
  }
  for (bool done = false; !done;)
    if (!next_tag(&l, &done)) return false;
  return add_token(&l, JINJA_TOKEN_END, l.n, "", 0) != NULL;
}
