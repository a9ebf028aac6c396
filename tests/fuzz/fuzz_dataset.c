/* libFuzzer target for data sets. An input is two bytes of options and a file: JSONL, JSON or plain text. It is read with a small
 * vocabulary and one of two chat templates; what must hold of any samples and of their packing is checked, and that special tokens are read
 * where the text spells them and parse_special says so, and nowhere else. Then it is read once more with allocations failing, as the input
 * chooses: that gives the same samples or says that memory ran out, and nothing else.
 *
 *   cmake -B b -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DGR_FUZZ=ON -DGR_SANITIZE=address,undefined
 *   b/tests/fuzz/seed_dataset SEEDS && b/tests/fuzz/fuzz_dataset -dict=tests/fuzz/dataset.dict -max_len=4096 -timeout=10 CORPUS SEEDS */
#include "failing_alloc.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "special_vocab.h"
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
  gr_tokenizer *tokenizers[2]; /* the second puts <s> and </s> */
  gr_template *templates[2];
  char paths[NAMES][128];
  long live; /* allocations of these */
} kept;

/* ---- what every input shares ---- */

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
  for (int i = 0; i < 2; i++)
    if (special_vocab(&kept.tokenizers[i], i, &e) != GR_OK) abort();
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
  size_t trained = 0, vocab = gr_tokenizer_vocab_size(kept.tokenizers[0]);
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

/* ---- special tokens ---- */

/* Plain text: the windows, each beginning with the last token of the one before, spell the file, special tokens standing where the rule
 * puts them. */
static void check_plain(const gr_dataset *d, const gr_data_options *o, const uint8_t *bytes, size_t n)
{
  char *text = malloc(n + 1);
  int32_t *found = malloc((n + 1) * sizeof *found);
  bool *covered = malloc(n + 1);
  const int32_t bos = special_first, eos = bos + 1;
  const bool add = gr_tokenizer_adds_bos(o->tokenizer);
  size_t length = 0, at = 0;
  if (!text || !found || !covered) abort();
  if (n >= 3 && !memcmp(bytes, "\xef\xbb\xbf", 3)) bytes += 3, n -= 3;
  for (size_t i = 0; i < n; i++)
    if (bytes[i] != '\r' || i + 1 == n || bytes[i + 1] != '\n') text[length++] = (char)bytes[i];
  special_places(text, length, o->parse_special, found, covered);
  bool starts = o->parse_special && length && found[0] == bos, stops = false;
  for (size_t i = 0; i < gr_dataset_count(d); i++) {
    const gr_sample *x = gr_dataset_at(d, i);
    for (int32_t k = i > 0; k < x->n; k++) {
      gr_buf back = { 0 };
      gr_error e = { 0 };
      bool first = i == 0 && k == 0, last = i + 1 == gr_dataset_count(d) && k + 1 == x->n;
      if (first && add && !starts && x->ids[k] == bos) continue;
      if (last && at == length && add && !stops && x->ids[k] == eos) break;
      if (at >= length || (x->ids[k] != found[at] && (x->ids[k] >= special_first || found[at] >= 0))) abort();
      stops = o->parse_special && x->ids[k] == eos;
      if (gr_tokenizer_decode(o->tokenizer, x->ids + k, 1, GR_DECODE_CONTROL, &back, &e) != GR_OK) abort();
      if (back.len > length - at || memcmp(back.data, text + at, back.len) != 0) abort();
      at += back.len;
      gr_buf_free(&back);
    }
  }
  if (at != length) abort();
  free(text);
  free(found);
  free(covered);
}

/* parse_special changes nothing but how bare text is read, and nothing of text that spells no control token. */
static void check_special(const char *path, const gr_data_options *o, const uint8_t *bytes, size_t n)
{
  uint64_t hash[2];
  size_t spelled[2];
  for (int parse = 0; parse < 2; parse++) {
    gr_dataset *d = NULL;
    gr_error e = { 0 };
    gr_data_options other = *o;
    other.parse_special = parse;
    bool read = gr_dataset_add(&d, path, &other, &e) == GR_OK;
    if (!read) gr_dataset_free(d);
    if (!read) return;
    const gr_data_counts *c = gr_dataset_counts(d);
    if (gr_dataset_format(d) == GR_DATA_PLAIN) check_plain(d, &other, bytes, n);
    if (c->events[parse ? GR_DATA_CONTROL_TEXT : GR_DATA_CONTROL_READ]) abort();
    spelled[parse] = c->events[parse ? GR_DATA_CONTROL_READ : GR_DATA_CONTROL_TEXT];
    hash[parse] = gr_dataset_hash(d);
    gr_dataset_free(d);
  }
  if (!spelled[0] && !spelled[1] && hash[0] != hash[1]) abort();
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
  gr_data_options o = { .tokenizer = kept.tokenizers[bits >> 13 & 1],
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
  if (s == GR_OK) check_special(path, &o, data + 2, size - 2);
  if (allocations.live != kept.live) abort();
  allocations_fail(0, false); /* of how many one may fail is counted afresh */
  if (attempt(path, &o, lines, &again) != s || again != whole) abort();
  allocations_fail(1 + (size_t)(choice >> 1) % allocations.seen, choice & 1);
  gr_status t = attempt(path, &o, lines, &again);
  if (t != GR_ERR_MEMORY && (t != s || again != whole)) abort();
  return 0;
}
