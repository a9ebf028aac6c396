/* libFuzzer target for chat templates. An input is a template, a byte 0, and the messages as JSON (a set of our own when there are
 * none that parse). It is parsed, rendered and located under small limits, then again with allocations failing, as the input chooses.
 *
 *   cmake -B b -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DGR_FUZZ=ON -DGR_SANITIZE=address,undefined
 *   b/tests/fuzz/seed_jinja SEEDS tests/golden/jinja.jsonl && b/tests/fuzz/fuzz_jinja -dict=tests/fuzz/jinja.dict -max_len=4096 -timeout=5
 * CORPUS SEEDS */
#include "failing_alloc.h"

#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char own_messages[] =
    "[{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \" \\u00e4 b\\n\"},"
    "{\"role\": \"assistant\", \"content\": \"<think>t</think>c\", \"tool_calls\": [{\"function\":"
    " {\"name\": \"f\", \"arguments\": {\"x\": [1, 2.5, null]}}}]}, {\"role\": \"assistant\", \"content\": \"\"}]";

/* What every result must keep to. */
static void check(const gr_rendered *r, const gr_chat_spans *s)
{
  size_t at = 0;
  for (size_t i = 0; i < r->n_runs; i++) {
    if (r->runs[i].start != at || r->runs[i].end <= at) abort();
    at = r->runs[i].end;
  }
  if (at != r->len || r->text[at]) abort();
  for (size_t i = 0, last = 0; i < r->n_generation; last = r->generation[i++].end)
    if (r->generation[i].start < last || r->generation[i].end <= r->generation[i].start || r->generation[i].end > r->len) abort();
  for (size_t i = 0; i < s->count; i++)
    if (s->items[i].start >= s->items[i].end || s->items[i].end > r->len || (i && s->items[i].start < s->items[i - 1].end)) abort();
}

static void attempt(const char *text, size_t n, const json_t *messages)
{
  static const char *const ends[] = { "<|im_end|>", "</s>" };
  gr_render_options o = { .bos_token = "<s>", .eos_token = "</s>", .parse_tool_arguments = true };
  o.limits = (gr_template_limits){ .steps = 100000, .bytes = 1 << 20, .depth = 200 };
  gr_template *t;
  gr_rendered r = { 0 };
  gr_chat_spans s = { 0 };
  gr_error e = { 0 };
  gr_status status = gr_template_parse(&t, text, n, "input", &e);
  if (status == GR_OK) status = gr_template_render(t, messages, &o, &r, &e);
  if (status == GR_OK) status = gr_chat_locate(t, messages, &o, &r, ends, 2, &s, &e);
  if (status != GR_OK && (!e.text[0] || e.status != status)) abort();
  if (r.text) check(&r, &s);
  gr_chat_spans_free(&s);
  gr_rendered_free(&r);
  gr_template_free(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  const char *text = (const char *)data, *nul = memchr(text, 0, size);
  size_t n = nul ? (size_t)(nul - text) : size;
  json_t *messages = nul ? json_loadb(nul + 1, size - n - 1, 0, NULL) : NULL;
  if (!messages) messages = json_loads(own_messages, 0, NULL);
  allocations_fail(0, false);
  attempt(text, n, messages);
  if (allocations.live) abort();
  size_t seen = allocations.seen;
  uint64_t choice = 14695981039346656037u; /* FNV-1a of the input */
  for (size_t i = 0; i < size; i++) choice = (choice ^ data[i]) * 1099511628211u;
  allocations_fail(1 + (size_t)(choice >> 1) % seen, choice & 1);
  attempt(text, n, messages);
  allocations_fail(0, false);
  if (allocations.live) abort();
  json_decref(messages);
  return 0;
}
