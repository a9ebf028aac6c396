/* Checks of a whole file that cost more than opening it, or that only some users want. */
#include <math.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "base/half.h"
#include "io/gguf.h"
#include "quant/quant.h"

gr_status gr_gguf_check_types(const gr_gguf *g, gr_error *e)
{
  enum { NAMED_MAX = 8 };
  gr_buf names = { 0 };
  size_t bad = 0;
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) {
    const gr_gguf_tensor *t = gr_gguf_tensor_at(g, i);
    if (t->has_dtype) continue;
    if (bad++ < NAMED_MAX) gr_buf_printf(&names, "%s%s (%s)", bad > 1 ? ", " : "", t->name, gr_ggml_type_name(t->ggml_type));
  }
  if (!bad) return GR_OK;
  if (bad > NAMED_MAX) gr_buf_printf(&names, " and %zu more", bad - NAMED_MAX);
  gr_status s = names.failed ? gr_fail_memory(e, names.len)
                             : gr_fail(e, GR_ERR_UNSUPPORTED, "%s: %zu tensor%s of a type that cannot be decoded: %s", gr_gguf_path(g), bad,
                                       bad == 1 ? " is" : "s are", names.data);
  gr_buf_free(&names);
  return s;
}

enum {
  PIECE = 4096,       /* elements decoded at a time: a multiple of every block */
  JOB_PIECES = 1 << 8 /* a job's share: about a million elements */
};

typedef struct scan {
  const uint8_t *data;
  gr_dtype dtype;
  gr_decode_fn *decode;
  int64_t count;
  _Atomic int64_t first; /* bad element, or count */
} scan;

/* Each job reports its own first bad element and the least of them is kept: the same for any number of threads. */
static void scan_job(void *ctx, size_t job, int thread)
{
  (void)thread;
  scan *s = ctx;
  float values[PIECE];
  int64_t end = (int64_t)(job + 1) * PIECE * JOB_PIECES;
  if (end > s->count) end = s->count;
  for (int64_t at = (int64_t)job * PIECE * JOB_PIECES; at < end; at += PIECE) {
    int64_t n = end - at < PIECE ? end - at : PIECE;
    s->decode(s->data + gr_row_bytes(s->dtype, at), values, n);
    bool bad = false;
    for (int64_t i = 0; i < n; i++) bad |= (gr_float_bits(values[i]) & 0x7f800000) == 0x7f800000;
    if (!bad) continue;
    int64_t i = 0;
    while (isfinite(values[i])) i++;
    int64_t seen = atomic_load(&s->first);
    while (at + i < seen && !atomic_compare_exchange_weak(&s->first, &seen, at + i)) {
    }
    return;
  }
}

gr_status gr_gguf_tensor_check_finite(const gr_gguf *g, const gr_gguf_tensor *t, gr_pool *pool, gr_error *e)
{
  gr_decode_fn *decode = t->has_dtype ? gr_quant_decoder(t->dtype) : NULL;
  if (!decode) return GR_OK;
  const int64_t *ne = t->ne, count = ne[0] * ne[1] * ne[2] * ne[3], share = (int64_t)PIECE * JOB_PIECES;
  scan s = { t->data, t->dtype, decode, count, count };
  gr_pool_run(pool, (size_t)((count + share - 1) / share), scan_job, &s);
  int64_t at = atomic_load(&s.first);
  if (at == count) return GR_OK;
  return gr_fail(e, GR_ERR_NUMERIC, "%s: tensor '%s' holds NaN or infinity, first at [%lld, %lld, %lld, %lld]",
                 gr_gguf_part_path(g, t->part), t->name, (long long)(at % ne[0]), (long long)(at / ne[0] % ne[1]),
                 (long long)(at / ne[0] / ne[1] % ne[2]), (long long)(at / ne[0] / ne[1] / ne[2]));
}

gr_status gr_gguf_check_finite(const gr_gguf *g, gr_pool *pool, gr_error *e)
{
  for (size_t i = 0; i < gr_gguf_tensor_count(g); i++) GR_TRY(gr_gguf_tensor_check_finite(g, gr_gguf_tensor_at(g, i), pool, e));
  return GR_OK;
}
