/* The records of a JSON or JSONL file, one after another, each with the line it begins on. Nothing but the present record is held:
 * a list of a gigabyte is read as JSONL is. Nesting costs no stack. */
#ifndef GR_TEXT_DATASET_SOURCE_H
#define GR_TEXT_DATASET_SOURCE_H
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct gr_record_source {
  const char *path;                 /* for errors; borrowed, as are the bytes */
  const unsigned char *at, *end;    /* what is still to be read */
  uint32_t line;                    /* of `at`, from 1 */
  bool list, conversations, opened; /* inside one list of records; each value is a bare list of turns */
  size_t count;                     /* records given so far */
  /* of the record given last */
  uint32_t record_line;
  size_t surrogates, numbers; /* lone surrogates that became U+FFFD; numbers that fit no type and became text */
} gr_record_source;

void gr_record_source_init(gr_record_source *s, const char *path, const void *bytes, size_t n);

/* The next record (a new reference), or NULL at the end of the file. Errors are GR_ERR_FORMAT with file and line in the sentence.
 *
 * A file holds either one list, or values that each stand on a line of their own (blank lines are fine), or one value over as many
 * lines as it likes. A value that is a list of turns is given as {"messages": value}. */
gr_status gr_record_source_next(gr_record_source *s, json_t **record, gr_error *e);

#endif
