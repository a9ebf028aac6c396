#include "text/dataset_source.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "text/json_guard.h"

void gr_record_source_init(gr_record_source *s, const char *path, const void *bytes, size_t n)
{
  *s = (gr_record_source){ .path = path, .at = bytes, .end = (const unsigned char *)bytes + n, .line = 1 };
}

/* ---- where a value ends ---- */

static bool is_space(unsigned char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static void skip_space(gr_record_source *s)
{
  for (; s->at < s->end && is_space(*s->at); s->at++) s->line += *s->at == '\n';
}

typedef struct extent {
  const unsigned char *end;
  uint32_t line;    /* on which it ends */
  bool in_string;   /* it breaks off at a line end inside a string */
  bool in_brackets; /* it breaks off at the end of the file */
} extent;

/* Behind the closing quote of the string whose opening quote is at p. A raw line end ends the search. */
static const unsigned char *string_end(const unsigned char *p, const unsigned char *end, bool *closed)
{
  for (p++; p < end && *p != '\n'; p++) {
    if (*p == '"') {
      *closed = true;
      return p + 1;
    }
    if (*p == '\\' && p + 1 < end && p[1] != '\n') p++;
  }
  *closed = false;
  return p;
}

/* From the first byte of a value to behind its last one. Brackets are counted, not matched: the JSON parser does that. */
static extent measure(const gr_record_source *s)
{
  extent x = { .end = s->at, .line = s->line };
  size_t depth = 0;
  while (x.end < s->end) {
    unsigned char c = *x.end;
    if (c == '"') {
      bool closed;
      x.end = string_end(x.end, s->end, &closed);
      x.in_string = !closed && x.end < s->end;
      x.in_brackets = !closed && x.end == s->end;
      if (!closed) return x;
    } else {
      x.end++;
      x.line += c == '\n';
      if (c == '{' || c == '[') depth++;
      else if ((c == '}' || c == ']') && depth > 0) depth--;
      else if (depth == 0 && c != '}' && c != ']') /* a bare word: to the next mark or space */
        while (x.end < s->end && !is_space(*x.end) && !strchr(",:{}[]\"", *x.end)) x.end++;
    }
    if (depth == 0) return x;
  }
  x.in_brackets = true;
  return x;
}

/* ---- what Jansson does not read ---- */

/* Whether p[0..n) is a number that no type of Jansson's holds. */
static bool too_big(const char *p, size_t n, gr_buf *out)
{
  bool whole = true;
  for (size_t i = 0; i < n; i++) {
    whole = whole && (isdigit((unsigned char)p[i]) || p[i] == '-');
    if (!isdigit((unsigned char)p[i]) && !memchr("+-.eE", p[i], 5)) return false;
  }
  char *text = gr_strndup(p, n), *end;
  if (!text) {
    out->failed = true;
    return false;
  }
  errno = 0;
  bool big = whole ? strtoll(text, &end, 10) != 0 && errno == ERANGE : isinf(strtod(text, &end));
  big = big && end == text + n;
  gr_free(text);
  return big;
}

static int hex4(const char *p, const char *end)
{
  int v = 0;
  if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return -1;
  for (int i = 2; i < 6; i++) {
    if (!isxdigit((unsigned char)p[i])) return -1;
    v = v * 16 + (isdigit((unsigned char)p[i]) ? p[i] - '0' : tolower((unsigned char)p[i]) - 'a' + 10);
  }
  return v;
}

/* Copies the escape at p, a lone surrogate as U+FFFD, and returns what is behind it. */
static const char *copy_escape(gr_record_source *s, const char *p, const char *end, gr_buf *out)
{
  int code = hex4(p, end), next = code >= 0xd800 && code < 0xdc00 ? hex4(p + 6, end) : -1;
  size_t n = code < 0 ? (end - p >= 2 ? 2 : 1) : next >= 0xdc00 && next < 0xe000 ? 12 : 6;
  if (code >= 0xd800 && code < 0xe000 && n == 6) {
    gr_buf_puts(out, "\\ufffd");
    s->surrogates++;
  } else {
    gr_buf_append(out, p, n);
  }
  return p + n;
}

static bool is_word(const char *p, const char *end, const char *word)
{
  size_t n = strlen(word);
  return (size_t)(end - p) >= n && memcmp(p, word, n) == 0;
}

/* The record again, with lone surrogates as U+FFFD and numbers that fit no type as text; *nan where it says NaN or Infinity. */
static void repair(gr_record_source *s, const char *p, const char *end, gr_buf *out, bool *nan)
{
  bool in_string = false;
  *nan = false;
  while (p < end) {
    if (in_string && *p == '\\') {
      p = copy_escape(s, p, end, out);
      continue;
    }
    if (!in_string && (*p == '-' || isdigit((unsigned char)*p))) {
      size_t n = 0;
      while (p + n < end && (isalnum((unsigned char)p[n]) || memchr("+-.", p[n], 3))) n++;
      bool quote = too_big(p, n, out);
      *nan = *nan || is_word(p, end, "-Infinity");
      gr_buf_puts(out, quote ? "\"" : "");
      gr_buf_append(out, p, n);
      gr_buf_puts(out, quote ? "\"" : "");
      s->numbers += quote;
      p += n;
      continue;
    }
    if (*p == '"') in_string = !in_string;
    else if (!in_string) *nan = *nan || is_word(p, end, "NaN") || is_word(p, end, "Infinity");
    gr_buf_putc(out, *p++);
  }
}

enum { FLAGS = JSON_ALLOW_NUL | JSON_DECODE_ANY };

static gr_status bad_json(const gr_record_source *s, const char *from, size_t n, const json_error_t *why, gr_error *e)
{
  uint32_t line = s->line;
  size_t place = why->position > 0 ? (size_t)why->position : 0, column = 1;
  for (size_t i = 0; i + 1 < place && i < n; i++, column++)
    if (from[i] == '\n') {
      line++;
      column = 0;
    }
  return gr_fail(e, GR_ERR_FORMAT, "%s:%u: not JSON (column %zu of the record): %s", s->path, line, column, why->text);
}

static gr_status parse(gr_record_source *s, const unsigned char *end, json_t **out, gr_error *e)
{
  const char *from = (const char *)s->at;
  size_t n = (size_t)(end - s->at);
  json_error_t why, after;
  s->surrogates = s->numbers = 0;
  *out = gr_json_parse(from, n, FLAGS, &why);
  if (*out) return GR_OK;
  if (gr_json_out_of_memory(&why)) return gr_fail_memory(e, n);
  gr_buf copy = { 0 };
  bool nan;
  repair(s, from, from + n, &copy, &nan);
  bool failed = copy.failed;
  if (!failed && s->surrogates + s->numbers) {
    *out = gr_json_parse(copy.data, copy.len, FLAGS, &after);
    failed = !*out && gr_json_out_of_memory(&after);
  }
  gr_buf_free(&copy);
  if (*out) return GR_OK;
  if (failed) return gr_fail_memory(e, n);
  if (nan)
    return gr_fail(e, GR_ERR_FORMAT, "%s:%u: NaN and Infinity are not JSON, though Python writes them: write null, or the number meant",
                   s->path, s->line);
  return bad_json(s, from, n, &why, e);
}

/* ---- records ---- */

/* A turn, and not a record of a known form. */
static bool is_turn(const json_t *value)
{
  return json_is_string(json_object_get(value, "role")) || json_is_string(json_object_get(value, "from"));
}

static gr_status give(gr_record_source *s, const extent *x, json_t **record, gr_error *e)
{
  json_t *value;
  s->record_line = s->line;
  GR_TRY(parse(s, x->end, &value, e));
  s->at = x->end;
  s->line = x->line;
  s->count++;
  *record = s->conversations ? json_pack("{s:o}", "messages", value) : value;
  return *record ? GR_OK : gr_fail_memory(e, 64);
}

/* What stands on the rest of the line, or of the file. */
static bool only_space(const gr_record_source *s, const unsigned char *p, bool line)
{
  while (p < s->end && is_space(*p) && !(line && *p == '\n')) p++;
  return p == s->end || (line && *p == '\n');
}

static const unsigned char *line_end(const gr_record_source *s)
{
  const unsigned char *p = s->at;
  while (p < s->end && *p != '\n') p++;
  return p;
}

/* A record that is cut off leaves its line open, and the next one begins as if nothing were amiss: a line that is one whole object
 * tells it from a record that goes on over several lines. */
static bool next_line_is_whole(const gr_record_source *s)
{
  gr_record_source next = *s;
  next.at = line_end(s);
  skip_space(&next);
  if (next.at == next.end || *next.at != '{') return false;
  extent x = measure(&next);
  if (x.in_string || x.in_brackets || x.line != next.line) return false;
  if (s->list && x.end < s->end && (*x.end == ',' || *x.end == ']')) x.end++;
  return only_space(s, x.end, true);
}

/* Whether that is what happened, and where: GR_OK when it is not. */
static gr_status cut_off(const gr_record_source *s, const extent *x, gr_error *e)
{
  bool line = next_line_is_whole(s), file = only_space(s, line_end(s), false) || (x->in_brackets && !s->count);
  if (x->in_string && x->line != s->line) return GR_OK;
  if (!line && !file) return GR_OK;
  return gr_fail(e, GR_ERR_FORMAT, "%s:%u: the %s ends inside this record, which was cut off: complete it, or leave it out", s->path,
                 s->line, line ? "line" : "file");
}

static gr_status string_breaks_off(const gr_record_source *s, const extent *x, gr_error *e)
{
  return gr_fail(e, GR_ERR_FORMAT, "%s:%u: a string runs over the end of its line: close it, or write the line end in it as \\n", s->path,
                 x->line);
}

static gr_status next_value(gr_record_source *s, json_t **record, gr_error *e)
{
  extent x = measure(s);
  if (x.in_string || x.in_brackets) GR_TRY(cut_off(s, &x, e));
  if (x.in_string) return string_breaks_off(s, &x, e);
  if (x.line > s->line && (x.in_brackets || s->count || !only_space(s, x.end, false)))
    return gr_fail(e, GR_ERR_FORMAT,
                   "%s:%u: a record is spread over several lines: put each on one line of its own (jq -c . does that), or all in one list",
                   s->path, s->line);
  GR_TRY(give(s, &x, record, e));
  if (only_space(s, s->at, true)) return GR_OK;
  json_decref(*record);
  *record = NULL;
  return gr_fail(e, GR_ERR_FORMAT, "%s:%u: something follows the record on its line: put each record on a line of its own", s->path,
                 s->line);
}

/* In the list, behind its bracket or behind an element. */
static gr_status next_element(gr_record_source *s, json_t **record, gr_error *e)
{
  if (s->at < s->end && *s->at == ']') {
    s->at++;
    s->list = false;
    skip_space(s);
    if (s->at == s->end) return GR_OK;
    return gr_fail(e, GR_ERR_FORMAT, "%s:%u: something follows the list of records", s->path, s->line);
  }
  if (s->count && (s->at == s->end || *s->at != ','))
    return gr_fail(e, GR_ERR_FORMAT,
                   s->at == s->end ? "%s:%u: the file ends inside the list" : "%s:%u: a comma or ] is missing behind the record", s->path,
                   s->line);
  s->at += s->count > 0;
  skip_space(s);
  if (s->at == s->end) return gr_fail(e, GR_ERR_FORMAT, "%s:%u: the file ends inside the list", s->path, s->line);
  extent x = measure(s);
  if (x.in_string || x.in_brackets) GR_TRY(cut_off(s, &x, e));
  if (x.in_string) return string_breaks_off(s, &x, e);
  if (x.in_brackets) return gr_fail(e, GR_ERR_FORMAT, "%s:%u: the file ends inside this record", s->path, s->line);
  GR_TRY(give(s, &x, record, e));
  skip_space(s);
  return GR_OK;
}

/* A file that begins with [ is a list of records, or of lists of turns; the first element tells. */
static gr_status open_list(gr_record_source *s, gr_error *e)
{
  gr_record_source inside = *s;
  inside.at++;
  skip_space(&inside);
  s->list = true;
  if (inside.at < inside.end && *inside.at == '{') {
    extent x = measure(&inside);
    json_t *first = NULL;
    if (!x.in_string && !x.in_brackets) GR_TRY(parse(&inside, x.end, &first, e));
    s->conversations = is_turn(first);
    s->list = !s->conversations;
    json_decref(first);
  }
  if (s->list) s->at = inside.at, s->line = inside.line;
  return GR_OK;
}

gr_status gr_record_source_next(gr_record_source *s, json_t **record, gr_error *e)
{
  *record = NULL;
  skip_space(s);
  if (!s->opened) {
    s->opened = true;
    if (s->at < s->end && *s->at == '[') GR_TRY(open_list(s, e));
  }
  if (s->list) return next_element(s, record, e);
  if (s->at == s->end) return GR_OK;
  return next_value(s, record, e);
}
