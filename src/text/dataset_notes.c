/* What is said about a dataset: a line for each file, then one for each kind of event. */
#include <string.h>

#include "base/alloc.h"
#include "text/dataset_impl.h"

static const struct {
  const char *name, *one, *many;
} events[GR_DATA_EVENTS] = {
  [GR_DATA_REFUSED] = { "refused", "record was left out, since what to train in it cannot be told",
                        "records were left out, since what to train in them cannot be told" },
  [GR_DATA_UNTRAINED] = { "untrained", "record was left out, nothing in it being trained",
                          "records were left out, nothing in them being trained" },
  [GR_DATA_TOO_LONG] = { "too_long", "record was left out as longer than the window", "records were left out as longer than the window" },
  [GR_DATA_TRUNCATED] = { "truncated", "record was cut at the window", "records were cut at the window" },
  [GR_DATA_SPLIT] = { "split", "record longer than the window was split", "records longer than the window were split" },
  [GR_DATA_PIECES_LEFT] = { "pieces_left", "piece of a split record was left out, nothing in it being trained",
                            "pieces of split records were left out, nothing in them being trained" },
  [GR_DATA_END_UNTRAINED] = { "end_untrained", "record does not train the end of its last turn",
                              "records do not train the end of their last turn" },
  [GR_DATA_DOUBLED_BOS] = { "doubled_bos", "sample begins with two BOS tokens", "samples begin with two BOS tokens" },
  [GR_DATA_DUPLICATES] = { "duplicates", "sample is the same as an earlier one", "samples are the same as earlier ones" },
  [GR_DATA_THINKING_LOST] = { "thinking_lost", "assistant message lost its reasoning to the chat template",
                              "assistant messages lost their reasoning to the chat template" },
  [GR_DATA_EMPTY_TURNS] = { "empty_turns", "assistant message is empty: of it, only the end of the turn is trained",
                            "assistant messages are empty: of them, only the end of the turn is trained" },
  [GR_DATA_TRAIN_IGNORED] = { "train_ignored", "message asks to be trained and is not an assistant's: it is not trained",
                              "messages ask to be trained and are not an assistant's: they are not trained" },
  [GR_DATA_CALLS_AS_TEXT] = { "calls_as_text", "tool call is trained as text: the chat template has no place for it",
                              "tool calls are trained as text: the chat template has no place for them" },
  [GR_DATA_CALLS_UNREAD] = { "calls_unread", "function call is not {\"name\", \"arguments\"}: trained as the text it is",
                             "function calls are not {\"name\", \"arguments\"}: trained as the text they are" },
  [GR_DATA_ANSWERS_AS_USER] = { "answers_as_user", "answer of a tool is given as a user message: the chat template takes no other",
                                "answers of tools are given as user messages: the chat template takes no others" },
  [GR_DATA_TOOLS_LEFT_OUT] = { "tools_left_out", "record has tool definitions that the chat template does not show",
                               "records have tool definitions that the chat template does not show" },
  [GR_DATA_CONTROL_TEXT] = { "control_text",
                             "record of text spells a control token, which stays text (use the messages form for conversations)",
                             "records of text spell control tokens, which stay text (use the messages form for conversations)" },
  [GR_DATA_CONTROL_READ] = { "control_read", "record of text spells a control token, which was read as such",
                             "records of text spell control tokens, which were read as such" },
  [GR_DATA_UNREAD_KEYS] = { "unread_keys", "record has keys that nothing reads", "records have keys that nothing reads" },
  [GR_DATA_SYSTEM_TWICE] = { "system_twice", "record has a system text beside its messages' own, which was left out",
                             "records have a system text beside their messages' own, which was left out" },
  [GR_DATA_LOST_BYTES] = { "lost_bytes", "record has bytes that the vocabulary cannot spell",
                           "records have bytes that the vocabulary cannot spell" },
  [GR_DATA_SURROGATES] = { "surrogates", "record has lone surrogates, which were read as U+FFFD",
                           "records have lone surrogates, which were read as U+FFFD" },
  [GR_DATA_BIG_NUMBERS] = { "big_numbers", "record has numbers that fit no type, which were read as text",
                            "records have numbers that fit no type, which were read as text" },
  [GR_DATA_CRLF] = { "crlf", "file has CR LF line ends, which were read as LF", "files have CR LF line ends, which were read as LF" },
};

