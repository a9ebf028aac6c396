/* The adapter's path and what stands beside it: names, the lock, leftovers.
 *
 * Beside DIR/NAME.gguf a run keeps DIR/NAME.yaml (the resolved config), NAME.metrics.jsonl, NAME.metrics.csv,
 * NAME.tensorboard/, and, until it is finished, NAME.step-N.checkpoint and NAME.lock. */
#ifndef GR_TRAIN_OUTPUT_H
#define GR_TRAIN_OUTPUT_H
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* A path beside the output: without its ".gguf", with `suffix`. Caller frees; NULL when out of memory. */
char *gr_output_beside(const char *output, const char *suffix);

/* The files that a run writes and leaves: the adapter for i = 0, then those beside it; false when there is no i-th. Caller frees
 * *path, which is NULL when out of memory. */
bool gr_output_file(const char *output, size_t i, char **path);

/* The folder of the output, and its name without ".gguf" (a view into `output`). *folder is freed by the caller. */
typedef struct gr_output_name {
  char *folder;
  const char *stem;
  size_t stem_n;
} gr_output_name;
gr_status gr_output_split(const char *output, gr_output_name *name, gr_error *e);

/* GR_ERR_USAGE when the output is a folder, a device or a pipe; GR_ERR_IO when there is no folder for it. */
gr_status gr_output_check(const char *output, gr_error *e);
/* Tried before hours of work: GR_ERR_IO unless a file can be made where the adapter will go. */
gr_status gr_output_probe(const char *output, gr_error *e);
/* Bytes that the output's file system can still take; SIZE_MAX when it does not say. */
size_t gr_output_room(const char *output);

/* Held until freed, or until the process ends, however it ends. GR_ERR_MISMATCH when another process trains into this output.
 * File systems without locks go without. */
typedef struct gr_output_lock gr_output_lock;
gr_status gr_output_lock_take(gr_output_lock **lock, const char *output, gr_error *e);
void gr_output_lock_free(gr_output_lock *lock); /* NULL is fine */

/* Removes what processes that no longer live were writing when they were killed. */
void gr_output_sweep(const char *output);

#endif
