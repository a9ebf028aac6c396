/* Which tokens have a role, end generation, and are recognised in text as a whole. The file names some; others are known by
 * their texts, as llama.cpp knows them (src/llama-vocab.cpp, read at 00ad355e). */
#include <ctype.h>
#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_impl.h"

enum { TEXTS_MAX = 12 };

static const struct {
  gr_token_role role;
  const char *texts[TEXTS_MAX];
} known_by_text[] = {
  { GR_ROLE_EOT,
    { "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]",
      "<｜end▁of▁sentence｜>", "<end_of_utterance>" } },
  { GR_ROLE_EOM, { "<|eom_id|>" } },
  { GR_ROLE_FIM_PRE,
    { "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>" } },
  { GR_ROLE_FIM_SUF,
    { "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>" } },
  { GR_ROLE_FIM_MID,
    { "<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>" } },
  { GR_ROLE_FIM_PAD, { "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]" } },
  { GR_ROLE_FIM_REP, { "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>" } },
  { GR_ROLE_FIM_SEP, { "<|file_sep|>" } },
};

static const char *const ends_generation[] = {
  "<|eot_id|>",
  "<|im_end|>",
  "<|end|>",
  "<|return|>",
  "<|call|>",
  "<|flush|>",
  "<|calls|>",
  "<end_of_turn>",
  "<|endoftext|>",
  "</s>",
  "<|eom_id|>",
  "<EOT>",
  "_<EOT>",
  "[EOT]",
  "[EOS]",
  "<|end_of_text|>",
  "<end_of_utterance>",
  "<eos>",
  "<turn|>",
  "<|tool_response>",
  "<｜end▁of▁sentence｜>",
  "[e~[",
};

static const char *const role_keys[GR_ROLE_COUNT] = {
  "bos_token_id",     "eos_token_id",       "eot_token_id",     "eom_token_id",
  "unknown_token_id", "seperator_token_id", /* so spelled in the format */
  "padding_token_id", "fim_pre_token_id",   "fim_suf_token_id", "fim_mid_token_id",
  "fim_pad_token_id", "fim_rep_token_id",   "fim_sep_token_id",
};

static int32_t find(const gr_tokenizer *t, const char *text) { return gr_tokenizer_find(t, text, strlen(text)); }

static void make_control(gr_tokenizer *t, int32_t id)
{
  if (t->type[id] == GR_TOKEN_CONTROL) return;
  t->type[id] = GR_TOKEN_CONTROL;
  gr_tokenizer_note(t, "token %d '%.100s' has the text of a control token and another type: taken as a control token", id,
                    t->text[id].data);
}

/* The file's ids, or the defaults of its kind. Ids beyond the vocabulary are left at the default, as llama.cpp leaves them. */
static void set_named(gr_tokenizer *t, const gr_tokenizer_spec *spec)
{
  for (int r = 0; r < GR_ROLE_COUNT; r++) t->role[r] = -1;
  int32_t bos = t->spm ? 1 : 11, eos = t->spm ? 2 : 11;
  if ((size_t)bos < t->count) t->role[GR_ROLE_BOS] = bos;
  if ((size_t)eos < t->count) t->role[GR_ROLE_EOS] = eos;
  if (t->spm) t->role[GR_ROLE_UNK] = 0;
  for (int r = 0; r < GR_ROLE_COUNT; r++) {
    if (spec->role[r] < 0) continue;
    if ((uint64_t)spec->role[r] < t->count) t->role[r] = (int32_t)spec->role[r];
    else
      gr_tokenizer_note(t, "tokenizer.ggml.%s is %lld, but the vocabulary has %zu tokens: ignored", role_keys[r], (long long)spec->role[r],
                        t->count);
  }
}

static void set_by_text(gr_tokenizer *t)
{
  for (size_t k = 0; k < sizeof known_by_text / sizeof *known_by_text; k++) {
    gr_token_role role = known_by_text[k].role;
    for (int i = 0; t->role[role] < 0 && i < TEXTS_MAX && known_by_text[k].texts[i]; i++) {
      int32_t id = find(t, known_by_text[k].texts[i]);
      if (id < 0) continue;
      t->role[role] = id;
      make_control(t, id);
    }
  }
}

