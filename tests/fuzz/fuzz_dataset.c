/* libFuzzer target for data sets. An input is two bytes of options and a file: JSONL, JSON or plain text. It is read with a small
 * vocabulary and one of two chat templates; what must hold of any samples and of their packing is checked. Then it is read once more
 * with allocations failing, as the input chooses: that gives the same samples or says that memory ran out, and nothing else.
 *
 *   cmake -B b -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DGR_FUZZ=ON -DGR_SANITIZE=address,undefined
 *   b/tests/fuzz/seed_dataset SEEDS && b/tests/fuzz/fuzz_dataset -dict=tests/fuzz/dataset.dict -max_len=4096 -timeout=10 CORPUS SEEDS */
#include "failing_alloc.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "text/dataset.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char chatml[] = "{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                             "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
static const char everything[] =
    "<s>{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
    "{%- for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n{% generation %}"
    "{%- if m.reasoning_content and loop.last %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content | trim }}"
    "{%- for c in m.tool_calls or [] %}<call>{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}<|im_end|>{% "
    "endgeneration %}\n"
    "{%- elif m.role in ['user', 'system', 'tool'] %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{%- else %}{{ raise_exception('no role ' + m.role) }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

static const char *const names[] = { "input", "input.txt", "input.jsonl" };
enum { NAMES = sizeof names / sizeof *names };

static char folder[] = "/tmp/graft-fuzz-XXXXXX";

static struct {
  gr_tokenizer *tokenizer;
  gr_template *templates[2];
  char paths[NAMES][128];
  long live; /* allocations of these */
} kept;

/* ---- what every input shares ---- */

/* All bytes, some merges, and the control tokens that the templates write. */
static gr_tokenizer *make_tokenizer(void)
{
  enum { BYTES = 256, CONTROLS = 4, MERGES = 5 };
  static char alphabet[BYTES][8];
  static const char *const controls[CONTROLS] = { "<s>", "</s>", "<|im_start|>", "<|im_end|>" };
  static const char *const merged[MERGES] = { "th", "the", "in", "as", "\xc4\xa0the" };
  static const char *const merges[MERGES] = { "t h", "th e", "i n", "a s", "\xc4\xa0 the" };
  gr_text_view tokens[BYTES + CONTROLS + MERGES], pairs[MERGES];
  int32_t types[BYTES + CONTROLS + MERGES];
  size_t n = 0;
  for (uint32_t b = 0, other = 0x100; b < BYTES; b++) {
    size_t length = gr_utf8_encode((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : other++, alphabet[b]);
    tokens[n++] = (gr_text_view){ alphabet[b], length };
  }
  for (size_t i = 0; i < MERGES; i++) {
    tokens[n++] = (gr_text_view){ merged[i], strlen(merged[i]) };
    pairs[i] = (gr_text_view){ merges[i], strlen(merges[i]) };
  }
  for (size_t i = 0; i < n; i++) types[i] = GR_TOKEN_NORMAL;
  gr_tokenizer_spec spec;
  gr_tokenizer_spec_init(&spec);
  for (size_t i = 0; i < CONTROLS; i++) {
    types[n] = GR_TOKEN_CONTROL;
    tokens[n++] = (gr_text_view){ controls[i], strlen(controls[i]) };
  }
  spec.model = "gpt2";
  spec.pre = "qwen2";
  spec.tokens = tokens;
  spec.types = types;
  spec.token_count = n;
  spec.merges = pairs;
  spec.merge_count = MERGES;
  spec.role[GR_ROLE_BOS] = (int64_t)n - 4;
  spec.role[GR_ROLE_EOS] = (int64_t)n - 3;
  spec.role[GR_ROLE_EOT] = (int64_t)n - 1;
  gr_tokenizer *t;
  gr_error e = { 0 };
  if (gr_tokenizer_build(&t, &spec, &e) != GR_OK) abort();
  return t;
}

static void sweep(void)
{
  for (size_t i = 0; i < NAMES; i++) unlink(kept.paths[i]);
  rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
  (void)argc, (void)argv;
  gr_error e = { 0 };
  if (!mkdtemp(folder) || atexit(sweep)) abort();
  for (size_t i = 0; i < NAMES; i++) snprintf(kept.paths[i], sizeof kept.paths[i], "%s/%s", folder, names[i]);
  kept.tokenizer = make_tokenizer();
  if (gr_template_parse(&kept.templates[0], chatml, sizeof chatml - 1, "chatml", &e) != GR_OK) abort();
  if (gr_template_parse(&kept.templates[1], everything, sizeof everything - 1, "everything", &e) != GR_OK) abort();
  kept.live = allocations.live;
  return 0;
}

static void write_file(const char *path, const uint8_t *bytes, size_t n)
{
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) abort();
  for (size_t at = 0; at < n;) {
    ssize_t k = write(fd, bytes + at, n - at);
    if (k <= 0) abort();
    at += (size_t)k;
  }
  close(fd);
}

/* ---- what must hold ---- */

