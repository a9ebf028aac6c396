/* A small vocabulary of all bytes, some merges, and special tokens that hold, begin with and end in pieces of each other: for what reads
 * text that spells them. */
#ifndef GR_TESTS_SPECIAL_VOCAB_H
#define GR_TESTS_SPECIAL_VOCAB_H
#include <string.h>

#include "text/tokenizer.h"

static const struct {
  const char *text;
  bool control; /* else user-defined: recognised everywhere */
} special_tokens[] = {
  { "<s>", true },       { "</s>", true },   { "<|im_start|>", true }, { "<|im_end|>", true }, { "<|im_start|>user", true },
  { "<|tool|>", false }, { "bread", false }, { "|>\n", false },        { "\nOrla", false },    { "\n\n\n", false },
};
enum { SPECIAL_BYTES = 256, SPECIAL_MERGES = 5, SPECIAL_TOKENS = sizeof special_tokens / sizeof *special_tokens };

/* Ids of special_tokens[0] and on. The beginning and end of a text are <s> and </s>, put there with add; a turn ends with <|im_end|>. */
static const int32_t special_first = SPECIAL_BYTES + SPECIAL_MERGES;

static inline gr_status special_vocab(gr_tokenizer **t, bool add, gr_error *e)
{
  enum { COUNT = SPECIAL_BYTES + SPECIAL_MERGES + SPECIAL_TOKENS };
  static char alphabet[SPECIAL_BYTES][8];
  static const char *const merged[SPECIAL_MERGES] = { "th", "the", "in", "as", "\xc4\xa0the" };
  static const char *const merges[SPECIAL_MERGES] = { "t h", "th e", "i n", "a s", "\xc4\xa0 the" };
  gr_text_view tokens[COUNT], pairs[SPECIAL_MERGES];
  int32_t types[COUNT];
  size_t n = 0;
  for (uint32_t b = 0, other = 0x100; b < SPECIAL_BYTES; b++) {
    size_t length = gr_utf8_encode((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : other++, alphabet[b]);
    tokens[n++] = (gr_text_view){ alphabet[b], length };
  }
  for (size_t i = 0; i < SPECIAL_MERGES; i++) {
    tokens[n++] = (gr_text_view){ merged[i], strlen(merged[i]) };
    pairs[i] = (gr_text_view){ merges[i], strlen(merges[i]) };
  }
  for (size_t i = 0; i < n; i++) types[i] = GR_TOKEN_NORMAL;
  gr_tokenizer_spec spec;
  gr_tokenizer_spec_init(&spec);
  for (size_t i = 0; i < SPECIAL_TOKENS; i++) {
    types[n] = special_tokens[i].control ? GR_TOKEN_CONTROL : GR_TOKEN_USER_DEFINED;
    tokens[n++] = (gr_text_view){ special_tokens[i].text, strlen(special_tokens[i].text) };
  }
  spec.model = "gpt2";
  spec.pre = "qwen2";
  spec.tokens = tokens;
  spec.types = types;
  spec.token_count = n;
  spec.merges = pairs;
  spec.merge_count = SPECIAL_MERGES;
  spec.role[GR_ROLE_BOS] = special_first;
  spec.role[GR_ROLE_EOS] = special_first + 1;
  spec.role[GR_ROLE_EOT] = special_first + 3;
  spec.add_bos = spec.add_eos = add;
  return gr_tokenizer_build(t, &spec, e);
}

/* The special token that begins at each byte of text[0..n), or -1, by the rule as it stands in words: longer tokens are looked for first,
 * each from left to right in what those before left over. `covered` has room for n. */
static inline void special_places(const char *text, size_t n, bool parse, int32_t *found, bool *covered)
{
  for (size_t i = 0; i < n; i++) found[i] = -1, covered[i] = false;
  for (size_t length = 32; length; length--)
    for (size_t k = 0; k < SPECIAL_TOKENS; k++) {
      if (strlen(special_tokens[k].text) != length || (special_tokens[k].control && !parse)) continue;
      for (size_t i = 0; i + length <= n; i++) {
        if (memcmp(text + i, special_tokens[k].text, length) != 0 || memchr(covered + i, true, length)) continue;
        found[i] = special_first + (int32_t)k;
        memset(covered + i, true, length);
      }
    }
}

/* Bytes of special tokens and of what surrounds them. */
static const char *const special_pieces[] = { "<s>",
                                              "</s>",
                                              "<|im_start|>",
                                              "<|im_end|>",
                                              "<|im_start|>user",
                                              "<|tool|>",
                                              "bread",
                                              "<|im_",
                                              "start|>",
                                              "end|>",
                                              "user",
                                              "<s",
                                              ">",
                                              "</",
                                              "|>",
                                              "<",
                                              "\n",
                                              "\n\n",
                                              "\n\n\n\n",
                                              " the",
                                              "the",
                                              "in bre",
                                              "ad",
                                              "Orla",
                                              " ",
                                              "\xc3\xa9",
                                              "x",
                                              "42",
                                              "\nOrla",
                                              "assistant" };
enum { SPECIAL_PIECES = sizeof special_pieces / sizeof *special_pieces };
#endif
