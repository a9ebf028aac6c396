/* Which bytes of a rendered conversation are trained.
 *
 * With {% generation %} marks the template says so. Without them, what a model writes in its turn begins where its prompt ends.
 * The prompt of message i is the rendering of the messages before it, with the generation prompt. The two renderings need not
 * share a prefix (templates look ahead: earlier thinking is dropped, tools move to the last user), so only the tail of the
 * prompt, the template's own bytes behind the last byte that came from the input, is compared with the same place of the whole
 * rendering: "<|im_end|>\n<|im_start|>assistant\n" is found there, and the span begins behind it. That way it holds think tags
 * and tool-call markup before the first byte of the message, which the model has to write itself, and not the header, which it
 * is given. Where the tail is not found the span begins at the message's first byte.
 *
 * The span ends with the first end-of-turn string that the template wrote behind the message's bytes. */
#include <string.h>

#include "base/alloc.h"
#include "text/chat.h"
#include "text/jinja.h"

enum { FIELDS = GR_FIELD_OTHER + 1, TAILS_MAX = 8 };

/* A message as it was found in the text. Run indices are SIZE_MAX when there is none. */
typedef struct turn {
  bool assistant;
  size_t first, last;        /* runs of its own bytes (not of role or name) */
  size_t last_text;          /* the last of them that holds content, reasoning or arguments */
  size_t role;               /* the first run of its role */
  size_t shown[FIELDS];      /* bytes in the text that are not white space, by field */
  size_t content, reasoning; /* the same in the message itself */
  bool calls;                /* it has tool calls */
  bool marked;               /* a {% generation %} span is its own */
} turn;

/* The end of a prompt, as the template writes it after a message of some role. */
typedef struct tail {
  char *text;
  size_t len, generation; /* the generation prompt begins at this byte of it */
  const char *role;       /* of the message before it; "" for none */
} tail;

typedef struct finder {
  const gr_template *t;
  const json_t *messages;
  const gr_render_options *o;
  const gr_rendered *r;
  const char *const *ends;
  size_t n_ends, n;
  turn *turns;
  tail tails[TAILS_MAX];
  size_t n_tails;
  gr_chat_spans *out;
  size_t cap;
  gr_error *e;
} finder;

/* --- What is in the messages, and what of it is in the text ------------------------------------------------------------------------ */

/* Bytes that are not white space. Think tags do not count: templates take them off and put their own on. */
static size_t visible(const char *s, size_t n)
{
  static const char *const tags[] = { "<think>", "</think>" };
  size_t count = 0;
  for (size_t i = 0; i < n; i++) {
    size_t skip = 0;
    for (size_t k = 0; k < 2 && s[i] == '<'; k++)
      if (strlen(tags[k]) <= n - i && !memcmp(s + i, tags[k], strlen(tags[k]))) skip = strlen(tags[k]);
    if (skip) i += skip - 1;
    else count += !(s[i] == ' ' || (s[i] >= 9 && s[i] <= 13));
  }
  return count;
}

/* Of a string, or of the texts in a list of parts. */
static size_t visible_json(const json_t *json)
{
  if (json_is_string(json)) return visible(json_string_value(json), json_string_length(json));
  size_t count = 0;
  for (size_t i = 0; i < json_array_size(json); i++) {
    const json_t *part = json_array_get(json, i), *text = json_is_string(part) ? part : json_object_get(part, "text");
    if (json_is_string(text)) count += visible(json_string_value(text), json_string_length(text));
  }
  return count;
}

static const char *role_of(const json_t *message)
{
  const char *role = json_string_value(json_object_get(message, "role"));
  return role ? role : "";
}

