/* Training data: records of many forms to token sequences with a weight for each token, and packing them into windows.
 *
 * A conversation is rendered and tokenized once, whole. A token is trained if its first byte lies in a trained span: assistant text
 * by origin plus its closing token ({% generation %} marks win where the template has them). Nothing is silent: every record that is
 * dropped, cut or has nothing to learn is counted, and the first of each kind is named with file and line. docs/data.md tells what
 * users see of it. */
#ifndef GR_TEXT_DATASET_H
#define GR_TEXT_DATASET_H
#include "text/chat.h"
#include "text/tokenizer.h"

typedef enum gr_data_format {
  GR_DATA_AUTO,     /* decided by the first record, and said */
  GR_DATA_MESSAGES, /* {"messages": [...], "tools": [...]} */
  GR_DATA_PROMPT,   /* {"prompt", "completion"} */
  GR_DATA_QA,       /* {"question", "answer"} */
  GR_DATA_ALPACA,   /* {"instruction", "input", "output"} */
  GR_DATA_SHAREGPT, /* {"conversations": [{"from", "value"}]} */
  GR_DATA_TEXT,     /* {"text"}: all of it is trained */
  GR_DATA_PLAIN,    /* not JSON: one long text, cut into windows */
  GR_DATA_FORMATS
} gr_data_format;
const char *gr_data_format_name(gr_data_format f);
bool gr_data_format_from_name(const char *name, gr_data_format *f);

typedef enum gr_overlong { GR_OVERLONG_TRUNCATE, GR_OVERLONG_DROP, GR_OVERLONG_SPLIT } gr_overlong;

typedef struct gr_data_options {
  const gr_tokenizer *tokenizer;
  const gr_template *chat_template;
  gr_data_format format;
  bool train_on_inputs;
  bool parse_special; /* control tokens that bare text spells are read as such; conversations never are */
  int32_t window;     /* longest sample in tokens */
  gr_overlong overlong;
  const json_t *variables; /* for the template, or NULL */
} gr_data_options;

/* One sequence. weights[i] is what predicting ids[i] (from what stands before it) counts; 0: not trained. weights[0] is 0. */
typedef struct gr_sample {
  int32_t *ids;
  float *weights;
  int32_t n;
  uint32_t record; /* number of its record in the data, from 0, over all files */
  uint32_t piece;  /* 0, or which piece of a split record */
  uint32_t file;   /* index of its file */
  uint32_t line;   /* from 1, where its record begins */
} gr_sample;

/* What may happen to records on the way to samples: each is counted, and the place of its first is kept. */
typedef enum gr_data_event {
  GR_DATA_REFUSED,         /* records that the template refuses, or whose trained spans cannot be located: left out */
  GR_DATA_UNTRAINED,       /* records in which nothing would be trained: left out */
  GR_DATA_TOO_LONG,        /* records longer than the window: left out, by policy or because what a cut leaves is not trained */
  GR_DATA_TRUNCATED,       /* records cut at the window */
  GR_DATA_SPLIT,           /* records split into pieces */
  GR_DATA_PIECES_LEFT,     /* pieces of split records in which nothing is trained: left out */
  GR_DATA_END_UNTRAINED,   /* records whose last turn's closing token is not trained */
  GR_DATA_DOUBLED_BOS,     /* samples that begin with two BOS tokens: fatal */
  GR_DATA_DUPLICATES,      /* samples equal to an earlier one */
  GR_DATA_THINKING_LOST,   /* assistant messages that lost their reasoning to the template */
  GR_DATA_EMPTY_TURNS,     /* assistant messages that say nothing: their closing token alone is trained */
  GR_DATA_TRAIN_IGNORED,   /* messages that ask to be trained and are no assistant's */
  GR_DATA_CALLS_AS_TEXT,   /* tool calls written as text, the template having no place for them */
  GR_DATA_CALLS_UNREAD,    /* ShareGPT calls that are not {"name", "arguments"}: trained as the text they are */
  GR_DATA_ANSWERS_AS_USER, /* tools' answers given as user messages, the template taking no others */
  GR_DATA_TOOLS_LEFT_OUT,  /* records whose tool definitions the template does not show */
  GR_DATA_CONTROL_TEXT,    /* records of text that spell control tokens, which stay text */
  GR_DATA_CONTROL_READ,    /* records of text that spell control tokens, read as such since parse_special says so */
  GR_DATA_UNREAD_KEYS,     /* records with keys that nothing reads, those that file records aside */
  GR_DATA_SYSTEM_TWICE,    /* records with a system text beside another one among the messages: left out */
  GR_DATA_LOST_BYTES,      /* records with bytes that the vocabulary cannot spell */
  GR_DATA_SURROGATES,      /* records with lone surrogates, read as U+FFFD */
  GR_DATA_BIG_NUMBERS,     /* records with numbers that fit no type, read as text */
  GR_DATA_CRLF,            /* files of plain text with CR LF line ends, read as LF */
  GR_DATA_EVENTS
} gr_data_event;
const char *gr_data_event_name(gr_data_event v); /* "truncated": for JSON */

