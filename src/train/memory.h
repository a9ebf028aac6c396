/* Memory of this process and this machine: what a plan is held against, and what a run is found to have taken. */
#ifndef GR_TRAIN_MEMORY_H
#define GR_TRAIN_MEMORY_H
#include <stddef.h>

#include "base/error.h"

/* Bytes of this process that are resident and that no file backs; 0 where the system does not say. Allocates nothing. */
size_t gr_memory_anonymous(void);

/* Returns freed memory that the allocator keeps to the system, where it can be asked to: it is not what a run will take on top. */
void gr_memory_give_back(void);

/* What this process may take in all before the machine (what is free or reclaimable now), its control group or its limit of
 * addresses (ulimit -v) runs out; SIZE_MAX where the system does not say. */
size_t gr_memory_limit(void);

/* "900M", "6G", "1.5 GiB", "123456": powers of 1024. */
gr_status gr_memory_parse(const char *text, size_t *bytes, gr_error *e);

#endif