static void read_message(turn *t, const json_t *message)
{
  static const char *const reasoning[] = { "reasoning_content", "thinking", "reasoning", "thought" };
  const char *role = role_of(message);
  *t = (turn){ .first = SIZE_MAX, .last = SIZE_MAX, .last_text = SIZE_MAX, .role = SIZE_MAX };
  t->assistant = !strcmp(role, "assistant") || !strcmp(role, "model");
  t->content = visible_json(json_object_get(message, "content"));
  for (size_t i = 0; i < 4 && !t->reasoning; i++) t->reasoning = visible_json(json_object_get(message, reasoning[i]));
  const json_t *call = json_object_get(message, "function_call");
  t->calls = json_array_size(json_object_get(message, "tool_calls")) > 0 || json_object_size(call) > 0;
}

static void read_runs(finder *f)
{
  for (size_t i = 0; i < f->r->n_runs; i++) {
    const gr_text_run *run = &f->r->runs[i];
    if (run->origin != GR_ORIGIN_MESSAGE || run->message >= f->n) continue;
    turn *t = &f->turns[run->message];
    t->shown[run->field] += visible(f->r->text + run->start, run->end - run->start);
    if (run->field == GR_FIELD_ROLE && t->role == SIZE_MAX) t->role = i;
    if (run->field == GR_FIELD_ROLE || run->field == GR_FIELD_NAME) continue;
    if (t->first == SIZE_MAX) t->first = i;
    t->last = i;
    if (run->field != GR_FIELD_TOOL_CALL && run->field != GR_FIELD_OTHER) t->last_text = i;
  }
}

static gr_status refuse(finder *f, size_t message, const char *why)
{
  f->out->failed_message = message;
  return gr_fail(f->e, GR_ERR_MISMATCH, "message %zu (assistant) cannot be located in what %s renders: %s", message, f->t->name, why);
}

/* Whether what must be trained of message i is in the text at all; counts what may be missing. */
static gr_status check_shown(finder *f, size_t i)
{
  const turn *t = &f->turns[i];
  size_t calls = t->shown[GR_FIELD_TOOL_CALL] + t->shown[GR_FIELD_TOOL_ARGUMENTS], content = t->shown[GR_FIELD_CONTENT];
  if (t->calls && !calls) return refuse(f, i, "its tool calls are not in the text; the template has no place for them");
  if (t->content && !content && !calls) return refuse(f, i, "its content is not in the text");
  if (t->reasoning && !t->content && !t->calls && !t->shown[GR_FIELD_REASONING]) return refuse(f, i, "its reasoning is not in the text");
  f->out->dropped += content < t->content || t->shown[GR_FIELD_REASONING] < t->reasoning;
  return GR_OK;
}

/* --- Spans ------------------------------------------------------------------------------------------------------------------------- */

static gr_status add_span(finder *f, size_t message, size_t start, size_t end, bool closed)
{
  gr_chat_spans *s = f->out;
  size_t floor = s->count ? s->items[s->count - 1].end : 0;
  if (start < floor) start = floor;
  if (start >= end) return GR_OK;
  if (!gr_grow((void **)&s->items, &f->cap, s->count + 1, sizeof *s->items)) return gr_fail_memory(f->e, (s->count + 1) * sizeof *s->items);
  s->items[s->count++] = (gr_chat_span){ .start = start, .end = end, .message = message, .closed = closed };
  return GR_OK;
}

/* The first end-of-turn string in the bytes from..to, the longest where several begin together: where it ends, or 0. */
static size_t find_end(const finder *f, size_t from, size_t to)
{
  size_t best = SIZE_MAX, end = 0;
  for (size_t i = 0; i < f->n_ends; i++) {
    size_t n = strlen(f->ends[i]);
    for (size_t at = from; n && n <= to - from && at <= to - n && at <= best; at++) {
      const char *next = memchr(f->r->text + at, f->ends[i][0], to - n - at + 1);
      if (!next) break;
      at = (size_t)(next - f->r->text);
      if (memcmp(next, f->ends[i], n)) continue;
      if (at < best || (at == best && at + n > end)) {
        best = at;
        end = at + n;
      }
      break;
    }
  }
  return end;
}

static bool own(const gr_text_run *run, size_t message)
{
  return run->origin == GR_ORIGIN_MESSAGE && run->message == message && run->field != GR_FIELD_ROLE && run->field != GR_FIELD_NAME;
}