const char *gr_data_event_name(gr_data_event v) { return events[v].name; }

static double percent(size_t part, size_t whole) { return whole ? 100.0 * (double)part / (double)whole : 0; }

static void write_event(gr_buf *b, const gr_dataset *d, gr_data_event v)
{
  const gr_data_counts *c = &d->counts;
  size_t n = c->events[v];
  gr_buf_printf(b, "%s%zu %s", b->len ? "\n" : "", n, n == 1 ? events[v].one : events[v].many);
  if (v == GR_DATA_TRUNCATED)
    gr_buf_printf(b, " of %d tokens, losing %zu tokens (%.1f %% of all), %zu of them trained", d->window, c->tokens_cut,
                  percent(c->tokens_cut, c->tokens + c->tokens_cut), c->tokens_cut_trained);
  if (v == GR_DATA_DUPLICATES) gr_buf_printf(b, " (%.1f %% of all)", percent(n, c->samples));
  if (v == GR_DATA_UNREAD_KEYS) gr_buf_printf(b, ": %s", d->unread.data);
  gr_buf_printf(b, "; the first: %s:%u", d->files[d->first[v].file].path, d->first[v].line);
  if (v == GR_DATA_REFUSED) gr_buf_printf(b, ": %s", d->refusal);
}

gr_status gr_data_write_notes(gr_dataset *d, gr_error *e)
{
  gr_buf *b = &d->notes;
  gr_buf_clear(b);
  for (size_t i = 0; i < d->n_files; i++) {
    const data_file *f = &d->files[i];
    const char *unit = f->format == GR_DATA_PLAIN ? "window" : "record";
    gr_buf_printf(b, "%s%s: %zu %s%s, format %s (%s)", b->len ? "\n" : "", f->path, f->records, unit, f->records == 1 ? "" : "s",
                  gr_data_format_name(f->format), f->forced ? "as told" : "found out");
  }
  for (int v = 0; v < GR_DATA_EVENTS; v++)
    if (d->counts.events[v]) write_event(b, d, (gr_data_event)v);
  return b->failed ? gr_fail_memory(e, b->len) : GR_OK;
}

gr_status gr_dataset_check_strict(const gr_dataset *d, gr_error *e)
{
  gr_buf text = { 0 };
  for (int v = 0; v < GR_DATA_EVENTS && !text.len; v++)
    if (d->counts.events[v] && v != GR_DATA_SPLIT && v != GR_DATA_CONTROL_READ && v != GR_DATA_BIG_NUMBERS && v != GR_DATA_CRLF)
      write_event(&text, d, (gr_data_event)v);
  gr_status s = text.failed ? gr_fail_memory(e, text.len) : GR_OK;
  if (s == GR_OK && text.len) s = gr_fail(e, GR_ERR_MISMATCH, "--strict: %s", text.data);
  gr_buf_free(&text);
  return s;
}

gr_status gr_dataset_check(const gr_dataset *d, gr_error *e)
{
  const gr_data_counts *c = &d->counts;
  if (c->events[GR_DATA_DOUBLED_BOS]) {
    const data_place *p = &d->first[GR_DATA_DOUBLED_BOS];
    return gr_fail(e, GR_ERR_MISMATCH, "%zu samples begin with two BOS tokens (the first: %s:%u): the chat template writes one too many",
                   c->events[GR_DATA_DOUBLED_BOS], d->files[p->file].path, p->line);
  }
  if (c->conversations && !c->ended)
    return gr_fail(
        e, GR_ERR_MISMATCH,
        "no end of turn is trained in any of the %zu conversations of %s, so the model would not learn to stop: the chat template "
        "must end an assistant's turn with one of the model's end tokens",
        c->conversations, d->files[0].path);
  return GR_OK;
}
