/* graft chat: a conversation in the model's own chat template. One turn at a time; what both turns share stays in the cache. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "cli/cli.h"
#include "cli/interrupt.h"
#include "infer/generate.h"
#include "text/chat_encode.h"

struct options {
  gr_cli_model m;
  const char *system, *prompt;
  gr_cli_sampling sampling;
  int64_t n, context;
  bool json;
};

struct chat {
  struct options *o;
  gr_session *session;
  gr_template *chat_template;
  json_t *messages;
  size_t forgotten; /* turns of this conversation that were left out, the context being full */
  int32_t *ids;     /* what the session holds */
  size_t n_ids, cap;
};

static bool print_piece(void *ctx, int32_t id, const char *text, size_t n)
{
  (void)id;
  const struct options *o = ctx;
  if (!o->json) {
    fwrite(text, 1, n, stdout);
    gr_cli_flush();
  }
  return !gr_interrupted();
}

static gr_status remember(struct chat *c, const int32_t *ids, size_t n, gr_error *e)
{
  if (!gr_grow((void **)&c->ids, &c->cap, n, sizeof *c->ids)) return gr_fail_memory(e, n * sizeof *c->ids);
  memcpy(c->ids, ids, n * sizeof *ids);
  c->n_ids = n;
  return GR_OK;
}

static gr_status answer(struct chat *c, const gr_tokens *tokens, gr_error *e)
{
  const struct options *o = c->o;
  size_t same = 0;
  while (same < c->n_ids && same + 1 < tokens->count && c->ids[same] == tokens->ids[same]) same++;
  gr_session_truncate(c->session, (int32_t)same);
  const gr_generate_options g = {
    .sampling = gr_cli_sampling_of(&o->sampling),
    .most = (int32_t)o->n,
    .on_token = print_piece,
    .ctx = c->o,
  };
  gr_generation out;
  GR_TRY(gr_generate_ids(c->session, o->m.model, tokens->ids + same, (int32_t)(tokens->count - same), &g, &out, e));
  json_t *said = gr_cli_json_text(out.text ? out.text : "", out.text_len);
  gr_status s = said && json_array_append_new(c->messages, json_pack("{s:s,s:O}", "role", "assistant", "content", said)) == 0
                    ? GR_OK
                    : gr_fail_memory(e, out.text_len);
  if (o->json && s == GR_OK)
    gr_cli_json(json_pack("{s:s,s:O,s:i,s:s}", "role", "assistant", "content", said, "tokens", out.n_ids - out.n_prompt, "stop", out.stop));
  json_decref(said);
  if (strcmp(out.stop, "context") == 0) gr_cli_note_context(gr_session_context(c->session));
  /* The session holds all but perhaps the last sampled token. */
  if (s == GR_OK) s = remember(c, tokens->ids, tokens->count, e);
  size_t held = (size_t)gr_session_length(c->session), extra = held > tokens->count ? held - tokens->count : 0;
  if (s == GR_OK && !gr_grow((void **)&c->ids, &c->cap, c->n_ids + extra, sizeof *c->ids)) s = gr_fail_memory(e, extra);
  if (s == GR_OK && extra) memcpy(c->ids + c->n_ids, out.ids + out.n_prompt, extra * sizeof *c->ids);
  if (s == GR_OK) c->n_ids += extra;
  gr_generation_free(&out);
  return s;
}

static size_t first_turn(const struct chat *c) { return c->o->system ? 1 : 0; }

/* Begins anew, keeping the system message. */
static void clear(struct chat *c)
{
  while (json_array_size(c->messages) > first_turn(c)) json_array_remove(c->messages, json_array_size(c->messages) - 1);
  c->forgotten = 0;
}