/* From the input, and not from this message. */
static bool foreign(const gr_text_run *run, size_t message)
{
  return run->origin != GR_ORIGIN_TEMPLATE && !(run->origin == GR_ORIGIN_MESSAGE && run->message == message);
}

/* --- Where a turn begins ----------------------------------------------------------------------------------------------------------- */

/* Copies what the template wrote behind the last byte from the input. */
static gr_status copy_tail(const gr_rendered *p, tail *out, gr_error *e)
{
  size_t n = p->n_runs, from = p->len;
  if (n && p->runs[n - 1].origin == GR_ORIGIN_TEMPLATE) from = p->runs[n - 1].start;
  out->len = p->len - from;
  out->text = gr_strndup(p->text + from, out->len);
  return out->text ? GR_OK : gr_fail_memory(e, out->len);
}

static size_t common(const char *a, size_t n, const char *b, size_t m)
{
  size_t i = 0;
  while (i < n && i < m && a[i] == b[i]) i++;
  return i;
}

/* The tail of the prompt of message i; text stays NULL where the template refuses the messages before it alone. */
static gr_status make_tail(finder *f, size_t i, tail *out)
{
  gr_rendered with, without;
  gr_render_options o = *f->o;
  *out = (tail){ .role = i ? role_of(json_array_get(f->messages, i - 1)) : "" };
  o.add_generation_prompt = true;
  gr_error ignored; /* a template may refuse the messages alone: that says nothing about the whole */
  gr_status status = gr_jinja_render(f->t, f->messages, i, &o, &with, &ignored);
  if (status == GR_ERR_MEMORY) return gr_fail(f->e, status, "%s", ignored.text);
  if (status != GR_OK) return GR_OK;
  status = copy_tail(&with, out, f->e);
  gr_rendered_free(&with);
  if (status != GR_OK) return status;
  o.add_generation_prompt = false;
  tail bare = { 0 };
  status = gr_jinja_render(f->t, f->messages, i, &o, &without, &ignored);
  if (status == GR_OK) status = copy_tail(&without, &bare, &ignored);
  gr_rendered_free(&without);
  if (status == GR_ERR_MEMORY) {
    gr_free(out->text);
    out->text = NULL;
    return gr_fail(f->e, status, "%s", ignored.text);
  }
  if (bare.text) out->generation = common(out->text, out->len, bare.text, bare.len);
  gr_free(bare.text);
  return GR_OK;
}

/* How far into the gap (the template's bytes before message i) the prompt reaches, as this tail tells; SIZE_MAX if it does not fit.
 * A tail fits when the gap begins with it. One that goes on with a tag where the gap does not ("<think>", in a turn whose thinking
 * the template drops) fits up to that tag. */
static size_t fit(const tail *t, const char *gap, size_t n, bool whole)
{
  size_t same = common(t->text, t->len, gap, n);
  if (same == t->len) return same;
  if (whole) return SIZE_MAX;
  while (same > t->generation && t->text[same] != '<' && t->text[same] != '[') same--;
  return same > t->generation ? same : SIZE_MAX;
}

/* Sets *start to where the prompt of message i ends, by the tails known or a new one; SIZE_MAX when that cannot be told. */
static gr_status match_tails(finder *f, size_t i, size_t from, size_t to, size_t *start)
{
  const char *role = i ? role_of(json_array_get(f->messages, i - 1)) : "", *gap = f->r->text + from;
  *start = SIZE_MAX;
  for (size_t k = 0; k < f->n_tails; k++) {
    if (strcmp(f->tails[k].role, role)) continue;
    size_t fits = fit(&f->tails[k], gap, to - from, true);
    if (fits == SIZE_MAX) continue;
    *start = from + fits;
    return GR_OK;
  }
  tail t;
  gr_status status = make_tail(f, i, &t);
  if (status != GR_OK || !t.text) return status;
  size_t fits = fit(&t, gap, to - from, false);
  if (fits != SIZE_MAX) *start = from + fits;
  if (fits == t.len && f->n_tails < TAILS_MAX) f->tails[f->n_tails++] = t;
  else gr_free(t.text);
  return GR_OK;
}

