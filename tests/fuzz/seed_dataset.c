/* Writes the seeds of fuzz_dataset into the folder named on the command line: a small file of each form, with options that let every
 * part of the reader be reached. */
#include <stdio.h>
#include <string.h>

/* The options, as fuzz_dataset reads them: form, name of the file, template, all trained, window, over-long, control tokens, ends. */
enum {
  AUTO = 0,
  TEXT = 6,
  PLAIN = 7,
  AS_TXT = 1 << 4,
  AS_JSONL = 2 << 4,
  TOOLS = 1 << 6,
  ALL = 1 << 7,
  SHORT = 1 << 8,
  LONG = 3 << 8,
  SPLIT = 2 << 10,
  SPECIAL = 1 << 12,
  ENDS = 1 << 13 /* a vocabulary that puts <s> and </s> */
};

static const struct {
  unsigned options;
  const char *text;
} seeds[] = {
  { LONG | AS_JSONL, "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"the bread\"},"
                     " {\"role\": \"assistant\", \"content\": \"in the\", \"weight\": 0.5}, {\"role\": \"assistant\", \"content\": \"x\","
                     " \"train\": false}]}\n\n{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"p\"}]},"
                     " {\"role\": \"assistant\", \"content\": \"\"}]}\n" },
  { LONG | TOOLS, "{\"tools\": [{\"name\": \"f\", \"parameters\": {}}], \"messages\": [{\"role\": \"user\", \"content\": \"q\"},"
                  " {\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"c\", \"type\": \"function\", \"function\":"
                  " {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}]}, {\"role\": \"tool\", \"content\": {\"a\": [1, 2.5, null]}},"
                  " {\"role\": \"assistant\", \"content\": \"<|im_end|>\", \"reasoning_content\": \"r\"}]}" },
  { LONG, "{\"tools\": \"[{\\\"name\\\": \\\"f\\\"}]\", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\","
          " \"function_call\": {\"name\": \"f\", \"arguments\": {\"x\": true}}}, {\"role\": \"function\", \"name\": \"f\", \"content\": "
          "\"1\"}]}" },
  { LONG | TOOLS,
    "{\"conversations\": [{\"from\": \"human\", \"value\": \"q\"}, {\"from\": \"function_call\", \"value\":"
    " \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {}}\"}, {\"from\": \"observation\", \"value\": \"o\"}, {\"from\": \"gpt\","
    " \"value\": \"a\"}], \"system\": \"s\", \"tools\": \"[]\"}" },
  { LONG, "[{\"instruction\": \"i\", \"input\": \"x\", \"output\": \"o\"},\n {\"instruction\": 1, \"input\": \"\", \"output\": 2.5, "
          "\"weight\": 3}]" },
  { LONG | ALL,
    "{\"prompt\": \"q\", \"completion\": \"a\"}\n{\"prompt\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\","
    " \"content\": \"b\"}], \"completion\": [{\"role\": \"assistant\", \"content\": \"c\"}]}\n" },
  { LONG, "\xef\xbb\xbf{\"question\": \"q \\ud800\", \"answer\": 123456789012345678901234567890}\r\n{\"question\": \"q\", \"answer\": "
          "1e999}\r\n" },
  { SHORT | SPLIT, "{\"question\": \"a question\", \"answer\": \"the answer is in the bread, as the bread is in the answer\"}" },
  { SHORT, "{\"question\": \"q\", \"answer\": \"the answer is in the bread, as the bread is in the answer\"}" },
  { SHORT | SPLIT | TEXT, "{\"text\": \"the text is long, and <|im_end|> is in it, as it is in the text\"}" },
  { SHORT | AS_TXT, "the text\r\nin lines\r\n\r\n  as it is <|im_end|> \xc3\xa9 \xf0\x9f\x98\x80\n" },
  { LONG | PLAIN, "{\"not\": read as JSON}\xff\xfe\n" },
  { LONG, "[[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]]" },
  { LONG,
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]\n[{\"from\": \"human\", \"value\": \"q\"},"
    " {\"from\": \"gpt\", \"value\": \"a\"}]\n" },
  { LONG | SPECIAL | TEXT, "{\"text\": \"<s><|im_start|>user\\nthe bread<|im_end|>\\n<|im_start|>assistant\\nin the<|im_end|>\"}" },
  { SHORT | SPLIT | SPECIAL | AS_TXT, "the <|im_end|><|im_end|> text </s> <|im_sta\nrt|>\n" },
  { LONG | SPECIAL, "{\"prompt\": \"<|im_start|>the\", \"completion\": \"<|im_end|>\"}\n{\"messages\": [{\"role\": \"user\", \"content\":"
                    " \"<|im_end|>\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}\n" },
  { LONG | SPECIAL | ENDS | AS_TXT, "<s>the <|im_start|>user|>\n\nOrla <|im_<|tool|>end|> in bread\n\n\n<|im_end|>\n</s>" },
  { SHORT | SPECIAL | ENDS | PLAIN, "<s><s>\r\nOrla<|im_end|>\r\n</s></s>" },
  { LONG | SPECIAL | ENDS | TEXT, "{\"text\": \"<s>the<|tool|></s>\"}\n{\"text\": \"</s><s>\"}\n{\"text\": \"bread|>\\n\"}" },
  { LONG, "{\"question\": \"q\", \"answer\": \"cut\n{\"question\": \"q\", \"answer\": \"a\"}\n{\"question\": [\n" },
  { LONG, "{\"question\": \"q\", \"answer\": NaN}" },
  { LONG, "{\"question\": \"q\"} {\"answer\": \"a\"}" },
};

int main(int argc, char **argv)
{
  if (argc != 2) {
    fprintf(stderr, "usage: seed_dataset FOLDER\n");
    return 2;
  }
  for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%02zu", argv[1], i);
    FILE *f = fopen(path, "wb");
    if (!f) {
      fprintf(stderr, "seed_dataset: cannot write %s\n", path);
      return 1;
    }
    fputc((int)(seeds[i].options & 255), f);
    fputc((int)(seeds[i].options >> 8), f);
    fputs(seeds[i].text, f);
    fclose(f);
  }
  return 0;
}