/* The conversation as tokens that leave room for an answer: the oldest questions go, with their answers, until it does. */
static gr_status fit(struct chat *c, gr_tokens *tokens, gr_error *e)
{
  size_t context = (size_t)gr_session_context(c->session), room = context / 4 < (size_t)c->o->n ? context / 4 : (size_t)c->o->n,
         before = c->forgotten;
  for (;;) {
    gr_tokens_free(tokens);
    *tokens = (gr_tokens){ 0 };
    GR_TRY(gr_chat_encode(gr_model_tokenizer(c->o->m.model), c->chat_template, c->messages, tokens, e));
    bool last = json_array_size(c->messages) < first_turn(c) + 3;
    if (tokens->count + (last ? 1 : room) <= context) break;
    if (last)
      return gr_fail(e, GR_ERR_USAGE,
                     "the message has %zu tokens with what the template adds, and the context holds %zu: shorten it, or raise -c",
                     tokens->count, context);
    for (int k = 0; k < 2; k++) json_array_remove(c->messages, first_turn(c));
    c->forgotten++;
  }
  if (c->forgotten > before)
    fprintf(stderr,
            "note     the context of %zu tokens is full: the oldest %zu turn%s forgotten; /clear begins anew, -c sets another context\n",
            context, c->forgotten, c->forgotten == 1 ? " is" : "s are");
  return GR_OK;
}

static gr_status turn(struct chat *c, const char *text, size_t n, gr_error *e)
{
  json_t *said = json_stringn(text, n);
  if (!said) return gr_fail(e, GR_ERR_FORMAT, "the message is not UTF-8 text");
  if (json_array_append_new(c->messages, json_pack("{s:s,s:o}", "role", "user", "content", said)) < 0) return gr_fail_memory(e, n);
  gr_tokens tokens = { 0 };
  gr_status s = fit(c, &tokens, e);
  if (s == GR_OK) s = answer(c, &tokens, e);
  else json_array_remove(c->messages, json_array_size(c->messages) - 1);
  gr_tokens_free(&tokens);
  return s;
}

static const char help[] = "Ctrl-D or /exit ends the conversation, Ctrl-C an answer; /clear begins anew.\n";

static bool is(const char *line, size_t n, const char *word) { return strlen(word) == n && memcmp(line, word, n) == 0; }

/* A line of the user's, or *n of 0: there is none. At a terminal Ctrl-C gives a fresh prompt, and twice in a row the end. */
static gr_status read_line(bool terminal, char **line, size_t *cap, size_t *n, gr_error *e)
{
  for (int tries = 0;; tries++) {
    gr_interrupt_forget();
    if (terminal) fputs("> ", stderr);
    gr_interrupt_wait(0); /* standard input is read unbuffered */
    errno = 0;
    ssize_t got = gr_interrupted() ? -1 : getline(line, cap, stdin);
    bool woken = got <= 0 && gr_interrupted();
    *n = got > 0 ? (size_t)got : 0;
    if (got <= 0 && ferror(stdin) && !woken) return gr_fail_errno(e, errno, "read", "standard input");
    if (woken && terminal) fputc('\n', stderr);
    if (!woken || !terminal || tries) return GR_OK;
    clearerr(stdin);
    fprintf(stderr, "Ctrl-D or another Ctrl-C ends the conversation.\n");
  }
}

static gr_status talk(struct chat *c, gr_error *e)
{
  const struct options *o = c->o;
  if (o->prompt) {
    GR_TRY(turn(c, o->prompt, strlen(o->prompt), e));
    if (!o->json) putchar('\n');
    return GR_OK;
  }
  bool terminal = isatty(0);
  setvbuf(stdin, NULL, _IONBF, 0); /* nothing may wait where poll does not look */
  if (terminal) fputs(help, stderr);
  char *line = NULL;
  size_t cap = 0, n = 0;
  gr_status s = GR_OK;
  while ((s = read_line(terminal, &line, &cap, &n, e)) == GR_OK && n) {
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    if (n == 0) continue;
    if (is(line, n, "/exit") || is(line, n, "/quit") || is(line, n, "/bye")) break;
    if (is(line, n, "/help")) {
      fputs(help, stderr);
      continue;
    }
    if (is(line, n, "/clear")) {
      clear(c);
      continue;
    }
    s = turn(c, line, n, e);
    if (s == GR_ERR_USAGE && terminal) gr_cli_fail(e), s = GR_OK; /* too long: say something else */
    else if (s != GR_OK) break;
    else if (!o->json) putchar('\n');
  }
  free(line);
  return s;
}

