/* Internal to src/io: one GGUF file's bytes, parsed. gguf.c joins parts into a gr_gguf. */
#ifndef GR_IO_GGUF_PART_H
#define GR_IO_GGUF_PART_H
#include "base/arena.h"
#include "base/file.h"
#include "io/gguf.h"

typedef struct gr_gguf_part {
  gr_map map; /* empty when the bytes are the caller's */
  const uint8_t *bytes;
  size_t size;
  const char *path;
  uint32_t version, alignment;
  gr_gguf_kv *kv;
  size_t kv_count;
  gr_gguf_kv **kv_index; /* sorted by key */
  gr_gguf_tensor *tensors;
  size_t tensor_count;
} gr_gguf_part;

/* Parses part->bytes; names go to the arena, the tables are freed by gr_gguf_part_deinit (after failure too). Sentences
 * do not name the file: the caller adds it. */
gr_status gr_gguf_part_parse(gr_gguf_part *part, gr_arena *names, gr_error *e);
void gr_gguf_part_deinit(gr_gguf_part *part);

const gr_gguf_kv *gr_gguf_part_find(const gr_gguf_part *part, const char *key);

/* Elements and bytes of a block of a ggml type that may stand in a file; false for unassigned and activation-only numbers. */
bool gr_gguf_block_of(uint32_t ggml_type, int32_t *elems, int32_t *bytes);

size_t gr_gguf_scalar_bytes(uint32_t type); /* of a value type; 0 for strings, arrays and unknown numbers */

/* Bytes of a tensor from its type and dimensions (1 where it has none), or a refusal: no dimension is below 1, rows are whole
 * blocks, no product wraps. */
gr_status gr_gguf_tensor_bytes(const char *name, uint32_t ggml_type, const int64_t ne[4], size_t *out, gr_error *e);

/* A printable name: 1 to `limit` bytes of printable ASCII. */
bool gr_gguf_name_ok(const uint8_t *name, uint64_t len, uint64_t limit);

#define GR_GGUF_KEY_MAX 65535
#define GR_GGUF_NAME_MAX 63 /* ggml keeps names in 64 bytes with the terminator */

#endif
