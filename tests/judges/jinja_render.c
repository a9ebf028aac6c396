/* For tools/judge_jinja.py: reads a JSON array of {"template", "context", "json": bool} and writes an array of {"text", "spans"} or
 * {"error"}. The clock stands at 2025-07-10 00:00:00. */
#include <stdio.h>
#include <string.h>

#include "text/chat.h"

static json_t *answer(const json_t *request)
{
  const char *text = json_string_value(json_object_get(request, "template"));
  gr_render_options o = { .variables = json_object_get(request, "context"),
                          .json_containers = json_is_true(json_object_get(request, "json")),
                          .now = 1752105600 };
  gr_template *t;
  gr_rendered r = { 0 };
  gr_error e = { 0 };
  gr_status s = gr_template_parse(&t, text, strlen(text), "template", &e);
  if (s == GR_OK) s = gr_template_render(t, NULL, &o, &r, &e);
  json_t *out = s == GR_OK ? json_pack("{s:s%, s:[]}", "text", r.text, r.len, "spans") : json_pack("{s:s}", "error", e.text);
  for (size_t i = 0; i < r.n_generation; i++)
    json_array_append_new(json_object_get(out, "spans"),
                          json_pack("[I, I]", (json_int_t)r.generation[i].start, (json_int_t)r.generation[i].end));
  gr_rendered_free(&r);
  gr_template_free(t);
  return out;
}

int main(void)
{
  json_t *requests = json_loadf(stdin, JSON_ALLOW_NUL, NULL), *answers = json_array(), *request;
  if (!json_is_array(requests)) return 2;
  size_t i;
  json_array_foreach(requests, i, request) json_array_append_new(answers, answer(request));
  int rc = json_dumpf(answers, stdout, JSON_ENSURE_ASCII) ? 1 : 0;
  json_decref(answers);
  json_decref(requests);
  return rc;
}
