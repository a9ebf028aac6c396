/* Leaves of a model's tensors: asked for by name and shape, refused in words. */
#include <stdio.h>
#include <string.h>

#include "model/arch.h"

enum { STEM_BYTES = 64, NAME_BYTES = 128 };

static void full_name(const gr_builder *b, const char *stem, const char *suffix, char *name, size_t size)
{
  if (b->layer >= 0) snprintf(name, size, "blk.%d.%s%s", b->layer, stem, suffix);
  else snprintf(name, size, "%s%s", stem, suffix);
}

static const gr_gguf_tensor *find(const gr_builder *b, const char *stem, const char *suffix)
{
  char name[NAME_BYTES];
  full_name(b, stem, suffix, name, sizeof name);
  return gr_gguf_tensor_find(b->model->file, name);
}

bool gr_block_has(const gr_builder *b, const char *stem, const char *suffix) { return find(b, stem, suffix) != NULL; }

static gr_tensor *leaf(gr_builder *b, const gr_gguf_tensor *t, const int64_t ne[3])
{
  const gr_gguf *file = b->model->file;
  if (t->ne[0] != ne[0] || t->ne[1] != ne[1] || t->ne[2] != ne[2] || t->ne[3] != 1) {
    gr_graph_fail(b->graph, GR_ERR_FORMAT,
                  "%s: the tensor %s has the shape [%lld, %lld, %lld, %lld], and [%lld, %lld, %lld] is needed: convert the "
                  "model again",
                  gr_gguf_path(file), t->name, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2], (long long)t->ne[3],
                  (long long)ne[0], (long long)ne[1], (long long)ne[2]);
    return NULL;
  }
  if (gr_dtype_get(t->dtype)->kind == GR_KIND_INT || t->dtype == GR_F64) {
    gr_graph_fail(b->graph, GR_ERR_UNSUPPORTED, "%s: the tensor %s is stored as %s, which weights are not", gr_gguf_path(file), t->name,
                  gr_dtype_name(t->dtype));
    return NULL;
  }
  size_t index = 0;
  while (gr_gguf_tensor_at(file, index) != t) index++;
  if (!b->weights[index])
    b->weights[index] = gr_graph_leaf(b->graph, GR_LEAF_WEIGHT, t->dtype, t->ne, NULL, (void *)(uintptr_t)t->data, t->name);
  return b->weights[index];
}

/* Mixtral files of before the stacks have blk.N.ffn_gate.E.weight for blk.N.ffn_gate_exps.weight. */
static const gr_gguf_tensor *single_expert(const gr_builder *b, const char *stem)
{
  char single[STEM_BYTES];
  const char *tail = strstr(stem, "_exps");
  if (!tail) return NULL;
  snprintf(single, sizeof single, "%.*s.0", (int)(tail - stem), stem);
  return find(b, single, ".weight");
}

static gr_tensor *missing(gr_builder *b, const char *stem, const char *suffix)
{
  char name[NAME_BYTES];
  const char *path = gr_gguf_path(b->model->file);
  const gr_gguf_tensor *single = single_expert(b, stem);
  full_name(b, stem, suffix, name, sizeof name);
  if (single)
    gr_graph_fail(
        b->graph, GR_ERR_UNSUPPORTED,
        "%s: each expert is a tensor of its own (%s), a layout of early 2024 that is no longer read: convert the model again, so that "
        "they stand in one, %s",
        path, single->name, name);
  else gr_graph_fail(b->graph, GR_ERR_FORMAT, "%s: the tensor %s is missing: download or convert the model again", path, name);
  return NULL;
}

bool gr_block_fused(gr_builder *b, const char *fused, const char *split)
{
  if (gr_block_has(b, fused, ".weight")) return true;
  if (gr_block_has(b, split, ".weight") || single_expert(b, split)) return false;
  char a[NAME_BYTES], c[NAME_BYTES];
  full_name(b, fused, ".weight", a, sizeof a);
  full_name(b, split, ".weight", c, sizeof c);
  gr_graph_fail(b->graph, GR_ERR_FORMAT,
                "%s: the tensor %s is missing, and so is %s, which could stand for it: download or convert the "
                "model again",
                gr_gguf_path(b->model->file), c, a);
  return false;
}

gr_tensor *gr_block_weight(gr_builder *b, const char *stem, const char *suffix, int64_t ne0, int64_t ne1, bool optional)
{
  const gr_gguf_tensor *t = find(b, stem, suffix);
  if (t) return leaf(b, t, (const int64_t[]){ ne0, ne1, 1 });
  return optional ? NULL : missing(b, stem, suffix);
}

gr_tensor *gr_block_stack(gr_builder *b, const char *stem, int64_t ne0, int64_t ne1, int64_t experts)
{
  const gr_gguf_tensor *t = find(b, stem, ".weight");
  return t ? leaf(b, t, (const int64_t[]){ ne0, ne1, experts }) : missing(b, stem, ".weight");
}

gr_tensor *gr_block_values(gr_builder *b, const char *stem, const char *suffix, int64_t ne0, int64_t ne1, bool optional)
{
  gr_tensor *w = gr_block_weight(b, stem, suffix, ne0, ne1, optional);
  if (w && w->dtype != GR_F32) {
    gr_graph_fail(b->graph, GR_ERR_UNSUPPORTED, "%s: %s is stored as %s; norms and biases must be F32", gr_gguf_path(b->model->file),
                  w->name, gr_dtype_name(w->dtype));
    return NULL;
  }
  return w;
}