/* The same, given the gap before message i. A template without a generation prompt leaves the header to the model; where the header
 * shows the message's role it is known as such, and is not trained. */
static gr_status prompt_end(finder *f, size_t i, size_t from, size_t to, size_t *start)
{
  gr_status status = match_tails(f, i, from, to, start);
  size_t role = f->turns[i].role;
  if (status == GR_OK && *start != SIZE_MAX && role != SIZE_MAX && f->r->runs[role].end > *start && f->r->runs[role].end <= to)
    *start = SIZE_MAX;
  return status;
}

/* --- One message ------------------------------------------------------------------------------------------------------------------- */

/* The spans of message i from its first own run on. Mostly one; a template that closes and reopens the turn gives several. */
static gr_status walk(finder *f, size_t i, size_t start)
{
  const turn *t = &f->turns[i];
  size_t end = start;
  bool open = true;
  for (size_t k = t->first; k < f->r->n_runs; k++) {
    const gr_text_run *run = &f->r->runs[k];
    if (foreign(run, i)) {
      if (t->last_text != SIZE_MAX && t->last_text > k) return refuse(f, i, "its text is in several places, with other text between them");
      break;
    }
    if (own(run, i)) {
      bool text = run->field != GR_FIELD_TOOL_CALL && run->field != GR_FIELD_OTHER;
      if (!open && !text) continue; /* a tool's name again, in the header of its answer */
      if (!open) start = run->start;
      open = true;
      end = run->end;
      continue;
    }
    size_t close = open && run->origin == GR_ORIGIN_TEMPLATE ? find_end(f, run->start, run->end) : 0;
    if (!close) continue;
    gr_status status = add_span(f, i, start, close, true);
    if (status != GR_OK) return status;
    open = false;
    if (t->last_text == SIZE_MAX || t->last_text < k) return GR_OK;
  }
  return open ? add_span(f, i, start, end, false) : GR_OK;
}

static gr_status locate_text(finder *f, size_t i)
{
  const turn *t = &f->turns[i];
  size_t k = t->first, from = 0, to = f->r->runs[t->first].start, start;
  while (k > 0 && !foreign(&f->r->runs[k - 1], i)) k--;
  if (k > 0) from = f->r->runs[k - 1].end;
  gr_status status = prompt_end(f, i, from, to, &start);
  if (status != GR_OK) return status;
  return walk(f, i, start == SIZE_MAX ? to : start);
}

/* A message without text: its closing token, between what came before it and what comes after. */
static gr_status locate_empty(finder *f, size_t i)
{
  const gr_rendered *r = f->r;
  size_t from = 0, to = r->len, start;
  for (size_t k = r->n_runs; k-- > 0;) {
    const gr_text_run *run = &r->runs[k];
    if (!foreign(run, i)) continue;
    if (run->origin == GR_ORIGIN_MESSAGE && run->message > i) {
      to = run->start;
      continue;
    }
    from = run->end;
    break;
  }
  gr_status status = to < from ? GR_OK : prompt_end(f, i, from, to, &start);
  if (status != GR_OK) return status;
  if (to < from) start = SIZE_MAX;
  if (start == SIZE_MAX && f->turns[i].role != SIZE_MAX) start = r->runs[f->turns[i].role].end;
  if (start == SIZE_MAX || start > to) return refuse(f, i, "it is empty, and the text does not show where its turn would be");
  size_t close = find_end(f, start, to);
  return close ? add_span(f, i, start, close, true) : GR_OK;
}

/* --- {% generation %} -------------------------------------------------------------------------------------------------------------- */

