/* JSON Lines files in tests. Jansson reads no NUL in a key, so \u0000 is put in by hand. */
#ifndef GR_TESTS_JSONL_H
#define GR_TESTS_JSONL_H
#include <jansson.h>

#include "base/alloc.h"
#include "base/file.h"
#include "check.h"

/* A copy in which U+E000 has become NUL. */
static inline json_t *jsonl_with_nuls(const json_t *json)
{
  json_t *copy, *item, *from = (json_t *)(uintptr_t)json; /* iterating changes nothing */
  const char *key;
  size_t i;
  if (json_is_string(json)) {
    char text[256];
    size_t n = 0;
    for (const char *s = json_string_value(json); *s; n++) {
      bool nul = !strncmp(s, "\xee\x80\x80", 3);
      assert_true(n < sizeof text);
      text[n] = nul ? 0 : *s;
      s += nul ? 3 : 1;
    }
    return json_stringn(text, n);
  }
  if (json_is_array(json)) {
    copy = json_array();
    json_array_foreach(from, i, item) json_array_append_new(copy, jsonl_with_nuls(item));
    return copy;
  }
  if (!json_is_object(json)) return json_deep_copy(json);
  copy = json_object();
  json_object_foreach(from, key, item)
  {
    json_t *name = json_string(key), *real = jsonl_with_nuls(name);
    json_object_setn_new(copy, json_string_value(real), json_string_length(real), jsonl_with_nuls(item));
    json_decref(name);
    json_decref(real);
  }
  return copy;
}

/* line: n bytes, changed in place. */
static inline json_t *jsonl_parse(char *line, size_t n)
{
  bool nuls = false;
  for (size_t i = 0; i + 6 <= n; i++) {
    if (line[i] != '\\') continue;
    if (!memcmp(line + i, "\\u0000", 6)) {
      memcpy(line + i, "\\ue000", 6);
      nuls = true;
    }
    i++; /* past the escape's letter, which may be a backslash */
  }
  json_t *json = json_loadb(line, n, 0, NULL);
  if (!nuls || !json) return json;
  json_t *real = jsonl_with_nuls(json);
  json_decref(json);
  return real;
}

/* Calls each() for every line of a file and gives their number. */
static inline size_t jsonl_each(const char *path, void (*each)(const json_t *line))
{
  char *text;
  size_t size, count = 0;
  gr_error e;
  assert_ok(gr_file_read(path, 1 << 24, &text, &size, &e), &e);
  for (char *line = text, *end; line < text + size; line = end + 1) {
    end = memchr(line, '\n', (size_t)(text + size - line));
    if (!end) end = text + size;
    if (end == line) continue;
    json_t *json = jsonl_parse(line, (size_t)(end - line));
    if (!json) fail_msg("%s: line %zu is not JSON", path, count + 1);
    each(json);
    json_decref(json);
    count++;
  }
  gr_free(text);
  return count;
}

#endif
