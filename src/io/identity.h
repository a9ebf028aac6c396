/* What a checkpoint and an adapter remember of their base. Both are 128 bits and not cryptographic: they tell models apart, not forgers.
 *
 *   hash     of every byte of the file, all parts of a split: exact, and as dear as reading the whole base
 *   sample   of every tensor's name, type and shape and of 4 KB of its data: what a program that starts can afford */
#ifndef GR_IO_IDENTITY_H
#define GR_IO_IDENTITY_H
#include "base/pool.h"
#include "io/gguf.h"

enum { GR_HASH_TEXT = 33 };

/* Writes 32 hexadecimal digits and a NUL. The same for any thread count. */
gr_status gr_base_hash(const gr_gguf *g, gr_pool *pool, char text[GR_HASH_TEXT], gr_error *e);

/* The same of a sample: 8 pieces of 512 bytes, spread evenly through each tensor, from its first byte to its last. It is the same for the
 * tensors in any order, split or whole, with any metadata. What trains, merges, prunes or requantizes a model changes almost every
 * block of each tensor that it touches, so it cannot miss all the pieces of one; a few weights changed by hand it may miss. */
void gr_base_sample(const gr_gguf *g, char text[GR_HASH_TEXT]);

/* Hash of any bytes: each half depends on every bit. */
void gr_hash_bytes(const void *bytes, size_t n, uint64_t out[2]);

#endif