/* The message that a marked span belongs to: whose bytes it holds, or else whose turn it stands in. */
static size_t owner(const finder *f, const gr_text_span *span, size_t *run)
{
  size_t before = SIZE_MAX;
  const gr_text_run *runs = f->r->runs;
  while (*run < f->r->n_runs && runs[*run].end <= span->start) ++*run;
  for (size_t k = *run; k < f->r->n_runs && runs[k].start < span->end; k++)
    if (runs[k].origin == GR_ORIGIN_MESSAGE && runs[k].message < f->n && f->turns[runs[k].message].assistant) return runs[k].message;
  for (size_t k = *run; k-- > 0 && before == SIZE_MAX;)
    if (runs[k].origin == GR_ORIGIN_MESSAGE) before = runs[k].message;
  for (size_t i = before == SIZE_MAX ? 0 : before; i < f->n; i++)
    if (f->turns[i].assistant) return i;
  return SIZE_MAX;
}

/* The end-of-turn strings that the template wrote between start and end. */
static bool holds_end(const finder *f, size_t run, size_t start, size_t end)
{
  for (size_t k = run; k < f->r->n_runs && f->r->runs[k].start < end; k++) {
    const gr_text_run *r = &f->r->runs[k];
    size_t low = r->start > start ? r->start : start, high = r->end < end ? r->end : end;
    if (r->origin == GR_ORIGIN_TEMPLATE && low < high && find_end(f, low, high)) return true;
  }
  return false;
}

static gr_status from_marks(finder *f)
{
  size_t run = 0;
  for (size_t s = 0; s < f->r->n_generation; s++) {
    const gr_text_span *span = &f->r->generation[s];
    size_t message = owner(f, span, &run);
    if (message == SIZE_MAX)
      return gr_fail(f->e, GR_ERR_MISMATCH, "%s marks bytes %zu to %zu as generated, but no assistant message is there", f->t->name,
                     span->start, span->end);
    gr_status status = add_span(f, message, span->start, span->end, holds_end(f, run, span->start, span->end));
    if (status != GR_OK) return status;
    f->turns[message].marked = true;
  }
  for (size_t i = 0; i < f->n; i++)
    if (f->turns[i].assistant && f->turns[i].first != SIZE_MAX && !f->turns[i].marked)
      return refuse(f, i, "the template does not mark it with {% generation %}");
  return GR_OK;
}

gr_status gr_chat_locate(const gr_template *t, const json_t *messages, const gr_render_options *o, const gr_rendered *r,
                         const char *const *end_of_turn, size_t n_end_of_turn, gr_chat_spans *out, gr_error *e)
{
  static const gr_render_options defaults;
  *out = (gr_chat_spans){ 0 };
  finder f = {
    .t = t, .messages = messages, .o = o ? o : &defaults, .r = r, .ends = end_of_turn, .n_ends = n_end_of_turn, .out = out, .e = e
  };
  f.n = json_array_size(messages);
  f.turns = gr_calloc(f.n, sizeof *f.turns);
  gr_status status = f.turns ? GR_OK : gr_fail_memory(e, f.n * sizeof *f.turns);
  for (size_t i = 0; status == GR_OK && i < f.n; i++) read_message(&f.turns[i], json_array_get(messages, i));
  if (status == GR_OK) read_runs(&f);
  bool marks = gr_template_has_generation(t);
  for (size_t i = 0; status == GR_OK && i < f.n; i++) {
    if (!f.turns[i].assistant) continue;
    status = check_shown(&f, i);
    if (status == GR_OK && !marks) status = f.turns[i].first == SIZE_MAX ? locate_empty(&f, i) : locate_text(&f, i);
  }
  if (status == GR_OK && marks) status = from_marks(&f);
  for (size_t i = 0; i < f.n_tails; i++) gr_free(f.tails[i].text);
  gr_free(f.turns);
  if (status != GR_OK) {
    size_t failed = out->failed_message;
    gr_chat_spans_free(out);
    out->failed_message = failed;
  }
  return status;
}

void gr_chat_spans_free(gr_chat_spans *s)
{
  gr_free(s->items);
  *s = (gr_chat_spans){ 0 };
}