static size_t check_sample(const gr_dataset *d, const gr_sample *x, int32_t window, uint32_t lines)
{
  size_t trained = 0, vocab = gr_tokenizer_vocab_size(kept.tokenizer);
  if (x->n < 2 || x->n > window || x->weights[0] != 0 || x->file != 0 || x->line < 1 || x->line > lines) abort();
  if (x->record >= gr_dataset_counts(d)->records) abort();
  for (int32_t i = 0; i < x->n; i++) {
    if (x->ids[i] < 0 || (size_t)x->ids[i] >= vocab || !(x->weights[i] >= 0) || isinf(x->weights[i])) abort();
    trained += x->weights[i] > 0;
  }
  if (!trained) abort();
  return trained;
}

static void check_packing(const gr_dataset *d, int32_t window, bool pack)
{
  size_t n = gr_dataset_count(d), seen = 0;
  size_t *indices = calloc(n, sizeof *indices);
  bool *taken = calloc(n, sizeof *taken);
  gr_packing p;
  gr_error e = { 0 };
  if (!indices || !taken) abort();
  for (size_t i = 0; i < n; i++) indices[i] = n - 1 - i;
  if (gr_pack(&p, d, indices, n, window, pack, &e) != GR_OK) abort();
  for (size_t w = 0; w < p.n_windows; w++) {
    int32_t tokens = 0;
    if (p.windows[w].first != seen || p.windows[w].n == 0 || (!pack && p.windows[w].n != 1)) abort();
    for (size_t k = 0; k < p.windows[w].n; k++, seen++) {
      if (p.order[seen] >= n || taken[p.order[seen]]) abort();
      taken[p.order[seen]] = true;
      tokens += gr_dataset_at(d, p.order[seen])->n;
    }
    if (tokens != p.windows[w].tokens || tokens > window) abort();
  }
  if (seen != n || !(p.fill > 0 && p.fill <= 1)) abort();
  gr_packing_free(&p);
  free(indices);
  free(taken);
}

static void check(const gr_dataset *d, const gr_data_options *o, uint32_t lines)
{
  const gr_data_counts *c = gr_dataset_counts(d);
  gr_error e = { 0 };
  size_t tokens = 0, trained = 0, notes = 1, said = 1;
  for (size_t i = 0; i < gr_dataset_count(d); i++) {
    trained += check_sample(d, gr_dataset_at(d, i), o->window, lines);
    tokens += (size_t)gr_dataset_at(d, i)->n;
  }
  if (!gr_dataset_count(d) || c->samples != gr_dataset_count(d) || c->tokens != tokens || c->tokens_trained != trained) abort();
  if (c->ended > c->conversations || c->conversations > c->records || !gr_dataset_hash(d)) abort();
  for (int i = 0; i < GR_DATA_EVENTS; i++) said += c->events[i] > 0;
  for (const char *p = gr_dataset_notes(d); *p; p++) notes += *p == '\n';
  if (notes != said) abort(); /* one line for the file, one for each kind of event */
  if (gr_dataset_check(d, &e) != GR_OK && !e.text[0]) abort();
  check_packing(d, o->window, true);
  check_packing(d, o->window, false);
}

/* Reads the file; the hash of its samples, or 0 when it is refused. */
static gr_status attempt(const char *path, const gr_data_options *o, uint32_t lines, uint64_t *hash)
{
  gr_dataset *d = NULL;
  gr_error e = { 0 };
  size_t at = allocations.fail_at;
  gr_status s = gr_dataset_add(&d, path, o, &e);
  allocations.fail_at = 0; /* what is checked allocates too */
  if (s != GR_OK && (!e.text[0] || e.status != s || strchr(e.text, '\n'))) abort();
  if (s == GR_OK) check(d, o, lines);
  *hash = s == GR_OK ? gr_dataset_hash(d) : 0;
  gr_dataset_free(d);
  if (allocations.live != kept.live || (s == GR_ERR_MEMORY && !at)) abort();
  return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  if (size < 2) return -1;
  unsigned bits = data[0] | (unsigned)data[1] << 8;
  const char *path = kept.paths[(bits >> 4 & 3) % NAMES];
  static const int32_t windows[] = { 2, 16, 64, 1024 };
  gr_data_options o = { .tokenizer = kept.tokenizer,
                        .chat_template = kept.templates[bits >> 6 & 1],
                        .format = (bits & 15) < GR_DATA_FORMATS ? (gr_data_format)(bits & 15) : GR_DATA_AUTO,
                        .train_on_inputs = bits >> 7 & 1,
                        .parse_special = bits >> 12 & 1,
                        .window = windows[bits >> 8 & 3],
                        .overlong = (gr_overlong)((bits >> 10 & 3) % 3) };
  uint32_t lines = 1;
  uint64_t whole, again, choice = 14695981039346656037u; /* FNV-1a of the input */
  for (size_t i = 0; i < size; i++) choice = (choice ^ data[i]) * 1099511628211u;
  for (size_t i = 2; i < size; i++) lines += data[i] == '\n';
  write_file(path, data + 2, size - 2);
  allocations_fail(0, false);
  gr_status s = attempt(path, &o, lines, &whole);
  allocations_fail(1 + (size_t)(choice >> 1) % allocations.seen, choice & 1);
  gr_status t = attempt(path, &o, lines, &again);
  if (t != GR_ERR_MEMORY && (t != s || again != whole)) abort();
  return 0;
}
