/* Jansson when memory runs out. Its lexer ignores a failed allocation and reads on: a record could come out with bytes lost. Between
 * begin and end its allocations on this thread go on failing once one has failed, so that nothing is made of a part; end says
 * whether that happened, and the caller then drops everything and reports that memory ran out. */
#ifndef GR_TEXT_JSON_GUARD_H
#define GR_TEXT_JSON_GUARD_H
#include <stdbool.h>

void gr_json_guard_begin(void);
/* True when an allocation failed since begin: nothing that was made meanwhile may be used. */
bool gr_json_guard_end(void);

#endif