static void set_ends(gr_tokenizer *t)
{
  static const gr_token_role roles[] = { GR_ROLE_FIM_PAD, GR_ROLE_FIM_REP, GR_ROLE_FIM_SEP, GR_ROLE_EOS, GR_ROLE_EOT, GR_ROLE_EOM };
  for (size_t i = 0; i < sizeof ends_generation / sizeof *ends_generation; i++) {
    int32_t id = find(t, ends_generation[i]);
    if (id < 0) continue;
    t->flags[id] |= GR_TOKEN_EOG;
    make_control(t, id);
  }
  for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
    if (t->role[roles[i]] >= 0) t->flags[t->role[roles[i]]] |= GR_TOKEN_EOG;
}

static bool ends(const gr_tokenizer *t, const char *text)
{
  int32_t id = find(t, text);
  return id >= 0 && t->flags[id] & GR_TOKEN_EOG;
}

/* In the "harmony" format of gpt-oss <|end|> ends a message, not the turn; and where <|tool_response> is, </s> is plain text. */
static void unset_ends(gr_tokenizer *t)
{
  bool call = ends(t, "<|call|>") || ends(t, "<|calls|>");
  int32_t end = find(t, "<|end|>"), s = find(t, "</s>");
  if (end >= 0 && call && (ends(t, "<|return|>") || ends(t, "<|flush|>"))) t->flags[end] &= (uint8_t)~GR_TOKEN_EOG;
  if (s >= 0 && ends(t, "<|tool_response>") && ends(t, "</s>")) {
    t->flags[s] &= (uint8_t)~GR_TOKEN_EOG;
    t->type[s] = GR_TOKEN_NORMAL;
  }
}

/* The frame of gpt-oss's answers is control tokens that llama.cpp shows, and so do we; text still cannot forge them. */
static void show_harmony(gr_tokenizer *t)
{
  static const char *const frame[] = { "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>" };
  for (size_t i = 0; i < sizeof frame / sizeof *frame; i++) {
    int32_t id = find(t, frame[i]);
    if (id >= 0) t->flags[id] &= (uint8_t)~GR_TOKEN_HIDDEN;
  }
}

static bool name_has(const char *name, const char *word)
{
  for (; name && *name; name++) {
    size_t i = 0;
    while (word[i] && tolower((unsigned char)name[i]) == word[i]) i++;
    if (!word[i]) return true;
  }
  return false;
}

/* Phi-3's special tokens, but for these three, swallow the white space behind them; the file does not say so. */
static void strip_phi3(gr_tokenizer *t, const char *name)
{
  static const char *const spared[] = { "<unk>", "<s>", "<|endoftext|>" };
  if (!name_has(name, "phi-3") && !name_has(name, "phi3")) return;
  for (size_t id = 0; id < t->count; id++)
    if (t->flags[id] & (GR_MATCH_ALWAYS | GR_MATCH_TRUSTED)) t->flags[id] |= GR_TOKEN_STRIPS;
  for (size_t i = 0; i < sizeof spared / sizeof *spared; i++) {
    int32_t id = find(t, spared[i]);
    if (id >= 0) t->flags[id] &= (uint8_t)~GR_TOKEN_STRIPS;
  }
}

void gr_tokenizer_init_roles(gr_tokenizer *t, const gr_tokenizer_spec *spec)
{
  set_named(t, spec);
  set_by_text(t);
  set_ends(t);
  unset_ends(t);
  for (size_t id = 0; id < t->count; id++) {
    if (t->type[id] == GR_TOKEN_USER_DEFINED) t->flags[id] |= GR_MATCH_ALWAYS | GR_TOKEN_BREAKS;
    if (t->type[id] == GR_TOKEN_CONTROL || t->type[id] == GR_TOKEN_UNKNOWN)
      t->flags[id] |= GR_MATCH_TRUSTED | GR_TOKEN_HIDDEN | GR_TOKEN_BREAKS;
  }
  show_harmony(t);
  strip_phi3(t, spec->name);
}
