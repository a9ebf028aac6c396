#include "text/pretokenize.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "base/alloc.h"
#include "text/utf8.h"

/* ---- the expressions ---- */

/* Inside brackets: the code points with the property White_Space (Unicode PropList.txt). */
#define SPACE "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define LAST_SPACE_STAYS "[" SPACE "]+(?![^" SPACE "])" /* a run of spaces gives up its last one to the word that follows */

/* English contractions in any ASCII case: (?i) would also let U+017F stand for an s. */
#define CONTRACTION "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"

#define NEWLINES_AND_SPACES "[" SPACE "]*[\\r\\n]+|" LAST_SPACE_STAYS "|[" SPACE "]+"
#define WORDS_AND_DIGITS(contraction, mark, digits)                                                                                        \
  contraction "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}" mark "]+|" digits "| ?[^" SPACE "\\p{L}" mark "\\p{N}]+[\\r\\n]*|" NEWLINES_AND_SPACES

#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED_WORDS(tail, digits)                                                                                                          \
  "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" tail "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" tail "|" digits "| ?[^" SPACE            \
  "\\p{L}\\p{N}]+[\\r\\n/]*|" NEWLINES_AND_SPACES

#define GPT2 "'(?:[stmd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" LAST_SPACE_STAYS

static const char *const llama3[] = { WORDS_AND_DIGITS(CONTRACTION, "", "\\p{N}{1,3}"), NULL };
static const char *const qwen2[] = { WORDS_AND_DIGITS(CONTRACTION, "", "\\p{N}"), NULL };
static const char *const qwen35[] = { WORDS_AND_DIGITS(CONTRACTION, "\\p{M}", "\\p{N}"), NULL };
static const char *const smollm[] = { "\\p{N}", GPT2, NULL };
static const char *const gpt2[] = { GPT2, NULL };
static const char *const tekken[] = { CASED_WORDS("", "\\p{N}"), NULL };
static const char *const gpt4o[] = { CASED_WORDS("(?:" CONTRACTION ")?", "\\p{N}{1,3}"), NULL };
static const char *const unnamed[] = { "[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]", NULL };

/* Names that share a list differ only in the vocabulary that comes with them. */
static const gr_pretokenizer_kind kinds[] = {
  { "default", unnamed, false, false },  { "llama-bpe", llama3, true, true },  { "llama3", llama3, true, true },
  { "llama-v3", llama3, true, true },    { "falcon3", llama3, true, true },    { "falcon-h1", llama3, true, true },
  { "pixtral", llama3, true, true },     { "lfm2", llama3, true, true },       { "dbrx", llama3, false, false },
  { "smaug-bpe", llama3, false, false }, { "qwen2", qwen2, false, false },     { "deepseek-r1-qwen", qwen2, false, false },
  { "megrez", qwen2, false, false },     { "stablelm2", qwen2, false, false }, { "hunyuan", qwen2, false, false },
  { "grok-2", qwen2, false, false },     { "qwen35", qwen35, false, false },   { "smollm", smollm, false, false },
  { "starcoder", smollm, false, false }, { "refact", smollm, false, false },   { "command-r", smollm, false, false },
  { "codeshell", smollm, false, false }, { "exaone", smollm, false, false },   { "minerva-7b", smollm, false, false },
  { "gpt-2", gpt2, false, false },       { "phi-2", gpt2, false, false },      { "mpt", gpt2, false, false },
  { "olmo", gpt2, false, false },        { "jais", gpt2, false, false },       { "trillion", gpt2, false, false },
  { "exaone4", gpt2, false, false },     { "tekken", tekken, true, true },     { "gpt-4o", gpt4o, false, false },
  { "llama4", gpt4o, false, false },
};
enum { KIND_COUNT = sizeof kinds / sizeof *kinds };

