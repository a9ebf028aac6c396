#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/adapter.h"
#include "io/gguf_part.h"

static void put_half(gr_gguf_writer *w, const gr_adapter_out *p, const char *suffix, int64_t ne0, int64_t ne1, const float *data)
{
  /* One byte more than fits, so that too long a name is refused by the writer instead of cut here. */
  char name[GR_GGUF_NAME_MAX + 2];
  snprintf(name, sizeof name, "%s%s", p->base, suffix);
  const int64_t ne[3] = { ne0, ne1, p->experts };
  gr_gguf_add_data(w, name, GR_F32, p->experts > 1 ? 3 : 2, ne, data);
}

void gr_adapter_put(gr_gguf_writer *w, const gr_adapter_info *info)
{
  gr_gguf_put_string(w, "general.architecture", info->architecture);
  gr_gguf_put_string(w, "general.type", "adapter");
  if (info->name) gr_gguf_put_string(w, "general.name", info->name);
  gr_gguf_put_u32(w, "general.file_type", 0); /* all F32 */
  gr_gguf_put_string(w, "adapter.type", "lora");
  gr_gguf_put_f32(w, "adapter.lora.alpha", (float)info->alpha);
  if (info->base_hash) gr_gguf_put_string(w, "graft.base.hash", info->base_hash);
  if (info->base_sample) gr_gguf_put_string(w, "graft.base.sample", info->base_sample);
  for (size_t i = 0; i < info->pair_count; i++) {
    const gr_adapter_out *p = &info->pairs[i];
    bool transposed = strcmp(p->base, "token_embd.weight") == 0;
    put_half(w, p, ".lora_a", transposed ? p->rank : p->in, transposed ? p->out : p->rank, p->a);
    put_half(w, p, ".lora_b", p->rank, transposed ? p->in : p->out, p->b);
  }
}

static gr_status check_values(const char *path, const gr_adapter_out *p, gr_error *e)
{
  if (p->rank < 1 || p->in < 1 || p->out < 1 || p->experts < 1)
    return gr_fail(e, GR_ERR_USAGE, "cannot write %s: the adapter of '%s' has rank %lld, for %lld x %lld x %lld", path, p->base,
                   (long long)p->rank, (long long)p->in, (long long)p->out, (long long)p->experts);
  bool transposed = strcmp(p->base, "token_embd.weight") == 0;
  const float *halves[2] = { p->a, p->b };
  const int64_t wide[2] = { transposed ? p->out : p->in, transposed ? p->in : p->out };
  for (int h = 0; h < 2; h++) {
    size_t n = (size_t)p->rank;
    if (!gr_mul_size(n, (size_t)wide[h], &n) || !gr_mul_size(n, (size_t)p->experts, &n) || !halves[h])
      return gr_fail(e, GR_ERR_USAGE, "cannot write %s: the adapter of '%s' is too large or has no data", path, p->base);
    for (size_t i = 0; i < n; i++)
      if (!isfinite(halves[h][i]))
        return gr_fail(e, GR_ERR_NUMERIC, "cannot write %s: '%s.lora_%c' holds %s at element %zu", path, p->base, "ab"[h],
                       isnan(halves[h][i]) ? "NaN" : "infinity", i);
  }
  return GR_OK;
}

gr_status gr_adapter_save(const char *path, const gr_adapter_info *info, gr_error *e)
{
  if (!(info->alpha >= 0 && info->alpha <= (double)FLT_MAX))
    return gr_fail(e, GR_ERR_USAGE, "cannot write %s: alpha is %g", path, info->alpha);
  if (!info->pair_count) return gr_fail(e, GR_ERR_USAGE, "cannot write %s: the adapter has no tensors", path);
  for (size_t i = 0; i < info->pair_count; i++) GR_TRY(check_values(path, &info->pairs[i], e));
  gr_gguf_writer *w;
  GR_TRY(gr_gguf_writer_create(&w, e));
  gr_adapter_put(w, info);
  gr_status s = gr_gguf_writer_save(w, path, e);
  gr_gguf_writer_free(w);
  return s;
}
