/* Which keys of a record were read, and which say something that nothing reads. */
#include <string.h>

#include "base/alloc.h"
#include "text/records.h"

json_t *gr_record_take(gr_conversation *c, const json_t *record, const char *key)
{
  if (c->n_read < sizeof c->read / sizeof *c->read) c->read[c->n_read++] = key;
  return json_object_get(record, key);
}

const char *gr_record_key_of(const json_t *record, const char *const *keys)
{
  for (size_t i = 0; keys[i]; i++)
    if (json_object_get(record, keys[i])) return keys[i];
  return keys[0];
}

/* Where a record is from and how it is filed: nobody expects that to be trained. */
static bool is_filing(const char *key)
{
  static const char *const keys[] = { "id",       "idx",        "index",    "uid",     "uuid",       "guid",     "hash",    "source",
                                      "sources",  "dataset",    "subset",   "split",   "tag",        "tags",     "topic",   "topics",
                                      "category", "categories", "language", "lang",    "url",        "date",     "license", "model",
                                      "metadata", "meta",       "version",  "created", "created_at", "timestamp" };
  size_t n = strlen(key);
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
    if (strcmp(keys[i], key) == 0) return true;
  return n > 3 && strcmp(key + n - 3, "_id") == 0;
}

bool gr_record_lost(const gr_conversation *c, const char *key, const json_t *value)
{
  bool empty = json_is_null(value) || (json_is_string(value) && !gr_json_says(value)) ||
               (json_is_array(value) && !json_array_size(value)) || (json_is_object(value) && !json_object_size(value));
  if (empty || is_filing(key)) return false;
  for (size_t i = 0; i < c->n_read; i++)
    if (strcmp(c->read[i], key) == 0) return false;
  return true;
}