gr_status gr_pretokenizer_find(const char *name, const gr_pretokenizer_kind **kind, gr_error *e)
{
  if (!name || !*name) name = kinds[0].name;
  for (size_t i = 0; i < KIND_COUNT; i++)
    if (!strcmp(name, kinds[i].name)) {
      *kind = &kinds[i];
      return GR_OK;
    }
  char known[512] = "";
  for (size_t i = 0, used = 0; i < KIND_COUNT; i++) {
    size_t n = strlen(kinds[i].name);
    if (used + n + 3 > sizeof known) break;
    if (used) memcpy(known + used, ", ", 3), used += 2;
    memcpy(known + used, kinds[i].name, n + 1), used += n;
  }
  return gr_fail(e, GR_ERR_UNSUPPORTED, "tokenizer.ggml.pre is \"%.100s\", a pre-tokenizer that Graft does not know; it knows %s", name,
                 known);
}

/* ---- compiling ---- */

struct gr_pretokenizer {
  pcre2_general_context *memory;
  pcre2_code *stage[GR_PRETOKENIZER_STAGES];
  size_t stages;
  uint32_t match_limit;
};

static void *pcre_alloc(size_t n, void *unused)
{
  (void)unused;
  return gr_alloc(n);
}

static void pcre_free(void *p, void *unused)
{
  (void)unused;
  gr_free(p);
}

void gr_pretokenizer_free(gr_pretokenizer *p)
{
  if (!p) return;
  for (size_t i = 0; i < p->stages; i++) pcre2_code_free(p->stage[i]);
  pcre2_general_context_free(p->memory);
  gr_free(p);
}

static gr_status compile_stage(gr_pretokenizer *p, const char *pattern, pcre2_compile_context *context, gr_error *e)
{
  int code;
  size_t at;
  p->stage[p->stages] = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &at, context);
  if (!p->stage[p->stages]) {
    if (code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED) return gr_fail_memory(e, strlen(pattern));
    char why[128];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
    return gr_fail(e, GR_ERR_FORMAT, "pre-tokenizer expression %zu cannot be compiled: %s at %zu", p->stages + 1, why, at);
  }
  /* Where the system forbids executable memory the interpreter gives the same answers, more slowly. */
  (void)pcre2_jit_compile(p->stage[p->stages], PCRE2_JIT_COMPLETE);
  p->stages++;
  return GR_OK;
}

gr_status gr_pretokenizer_create(gr_pretokenizer **out, const char *const *patterns, uint32_t match_limit, gr_error *e)
{
  *out = NULL;
  gr_pretokenizer *p = gr_calloc(1, sizeof *p);
  if (!p) return gr_fail_memory(e, sizeof *p);
  p->match_limit = match_limit;
  p->memory = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
  pcre2_compile_context *context = p->memory ? pcre2_compile_context_create(p->memory) : NULL;
  gr_status s = context ? GR_OK : gr_fail_memory(e, 256);
  for (size_t i = 0; s == GR_OK && patterns[i]; i++)
    s = i < GR_PRETOKENIZER_STAGES ? compile_stage(p, patterns[i], context, e)
                                   : gr_fail(e, GR_ERR_USAGE, "a pre-tokenizer has at most %d expressions", GR_PRETOKENIZER_STAGES);
  if (context) pcre2_compile_context_free(context);
  if (s != GR_OK) {
    gr_pretokenizer_free(p);
    return s;
  }
  *out = p;
  return GR_OK;
}

/* ---- running ---- */

struct gr_pretokenizer_run {
  const gr_pretokenizer *p;
  pcre2_match_data *match[GR_PRETOKENIZER_STAGES];
  pcre2_match_context *context;
  char *clean; /* the text with malformed bytes replaced */
  size_t clean_cap;
};

void gr_pretokenizer_run_free(gr_pretokenizer_run *run)
{
  if (!run) return;
  for (size_t i = 0; i < run->p->stages; i++)
    if (run->match[i]) pcre2_match_data_free(run->match[i]);
  if (run->context) pcre2_match_context_free(run->context);
  gr_free(run->clean);
  gr_free(run);
}

gr_status gr_pretokenizer_run_create(gr_pretokenizer_run **out, const gr_pretokenizer *p, gr_error *e)
{
  *out = NULL;
  gr_pretokenizer_run *run = gr_calloc(1, sizeof *run);
  if (!run) return gr_fail_memory(e, sizeof *run);
  run->p = p;
  run->context = pcre2_match_context_create(p->memory);
  bool ok = run->context != NULL;
  for (size_t i = 0; ok && i < p->stages; i++) ok = (run->match[i] = pcre2_match_data_create(1, p->memory)) != NULL;
  if (!ok) {
    gr_pretokenizer_run_free(run);
    return gr_fail_memory(e, 256);
  }
  *out = run;
  return GR_OK;
}

