/* Inside the dataset: what its files share. */
#ifndef GR_TEXT_DATASET_IMPL_H
#define GR_TEXT_DATASET_IMPL_H
#include "base/buf.h"
#include "text/dataset.h"
#include "text/records.h"

typedef struct data_place {
  uint32_t file, line;
} data_place;

typedef struct data_file {
  char *path;
  gr_data_format format;
  bool forced;
  size_t records;
} data_file;

struct gr_dataset {
  gr_sample *samples;
  size_t n, cap;
  data_file *files;
  size_t n_files, files_cap;
  gr_data_counts counts;
  data_place first[GR_DATA_EVENTS];
  char refusal[600]; /* why the first refused record was refused */
  int32_t window;
  gr_buf unread; /* the first keys that nothing reads, as they are named in the note */
  size_t n_unread;
  gr_buf notes;
  size_t bytes;
  uint64_t hash;
  uint64_t *seen; /* open-addressed set of sample hashes, for duplicates */
  size_t seen_cap;
};

/* One file being read: what is the same for all its records, and room that is used again. */
typedef struct data_reader {
  gr_dataset *d;
  const gr_data_options *o;
  const char *path;
  gr_data_format format;
  uint32_t file, line; /* of the record at hand */
  size_t kept;         /* samples of this file */
  gr_render_options render;
  gr_tool_support support;
  char **ends; /* texts of the end-of-generation tokens */
  size_t n_ends, ends_cap;
  char *bos, *eos;
  char **controls; /* texts of the control tokens */
  size_t n_controls, controls_cap;
  bool control_start[256]; /* bytes that one of them begins with */
  gr_tokens tokens;
  float *weights;
  size_t weights_cap;
  gr_trusted_span *trusted;
  size_t trusted_cap;
} data_reader;

/* dataset_sample.c */
gr_status gr_data_reader_open(data_reader *r, gr_error *e);
void gr_data_reader_close(data_reader *r);
gr_status gr_data_read_record(data_reader *r, json_t *record, gr_error *e);
bool gr_data_spells_control(const data_reader *r, const char *text, size_t n);

/* dataset_plain.c */
gr_status gr_data_read_plain(data_reader *r, const char *text, size_t n, gr_error *e);

/* dataset.c */
void gr_data_count(data_reader *r, gr_data_event v, size_t n); /* n 0: nothing happened */
gr_status gr_data_add_sample(data_reader *r, const int32_t *ids, const float *weights, int32_t n, uint32_t piece, gr_error *e);

/* dataset_notes.c */
gr_status gr_data_write_notes(gr_dataset *d, gr_error *e);

#endif
