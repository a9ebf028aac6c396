/* graft tokenize: text to ids, one line; -d: ids to text. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "cli/cli.h"

struct options {
  const char *model, *file, *text;
  bool decode, special, control, pieces, json;
};

static gr_status encode(const struct options *o, const gr_tokenizer *t, const char *text, size_t n, gr_error *e)
{
  gr_tokens tokens = { 0 };
  unsigned flags = (o->special ? GR_ENCODE_SPECIAL : 0) | (o->control ? GR_ENCODE_PARSE_CONTROL | GR_ENCODE_ONE_BOS : 0);
  GR_TRY(gr_tokenizer_encode(t, text, n, flags, &tokens, e));
  json_t *ids = o->json ? json_array() : NULL;
  for (size_t i = 0; i < tokens.count; i++) {
    gr_text_view piece = gr_tokenizer_text(t, tokens.ids[i]);
    if (o->json) json_array_append_new(ids, json_integer(tokens.ids[i]));
    else if (o->pieces) printf("%6d  %.*s\n", tokens.ids[i], (int)piece.len, piece.data);
    else printf("%s%d", i ? " " : "", tokens.ids[i]);
  }
  if (o->json) gr_cli_json(json_pack("{s:o}", "ids", ids));
  else if (!o->pieces) putchar('\n');
  if (tokens.lost) fprintf(stderr, "graft: the vocabulary cannot spell %zu bytes of the text\n", tokens.lost);
  gr_tokens_free(&tokens);
  return GR_OK;
}

static gr_status decode(const struct options *o, const gr_tokenizer *t, const char *text, gr_error *e)
{
  int32_t *ids = NULL;
  size_t n = 0, cap = 0;
  gr_status s = GR_OK;
  for (const char *p = text; s == GR_OK;) {
    while (isspace((unsigned char)*p) || *p == ',' || *p == '[' || *p == ']') p++;
    if (!*p) break;
    char *end;
    errno = 0;
    long v = strtol(p, &end, 10);
    if (end == p || errno || v < 0 || (size_t)v >= gr_tokenizer_vocab_size(t))
      s = gr_fail(e, o->text ? GR_ERR_USAGE : GR_ERR_FORMAT, "'%.20s' is not a token id from 0 to %zu", p, gr_tokenizer_vocab_size(t) - 1);
    else if (!gr_grow((void **)&ids, &cap, n + 1, sizeof *ids)) s = gr_fail_memory(e, cap);
    else ids[n++] = (int32_t)v;
    p = end;
  }
  gr_buf out = { 0 };
  if (s == GR_OK) s = gr_tokenizer_decode(t, ids, n, o->control ? GR_DECODE_CONTROL : 0, &out, e);
  if (s == GR_OK && o->json) gr_cli_json(json_pack("{s:o}", "text", gr_cli_json_text(out.data ? out.data : "", out.len)));
  else if (s == GR_OK) fwrite(out.data ? out.data : "", 1, out.len, stdout);
  gr_buf_free(&out);
  gr_free(ids);
  return s;
}

static gr_status run(const struct options *o, gr_error *e)
{
  if (!o->model) return gr_fail(e, GR_ERR_USAGE, "give the model with -m FILE");
  if (o->text && o->file) return gr_fail(e, GR_ERR_USAGE, "give the text with -p TEXT or with -f FILE, not with both");
  gr_gguf *file = NULL;
  gr_tokenizer *t = NULL;
  char *text = NULL;
  size_t n = 0;
  gr_status s = gr_cli_vocabulary_open(o->model, &file, &t, e);
  if (s == GR_OK && o->text) {
    n = strlen(o->text);
    text = gr_strdup(o->text);
    if (!text) s = gr_fail_memory(e, n);
  } else if (s == GR_OK) {
    s = gr_file_read(o->file ? o->file : "-", (size_t)1 << 30, &text, &n, e);
  }
  if (s == GR_OK) s = o->decode ? decode(o, t, text, e) : encode(o, t, text, n, e);
  gr_free(text);
  gr_tokenizer_free(t);
  gr_gguf_close(file);
  return s;
}

int gr_cmd_tokenize(int argc, char **argv)
{
  struct options o = { .special = true, .control = true };
  const gr_arg args[] = {
    { "-m --model", GR_ARG_TEXT, "FILE", "a GGUF file with a vocabulary", &o.model, NULL },
    { "-f --file", GR_ARG_TEXT, "FILE", "read the text from a file (default: standard input)", &o.file, NULL },
    { "-p --prompt --text", GR_ARG_TEXT, "TEXT", "the text itself", &o.text, NULL },
    { "-d --decode", GR_ARG_FLAG, NULL, "ids in, text out", &o.decode, NULL },
    { "--special", GR_ARG_FLAG, NULL, "put BOS and EOS where the model wants them (default; --no-special: do not)", &o.special, NULL },
    { "--control", GR_ARG_FLAG, NULL, "control tokens written out are control tokens (default; --no-control: text)", &o.control, NULL },
    { "--pieces", GR_ARG_FLAG, NULL, "one token a line, with its text", &o.pieces, NULL },
    { "--json", GR_ARG_FLAG, NULL, "one JSON object on stdout", &o.json, NULL },
    { 0 },
  };
  int status = 0;
  gr_error e = { 0 };
  if (gr_cli_parse(args, argc, argv, NULL, "usage: graft tokenize -m MODEL [-f FILE | -p TEXT] [-d] [options]", &status))
    status = run(&o, &e) == GR_OK ? 0 : gr_cli_fail(&e);
  return status;
}