/* Malformed bytes become grave accents: ASCII symbols that no expression names, so that each is one symbol of a word. */
static gr_status clean_text(gr_pretokenizer_run *run, const char **text, size_t n, gr_error *e)
{
  if (gr_utf8_valid(*text, n)) return GR_OK;
  if (!gr_grow((void **)&run->clean, &run->clean_cap, n, 1)) return gr_fail_memory(e, n);
  for (size_t i = 0; i < n;) {
    size_t length = gr_utf8_length(*text + i, n - i);
    if (length) memcpy(run->clean + i, *text + i, length);
    else run->clean[i] = '`';
    i += length ? length : 1;
  }
  *text = run->clean;
  return GR_OK;
}

struct splitter {
  gr_pretokenizer_run *run;
  const char *text;
  gr_pretokenizer_word *word;
  void *ctx;
};

static gr_status match_failed(int code, size_t n, gr_error *e)
{
  if (code == PCRE2_ERROR_NOMEMORY) return gr_fail_memory(e, n);
  char why[128];
  pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
  return gr_fail(e, GR_ERR_UNSUPPORTED, "the text cannot be cut into words: the regular-expression library says '%s'; split the text", why);
}

/* Finds the first match of a stage in subject[from..n): its bounds, or none (*start == n). */
static gr_status find_match(const struct splitter *s, size_t stage, const char *subject, size_t n, size_t from, size_t *start, size_t *end,
                            gr_error *e)
{
  gr_pretokenizer_run *run = s->run;
  PCRE2_SPTR bytes = (PCRE2_SPTR)subject;
  int code = pcre2_match(run->p->stage[stage], bytes, n, from, PCRE2_NO_UTF_CHECK, run->match[stage], run->context);
  if (code == PCRE2_ERROR_JIT_STACKLIMIT) /* the interpreter keeps its stack on the heap */
    code = pcre2_match(run->p->stage[stage], bytes, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, run->match[stage], run->context);
  *start = *end = n;
  if (code == PCRE2_ERROR_NOMATCH) return GR_OK;
  if (code < 0) return match_failed(code, n, e);
  const size_t *bounds = pcre2_get_ovector_pointer(run->match[stage]);
  if (bounds[1] <= bounds[0] || bounds[0] < from || bounds[1] > n)
    return gr_fail(e, GR_ERR_FORMAT, "pre-tokenizer expression %zu matches nothing at byte %zu", stage + 1, from);
  *start = bounds[0];
  *end = bounds[1];
  return GR_OK;
}

/* Cuts text[begin..end) by the stages from `stage` on. Each piece is a subject of its own: what lies behind it is not seen. */
static gr_status split_piece(const struct splitter *s, size_t stage, size_t begin, size_t end, gr_error *e)
{
  if (begin == end) return GR_OK;
  if (stage >= GR_PRETOKENIZER_STAGES || stage == s->run->p->stages) return s->word(s->ctx, begin, end - begin, e);
  const char *subject = s->text + begin;
  size_t n = end - begin, from = 0;
  while (from < n) {
    size_t match_start, match_end;
    GR_TRY(find_match(s, stage, subject, n, from, &match_start, &match_end, e));
    GR_TRY(split_piece(s, stage + 1, begin + from, begin + match_start, e));
    GR_TRY(split_piece(s, stage + 1, begin + match_start, begin + match_end, e));
    from = match_end;
  }
  return GR_OK;
}

gr_status gr_pretokenizer_split(gr_pretokenizer_run *run, const char *text, size_t n, gr_pretokenizer_word *word, void *ctx, gr_error *e)
{
  GR_TRY(clean_text(run, &text, n, e));
  uint64_t limit = run->p->match_limit ? run->p->match_limit : (uint64_t)10000000 + 64 * (uint64_t)n;
  pcre2_set_match_limit(run->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
  struct splitter s = { run, text, word, ctx };
  return split_piece(&s, 0, 0, n, e);
}
