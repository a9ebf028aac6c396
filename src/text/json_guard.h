/* Jansson when memory runs out. Its lexer ignores a failed allocation and reads on: bytes are lost without a word, or an assertion of its
 * own ends the program. So all JSON is read by gr_json_parse, which leaves the parser at the first allocation that fails. What is built
 * otherwise (json_pack and its kin) reports failures as it should, but a record can be given up in many places: between begin and end
 * allocations on this thread go on failing once one has failed, so that nothing is made of a part; end says whether that happened, and
 * the caller then drops everything and reports that memory ran out. */
#ifndef GR_TEXT_JSON_GUARD_H
#define GR_TEXT_JSON_GUARD_H
#include <jansson.h>
#include <stdbool.h>

void gr_json_guard_begin(void);
/* True when an allocation failed since begin: nothing that was made meanwhile may be used. */
bool gr_json_guard_end(void);

/* json_loadb, or NULL with json_error_out_of_memory in *why (which may be NULL) and nothing leaked. */
json_t *gr_json_parse(const char *text, size_t n, size_t flags, json_error_t *why);

/* Whether what failed to parse may well be JSON. */
static inline bool gr_json_out_of_memory(const json_error_t *why) { return json_error_code(why) == json_error_out_of_memory; }

#endif
