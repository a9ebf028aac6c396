/* Names of linears as users give them. */
#ifndef GR_MODEL_TARGETS_H
#define GR_MODEL_TARGETS_H
#include <stddef.h>

#include "base/error.h"

/* "blk.3.attn_q.weight" -> "attn_q". */
void gr_lora_short_name(const char *name, char *out, size_t size);

/* GR_ERR_USAGE for a target re:EXPRESSION whose expression is none. */
gr_status gr_lora_check_expression(const char *target, gr_error *e);

#endif