static gr_status run(struct options *o, gr_error *e)
{
  struct chat c = { .o = o, .messages = json_array() };
  bool builtin = false;
  gr_status s = c.messages ? gr_cli_check_lengths(o->n, o->context, e) : gr_fail_memory(e, 64);
  if (s == GR_OK) s = gr_cli_model_open(&o->m, e);
  if (s == GR_OK) s = gr_cli_check_bases(&o->m, NULL, false, e);
  if (s == GR_OK) s = gr_template_from_gguf(&c.chat_template, gr_model_file(o->m.model), NULL, &builtin, e);
  if (s == GR_OK && builtin)
    fprintf(stderr, "note: the model has no chat template: the conversation is written by %s\n", gr_template_name(c.chat_template));
  if (s == GR_OK && o->system && json_array_append_new(c.messages, json_pack("{s:s,s:s}", "role", "system", "content", o->system)) < 0)
    s = gr_fail(e, GR_ERR_FORMAT, "the system message is not UTF-8 text");
  int32_t most = s == GR_OK ? gr_model_hparams(o->m.model)->context : 0;
  const gr_session_options so = { .context = o->context > 0 ? (int32_t)o->context
                                             : most < 4096  ? most
                                                            : 4096,
                                  .adapters = o->m.adapters,
                                  .n_adapters = o->m.n_adapters,
                                  .backends = o->m.backends,
                                  .n_backends = o->m.n_backends,
                                  .allow_ref = o->m.allow_ref };
  if (s == GR_OK) gr_cli_note_beyond(so.context, most);
  if (s == GR_OK) s = gr_session_open(&c.session, o->m.model, &so, e);
  if (s == GR_OK) gr_cli_note_fallen(&o->m, gr_session_plan_of(c.session, true));
  if (s == GR_OK) s = talk(&c, e);
  gr_session_close(c.session);
  gr_template_free(c.chat_template);
  json_decref(c.messages);
  gr_free(c.ids);
  return s;
}

int gr_cmd_chat(int argc, char **argv)
{
  struct options o = { .n = 512, .sampling = gr_cli_sampling_defaults() };
  const gr_arg args[] = {
    GR_CLI_MODEL_ARGS(o.m),
    { "-sys --system", GR_ARG_TEXT, "TEXT", "a system message", &o.system, NULL },
    { "-p --prompt", GR_ARG_TEXT, "TEXT", "ask this one thing and end (default: a turn a line of standard input)", &o.prompt, NULL },
    { "-n --predict", GR_ARG_INT, "N", "tokens of an answer at most (default 512)", &o.n, NULL },
    { "-c --ctx-size", GR_ARG_INT, "N", "context in tokens (default: the model's, at most 4096)", &o.context, NULL },
    GR_CLI_SAMPLING_ARGS(o.sampling),
    { "--json", GR_ARG_FLAG, NULL, "one JSON object an answer on stdout", &o.json, NULL },
    { 0 },
  };
  int status = 0;
  gr_error e = { 0 };
  if (gr_cli_parse(args, argc, argv, NULL,
                   "usage: graft chat -m MODEL [--lora ADAPTER] [options]\nA line /clear begins anew, /exit ends, /help says so.",
                   &status)) {
    gr_interrupt_catch(false);
    status = run(&o, &e) == GR_OK ? 0 : gr_cli_fail(&e);
  }
  gr_cli_model_close(&o.m);
  return status;
}
