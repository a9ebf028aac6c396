/* What a checkpoint and an adapter remember of their base: a 128-bit hash of every byte of the file, all parts of a split. */
#ifndef GR_TRAIN_IDENTITY_H
#define GR_TRAIN_IDENTITY_H
#include "base/pool.h"
#include "io/gguf.h"

enum { GR_HASH_TEXT = 33 };

/* Writes 32 hexadecimal digits and a NUL. Not cryptographic: it tells models apart, not forgers. The same for any thread count. */
gr_status gr_base_hash(const gr_gguf *g, gr_pool *pool, char text[GR_HASH_TEXT], gr_error *e);

/* The same of any bytes: each half depends on every bit. */
void gr_hash_bytes(const void *bytes, size_t n, uint64_t out[2]);

#endif