typedef struct gr_data_counts {
  size_t records, samples;               /* read; kept */
  size_t tokens, tokens_trained;         /* of the kept ones; trained: weight not 0 */
  size_t tokens_cut, tokens_cut_trained; /* what truncation took from the records it cut */
  size_t conversations, ended;           /* records with an assistant's turn; those of them in which an end-of-turn token is trained */
  size_t events[GR_DATA_EVENTS];
} gr_data_counts;

typedef struct gr_dataset gr_dataset;

/* Reads a file (JSONL, JSON, or plain text) into a dataset; *d NULL makes a new one, which the caller frees, also on failure.
 * Broken JSON and malformed records are GR_ERR_FORMAT with file and line; a record that is well-formed but cannot be used is left
 * out and counted; a file of which nothing is left is GR_ERR_FORMAT with the reason. */
gr_status gr_dataset_add(gr_dataset **d, const char *path, const gr_data_options *o, gr_error *e);
/* The same of a sequence that is tokens already; weights as in gr_sample. Its "line" is its number, from 1. */
gr_status gr_dataset_add_ids(gr_dataset **d, const int32_t *ids, const float *weights, int32_t n, gr_error *e);
void gr_dataset_free(gr_dataset *d); /* NULL is fine */

/* Refuses data that teaches a fault: GR_ERR_MISMATCH when samples begin with two BOS tokens, or when no conversation has a trained
 * end-of-turn token (the model would not learn to stop). */
gr_status gr_dataset_check(const gr_dataset *d, gr_error *e);

/* --strict: GR_ERR_MISMATCH with the first of the notes that tells of something lost, left out, cut or doubtful. What is read otherwise
 * than it is written and loses nothing (split records, numbers as text, CR LF) is fine. */
gr_status gr_dataset_check_strict(const gr_dataset *d, gr_error *e);

size_t gr_dataset_count(const gr_dataset *d);
const gr_sample *gr_dataset_at(const gr_dataset *d, size_t i);
const gr_data_counts *gr_dataset_counts(const gr_dataset *d);
gr_data_format gr_dataset_format(const gr_dataset *d); /* of the first file, as detected or forced */
const char *gr_dataset_path(const gr_dataset *d, uint32_t file);
/* What was read and in which form, then every count that is not 0 with the place of its first; one sentence a line. */
const char *gr_dataset_notes(const gr_dataset *d);
size_t gr_dataset_bytes(const gr_dataset *d); /* memory it holds */
/* A number that changes when anything that training sees of the data changes: ids, weights, order. */
uint64_t gr_dataset_hash(const gr_dataset *d);

/* Some samples of a dataset. */
typedef struct gr_sample_list {
  const gr_dataset *data;
  const size_t *items;
  size_t n;
} gr_sample_list;

/* How many samples of b are, token for token, one of a (by a hash of 64 bits). */
gr_status gr_dataset_shared(const gr_sample_list *a, const gr_sample_list *b, size_t *shared, gr_error *e);

/* A window: samples side by side, no longer together than the budget. */
typedef struct gr_window {
  size_t first, n; /* samples order[first .. first+n) of the packing */
  int32_t tokens;
} gr_window;

typedef struct gr_packing {
  size_t *order; /* sample indices */
  gr_window *windows;
  size_t n_windows;
  double fill; /* tokens / (windows * budget) */
} gr_packing;

/* Packs the given samples, taken in the order given by `indices`, into windows of at most `budget` tokens. pack false: one sample a
 * window. Deterministic: a function of the lengths and the order alone. First fit over a bounded number of open windows, so that the
 * order in which samples are seen stays close to the one given. */
gr_status gr_pack(gr_packing *p, const gr_dataset *d, const size_t *indices, size_t n, int32_t budget, bool pack, gr_error *e);
void gr_packing_free(gr_packing *p);

#endif
