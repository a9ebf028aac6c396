/* Records of many forms to one: a conversation (messages, tools), or bare text. */
#ifndef GR_TEXT_RECORDS_H
#define GR_TEXT_RECORDS_H
#include <jansson.h>

#include "text/dataset.h"

typedef struct gr_conversation {
  json_t *messages; /* array, owned; NULL for text */
  json_t *tools;    /* borrowed from the record; NULL when there are none */
  const char *text; /* borrowed; bare text, all of it trained */
  size_t text_len;
  double weight; /* of the record */
} gr_conversation;

/* The form of a record by its keys; GR_DATA_AUTO when none fits. */
gr_data_format gr_record_format(const json_t *record);

/* GR_ERR_FORMAT says what is wrong with the record, without file and line. */
gr_status gr_record_read(const json_t *record, gr_data_format format, gr_conversation *out, gr_error *e);
void gr_conversation_free(gr_conversation *c);

/* Weight of a message: its "weight" (default 1; 0 or more), 0 when "train" is false. */
gr_status gr_message_weight(const json_t *message, double *weight, gr_error *e);

#endif
