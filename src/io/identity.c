/* The hash of a piece runs in four lanes of multiply-and-rotate over 64-bit words, mixed at the end by splitmix64's finaliser
 * (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014); pieces of fixed size are hashed on all threads and
 * their hashes hashed in order. */
#include "io/identity.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"

enum {
  PIECE = 1 << 22, /* of a file, for a thread */
  SAMPLES = 8,     /* of a tensor */
  SAMPLE = 512
};

static uint64_t mix(uint64_t x)
{
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

void gr_hash_bytes(const void *bytes, size_t n, uint64_t out[2])
{
  const unsigned char *p = bytes;
  uint64_t lane[4] = { 0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu, 0x165667b19e3779f9u, 0x27d4eb2f165667c5u };
  size_t at = 0;
  for (; at + 32 <= n; at += 32)
    for (int i = 0; i < 4; i++) {
      uint64_t word;
      memcpy(&word, p + at + 8 * i, 8);
      lane[i] = rotate(lane[i] ^ word * 0x9fb21c651e98df25u, 29) * 0xd6e8feb86659fd93u;
    }
  unsigned char rest[32] = { 0 };
  if (n > at) memcpy(rest, p + at, n - at);
  for (int i = 0; i < 4; i++) {
    uint64_t word;
    memcpy(&word, rest + 8 * i, 8);
    lane[i] = mix(lane[i] ^ word ^ (uint64_t)n);
  }
  out[0] = mix(lane[0] + rotate(lane[1], 17) + lane[2] * 3 + rotate(lane[3], 43));
  out[1] = mix(lane[1] + rotate(lane[2], 31) + lane[3] * 5 + out[0]);
}

static void write_text(const uint64_t hash[2], char text[GR_HASH_TEXT])
{
  snprintf(text, GR_HASH_TEXT, "%016llx%016llx", (unsigned long long)hash[0], (unsigned long long)hash[1]);
}

struct hash_job {
  const unsigned char *data;
  size_t size;
  uint64_t (*hashes)[2];
};

static void hash_piece(void *ctx, size_t job, int thread)
{
  (void)thread;
  const struct hash_job *j = ctx;
  size_t from = job * PIECE, n = j->size - from < PIECE ? j->size - from : PIECE;
  gr_hash_bytes(j->data + from, n, j->hashes[job]);
}

static gr_status hash_file(const char *path, gr_pool *pool, uint64_t out[2], gr_error *e)
{
  gr_map map;
  GR_TRY(gr_map_open(&map, path, e));
  size_t pieces = (map.size + PIECE - 1) / PIECE;
  struct hash_job j = { .data = map.data, .size = map.size, .hashes = gr_calloc(pieces, sizeof *j.hashes) };
  gr_status s = j.hashes ? GR_OK : gr_fail_memory(e, pieces * sizeof *j.hashes);
  if (s == GR_OK) {
    gr_pool_run(pool, pieces, hash_piece, &j);
    gr_hash_bytes(j.hashes, pieces * sizeof *j.hashes, out);
  }
  gr_free(j.hashes);
  gr_map_close(&map);
  return s;
}

gr_status gr_base_hash(const gr_gguf *g, gr_pool *pool, char text[GR_HASH_TEXT], gr_error *e)
{
  uint64_t all[4] = { 0 };
  for (int i = 0; i < gr_gguf_part_count(g); i++) {
    GR_TRY(hash_file(gr_gguf_part_path(g, i), pool, all + 2, e));
    gr_hash_bytes(all, sizeof all, all);
  }
  write_text(all, text);
  return GR_OK;
}

static void sample_tensor(const gr_gguf_tensor *t, uint64_t out[2])
{
  const unsigned char *data = t->data;
  const int64_t shape[5] = { t->ggml_type, t->ne[0], t->ne[1], t->ne[2], t->ne[3] };
  uint64_t parts[SAMPLES + 2][2] = { { 0 } };
  gr_hash_bytes(t->name, strlen(t->name), parts[0]);
  gr_hash_bytes(shape, sizeof shape, parts[1]);
  if (t->bytes <= (size_t)SAMPLES * SAMPLE) gr_hash_bytes(data, t->bytes, parts[2]);
  else
    for (size_t i = 0; i < SAMPLES; i++) gr_hash_bytes(data + (t->bytes - SAMPLE) / (SAMPLES - 1) * i, SAMPLE, parts[2 + i]);
  gr_hash_bytes(parts, sizeof parts, out);
}

void gr_base_sample(const gr_gguf *g, char text[GR_HASH_TEXT])
{
  uint64_t all[3] = { gr_gguf_tensor_count(g) }; /* and sums over the tensors, which do not depend on their order */
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    uint64_t one[2];
    sample_tensor(gr_gguf_tensor_at(g, i), one);
    all[1] += one[0];
    all[2] += one[1];
  }
  uint64_t out[2];
  gr_hash_bytes(all, sizeof all, out);
  write_text(out, text);
}
