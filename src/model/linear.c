/* Products with weights, what adapters add to them, and the list of them. Plain ops only: fusing them is the graph's business. */
#include <stdio.h>

#include "base/alloc.h"
#include "model/arch.h"

static void collect_linear(gr_builder *b, const gr_tensor *w)
{
  if (!gr_grow((void **)&b->linears, &b->linears_cap, b->n_linears + 1, sizeof *b->linears)) {
    gr_graph_fail(b->graph, GR_ERR_MEMORY, "out of memory while reading the model");
    return;
  }
  b->linears[b->n_linears++] = (gr_linear){ .name = w->name, .in = w->ne[0], .out = w->ne[1], .experts = w->ne[2], .layer = b->layer };
}

/* ---- adapters ---- */

/* A and B of one pair as leaves, and s = scale * alpha / rank. */
struct low_rank {
  gr_tensor *a, *b;
  float scale;
  float dropout;
  int number; /* of the pair */
};

static gr_tensor *half(gr_builder *b, const char *name, const char *suffix, float *data, int64_t ne0, int64_t ne1, int64_t experts)
{
  char full[96];
  snprintf(full, sizeof full, "%s.%s", name, suffix);
  return gr_graph_leaf(b->graph, GR_LEAF_PARAM, GR_F32, (const int64_t[GR_DIMS]){ ne0, ne1, experts, 1 }, NULL, data, full);
}

static bool adapter_on(gr_builder *b, const gr_adapter_use *use, const char *name, struct low_rank *l)
{
  ptrdiff_t at = gr_lora_find(use->lora, name);
  if (at < 0) return false;
  const gr_lora_pair *p = gr_lora_pair_at(use->lora, (size_t)at);
  *l = (struct low_rank){ .a = half(b, name, "lora_a", p->a, p->in, p->rank, p->experts),
                          .b = half(b, name, "lora_b", p->b, p->rank, p->out, p->experts),
                          .scale = gr_lora_scale(use->lora, p, use->scale),
                          .dropout = use->train ? b->options->dropout : 0,
                          .number = (int)at };
  if (use->train && b->out->a && !b->out->a[at]) { /* the head's is the loss's own */
    b->out->a[at] = l->a;
    b->out->b[at] = l->b;
  }
  return true;
}

/* The mask counts channels over all slots of a token: x [C, slots, n] is taken as [C * slots, n]. */
static gr_tensor *dropped(gr_builder *b, gr_tensor *x, const struct low_rank *l)
{
  if (!x || !(l->dropout > 0)) return x;
  int64_t width = x->ne[0], slots = x->ne[2] > 1 || x->dim[2] != GR_DIM_STATIC ? x->ne[1] : 0;
  gr_graph *g = b->graph;
  if (slots) x = gr_reshape(g, x, width * slots, x->ne[2], 0, 0);
  x = gr_dropout(g, x, b->out->dropout_keys, b->out->dropout_run, l->dropout, l->number);
  return slots && x ? gr_reshape(g, x, width, slots, x->ne[1], 0) : x;
}

/* The scale goes on the low-rank side, where it costs r values a token instead of `out`. */
static gr_tensor *add_adapter(gr_builder *b, gr_tensor *y, gr_tensor *x, const struct low_rank *l)
{
  gr_graph *g = b->graph;
  return gr_add(g, y, gr_matmul(g, l->b, gr_scale(g, gr_matmul(g, l->a, dropped(b, x, l)), l->scale)));
}

static gr_tensor *add_expert_adapter(gr_builder *b, gr_tensor *y, gr_tensor *x, const struct low_rank *l, const gr_routing *r)
{
  gr_graph *g = b->graph;
  gr_tensor *low = gr_scale(g, gr_matmul_id(g, l->a, dropped(b, x, l), r->ids, r->perm, r->offsets), l->scale);
  return gr_add(g, y, gr_matmul_id(g, l->b, low, r->ids, r->perm, r->offsets));
}

/* ---- linears ---- */

gr_tensor *gr_block_linear(gr_builder *b, gr_tensor *x, const char *stem, int64_t out, enum gr_bias bias)
{
  if (!x) return NULL;
  gr_tensor *w = gr_block_weight(b, stem, ".weight", x->ne[0], out, false);
  if (!w) return NULL;
  collect_linear(b, w);
  gr_tensor *y = gr_tensor_name(gr_matmul(b->graph, w, x), "%s", w->name);
  struct low_rank l;
  for (size_t i = 0; i < b->options->n_adapters; i++)
    if (adapter_on(b, &b->options->adapters[i], w->name, &l)) y = add_adapter(b, y, x, &l);
  gr_tensor *shift = gr_block_values(b, stem, ".bias", out, 1, bias == GR_BIAS_OPTIONAL);
  return shift ? gr_add(b->graph, y, shift) : y;
}

gr_tensor *gr_block_expert_linear(gr_builder *b, gr_tensor *x, const char *stem, int64_t out, enum gr_bias bias, const gr_routing *r)
{
  if (!x) return NULL;
  int64_t experts = b->model->hp.experts;
  gr_tensor *w = gr_block_stack(b, stem, x->ne[0], out, experts);
  if (!w) return NULL;
  collect_linear(b, w);
  gr_tensor *y = gr_tensor_name(gr_matmul_id(b->graph, w, x, r->ids, r->perm, r->offsets), "%s", w->name);
  struct low_rank l;
  for (size_t i = 0; i < b->options->n_adapters; i++)
    if (adapter_on(b, &b->options->adapters[i], w->name, &l)) y = add_expert_adapter(b, y, x, &l, r);
  gr_tensor *shift = gr_block_values(b, stem, ".bias", out, experts, bias == GR_BIAS_OPTIONAL);
  return shift ? gr_add(b->graph, y, gr_get_rows(b->graph, shift, r->ids)) : y;
}
