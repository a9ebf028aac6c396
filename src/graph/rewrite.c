/* Graph to schedule: drop what no output needs, recompute layers, fuse patterns. Each step maps a list of nodes to a list of
 * nodes and may redirect the inputs of later ones; none changes what an output's value is. */
#include <string.h>

#include "base/alloc.h"
#include "graph/plan.h"
#include "ops/experts.h"
#include "ops/fused.h"

/* ---- dropping ---- */

static void need_tensor(bool *needed, const gr_tensor *t)
{
  needed[t->id] = true;
  if (t->base) needed[t->base->id] = true;
}

static bool node_needed(const bool *needed, const gr_node *node)
{
  for (int k = 0; k < node->n_out; k++)
    if (needed[node->out[k]->id]) return true;
  return false;
}

/* A node that writes a leaf in place (the KV cache) is needed for its effect: its reader takes its output, a view. */
static gr_status drop_unneeded(gr_plan *p, gr_error *e)
{
  bool *needed = gr_calloc(p->graph->n_tensors, sizeof *needed);
  if (!needed) return gr_fail_memory(e, p->graph->n_tensors);
  for (size_t i = 0; i < p->n_outputs; i++) need_tensor(needed, p->outputs[i]);
  for (size_t i = p->n_schedule; i-- > 0;) {
    const gr_node *node = p->schedule[i];
    for (int k = 0; k < node->n_in && node_needed(needed, node); k++)
      if (node->in[k]) need_tensor(needed, node->in[k]);
  }
  size_t kept = 0;
  for (size_t i = 0; i < p->n_schedule; i++)
    if (node_needed(needed, p->schedule[i])) p->schedule[kept++] = p->schedule[i];
  p->n_schedule = kept;
  gr_free(needed);
  return GR_OK;
}

/* ---- recompute ---- */

/* clone[t]: the recomputed twin of a forward tensor of the layer at hand. A tensor that another layer's forward reads is alive
 * anyway (it is that layer's input), and so is one an op of kind KEEP made; those have no twin. */
struct recompute {
  gr_plan *plan;
  gr_tensor **clone;
  uint8_t *kept;
  size_t n;
  gr_node **out;
  size_t n_out, cap;
};

static bool layer_recomputed(const gr_plan *p, int32_t layer)
{
  return layer >= 0 && (size_t)layer < p->options.n_layers && p->options.recompute && p->options.recompute[layer];
}

static gr_status emit(struct recompute *r, gr_node *node, gr_error *e)
{
  if (!gr_grow((void **)&r->out, &r->cap, r->n_out + 1, sizeof(gr_node *))) return gr_fail_memory(e, r->cap * sizeof(gr_node *));
  r->out[r->n_out++] = node;
  return GR_OK;
}

static void mark_kept(struct recompute *r)
{
  const gr_plan *p = r->plan;
  for (size_t i = 0; i < p->n_schedule; i++) {
    const gr_node *node = p->schedule[i];
    if (node->phase != GR_PHASE_FORWARD) continue;
    for (int k = 0; k < node->n_in; k++) {
      const gr_tensor *t = node->in[k];
      if (!t || !t->node || t->node->layer == node->layer) continue;
      r->kept[t->id] = 1;
      r->kept[gr_tensor_root(t)->id] = 1;
    }
    if (gr_op_get(node->op)->flags & (GR_OP_KEEP | GR_OP_INPLACE))
      for (int k = 0; k < node->n_out; k++) r->kept[node->out[k]->id] = 1;
  }
  for (size_t i = 0; i < p->n_outputs; i++) r->kept[p->outputs[i]->id] = 1;
}

static gr_status twin(struct recompute *r, gr_tensor *t, gr_tensor **out, gr_error *e)
{
  *out = t;
  if (!t || !t->node || t->id >= r->n || t->node->phase != GR_PHASE_FORWARD || r->kept[t->id] || !layer_recomputed(r->plan, t->node->layer))
    return GR_OK;
  if (!r->clone[t->id]) {
    gr_node *node = t->node;
    gr_tensor *in[GR_IN_MAX] = { 0 };
    for (int k = 0; k < node->n_in; k++) GR_TRY(twin(r, node->in[k], &in[k], e));
    gr_graph *g = r->plan->graph;
    g->layer = node->layer;
    g->phase = GR_PHASE_RECOMPUTE;
    gr_tensor *first = gr_graph_node(g, node->op, in, node->n_in, node->params);
    if (!first) return gr_graph_status(g, e);
    for (int k = 0; k < node->n_out; k++) {
      r->clone[node->out[k]->id] = first->node->out[k];
      first->node->out[k]->name = node->out[k]->name;
    }
    first->node->name = node->name;
    GR_TRY(emit(r, first->node, e));
  }
  *out = r->clone[t->id];
  return GR_OK;
}

/* The recursion of twin() is as deep as the longest path through one layer: some tens of nodes. */
static gr_status recompute_layers(gr_plan *p, gr_error *e)
{
  if (!p->options.recompute) return GR_OK;
  struct recompute r = { .plan = p, .n = p->graph->n_tensors };
  r.clone = gr_calloc(r.n, sizeof(gr_tensor *));
  r.kept = gr_calloc(r.n, 1);
  gr_status s = r.clone && r.kept ? GR_OK : gr_fail_memory(e, r.n * sizeof(gr_tensor *));
  if (s == GR_OK) mark_kept(&r);
  for (size_t i = 0; i < p->n_schedule && s == GR_OK; i++) {
    gr_node *node = p->schedule[i];
    for (int k = 0; k < node->n_in && s == GR_OK && node->phase == GR_PHASE_BACKWARD; k++) s = twin(&r, node->in[k], &node->in[k], e);
    if (s == GR_OK) s = emit(&r, node, e);
  }
  gr_free(r.clone);
  gr_free(r.kept);
  if (s != GR_OK) {
    gr_free(r.out);
    return s;
  }
  gr_free(p->schedule);
  p->schedule = r.out;
  p->n_schedule = r.n_out;
  return GR_OK;
}

/* ---- fusion ---- */

/* outer(inner(a, b), c) becomes fused, where only `outer` reads inner's result. at: which input of outer the inner node is;
 * the fused inputs are picked by letter: a, b from the inner node, c the other input of the outer one. */
struct fusion {
  gr_op_id inner, outer, fused;
  int at;
  char inputs[4];
  bool same_shape; /* c must have the shape of the result (not be repeated) */
  bool inner_params;
};

static const struct fusion fusions[] = {
#define GR_FUSION(inner, outer, fused, at, inputs, same_shape, inner_params)                                                               \
  { GR_OP_##inner, GR_OP_##outer, GR_OP_##fused, at, inputs, same_shape, inner_params },
#include "graph/fusions.def"
#undef GR_FUSION
};

static gr_node *try_fusion(gr_plan *p, const struct fusion *f, gr_node *outer, const uint32_t *uses)
{
  if (outer->op != f->outer || !outer->in[f->at] || !outer->in[f->at]->node) return NULL;
  gr_node *inner = outer->in[f->at]->node;
  gr_tensor *c = outer->in[1 - f->at];
  if (inner->op != f->inner || uses[inner->out[0]->id] != 1 || inner->phase != outer->phase || inner->layer != outer->layer) return NULL;
  if (!gr_shape_equal(inner->out[0]->ne, outer->out[0]->ne)) return NULL;
  if (f->same_shape && !gr_tensor_same_shape(c, outer->out[0])) return NULL; /* a bias has the sizes of one token's row, not its shape */
  if (f->fused == GR_OP_matmul_add && inner->in[0]->ne[0] > GR_FUSED_DEPTH) return NULL;
  gr_tensor *in[3];
  for (int i = 0; f->inputs[i]; i++) in[i] = f->inputs[i] == 'c' ? c : inner->in[f->inputs[i] - 'a'];
  gr_graph *g = p->graph;
  g->layer = outer->layer;
  g->phase = outer->phase;
  gr_tensor *y = gr_graph_node(g, f->fused, in, (int)strlen(f->inputs), f->inner_params ? inner->params : NULL);
  if (!y) return NULL;
  /* The fused node takes over the outer one's tensor, so that readers need no change. */
  y->node->out[0] = outer->out[0];
  y->node->name = outer->name;
  outer->out[0]->node = y->node;
  return y->node;
}

static void count_uses(const gr_plan *p, uint32_t *uses)
{
  for (size_t i = 0; i < p->n_schedule; i++)
    for (int k = 0; k < p->schedule[i]->n_in; k++)
      if (p->schedule[i]->in[k]) uses[p->schedule[i]->in[k]->id]++;
  for (size_t i = 0; i < p->n_outputs; i++) uses[p->outputs[i]->id] += 2; /* must exist under its own name */
}

/* Whether a node of the schedule reads t. */
static bool is_read(const gr_plan *p, const gr_tensor *t)
{
  for (size_t i = 0; i < p->n_schedule; i++)
    for (int k = 0; k < p->schedule[i]->n_in; k++)
      if (p->schedule[i]->in[k] && gr_tensor_root(p->schedule[i]->in[k]) == t) return true;
  return false;
}

/* head_loss and head_loss_back of one head become one node that computes each logit once: where the gradient of nll is a leaf, nothing
 * else waits for nll or the log-sum-exp, and the head has no adapter (whose B needs gradients that are divided already). */
static gr_node *fuse_head(gr_plan *p, gr_node *back, const uint32_t *uses)
{
  enum { LSE = 3, DNLL, BIAS, A };
  if (back->op != GR_OP_head_loss_back || !back->in[LSE]->node || back->in[DNLL]->node || (back->n_in > A && back->in[A])) return NULL;
  gr_node *loss = back->in[LSE]->node;
  gr_tensor *nll = loss->out[0], *bias = back->n_in > BIAS ? back->in[BIAS] : NULL;
  if (loss->op != GR_OP_head_loss || uses[back->in[LSE]->id] != 1 || is_read(p, nll)) return NULL;
  gr_graph *g = p->graph;
  g->layer = back->layer;
  g->phase = back->phase;
  gr_tensor *in[] = { back->in[0], back->in[1], back->in[2], back->in[DNLL], bias };
  gr_tensor *y = gr_graph_node(g, GR_OP_head_loss_dh, in, 5, back->params);
  if (!y) return NULL;
  gr_node *both = y->node;
  loss->out[0] = y; /* which nobody reads: the node is dropped */
  nll->node = back->out[0]->node = both;
  both->out[0] = nll;
  both->out[1] = back->out[0];
  both->out[1]->output = 1;
  both->name = back->name;
  return both;
}

static bool made_by(const gr_tensor *t, gr_op_id op, const gr_node *reader)
{
  return t && t->node && t->node->op == op && t->node->phase == reader->phase && t->node->layer == reader->layer;
}

/* Whether nodes of the schedule before `end`, back to the one that made t, read t but for `reader`. */
static bool read_before(const gr_plan *p, const gr_tensor *t, size_t end, const gr_node *reader)
{
  for (size_t i = end; i-- > 0 && p->schedule[i] != t->node;)
    for (int k = 0; k < p->schedule[i]->n_in; k++)
      if (p->schedule[i] != reader && p->schedule[i]->in[k] && gr_tensor_root(p->schedule[i]->in[k]) == t) return true;
  return false;
}

/* Whether both go to the same experts. */
static bool same_routing(const gr_node *a, const gr_node *b)
{
  for (int k = GR_EXPERTS_IDS; k <= GR_EXPERTS_OFFSETS; k++)
    if (a->in[k] != b->in[k]) return false;
  return true;
}

/* Whether the backend that would run `node` has a kernel for `fused` too: not all have those of experts with their adapters. */
static bool runs_as(const gr_plan *p, const gr_node *node, const gr_node *fused)
{
  size_t one, other;
  const gr_kernel_row *row;
  return gr_plan_choose(p, node, &one, &row) && gr_plan_choose(p, fused, &other, &row) && one == other;
}

/* add(W x, B h), h = scale(A x), becomes matmul_lora, or matmul_id_lora, which gives h as well: the gradient of B reads it. */
static gr_node *fuse_lora(gr_plan *p, size_t at, const uint32_t *uses)
{
  gr_node *sum = p->schedule[at];
  const bool experts = made_by(sum->in[0], GR_OP_matmul_id, sum);
  const gr_op_id product = experts ? GR_OP_matmul_id : GR_OP_matmul;
  if (sum->op != GR_OP_add || !made_by(sum->in[0], product, sum) || !made_by(sum->in[1], product, sum)) return NULL;
  int up_at = made_by(sum->in[1]->node->in[1], GR_OP_scale, sum) ? 1 : 0;
  gr_node *up = sum->in[up_at]->node, *base = sum->in[1 - up_at]->node;
  gr_tensor *h = up->in[1], *x = base->in[1], *b = up->in[0];
  if (!made_by(h, GR_OP_scale, sum) || !made_by(h->node->in[0], product, sum) || h->base) return NULL;
  gr_node *down = h->node->in[0]->node;
  if (down->in[1] != x || down->in[0]->dtype != GR_F32 || b->dtype != GR_F32 || b->ne[0] > GR_FUSED_DEPTH) return NULL;
  if (uses[base->out[0]->id] != 1 || uses[up->out[0]->id] != 1 || uses[down->out[0]->id] != 1 || read_before(p, h, at, up)) return NULL;
  if (!gr_tensor_same_shape(base->out[0], sum->out[0]) || !gr_tensor_same_shape(up->out[0], sum->out[0])) return NULL;
  if (experts && (!same_routing(base, up) || !same_routing(base, down))) return NULL;
  gr_graph *g = p->graph;
  g->layer = sum->layer;
  g->phase = sum->phase;
  gr_tensor *in[] = { base->in[0], x, down->in[0], b, NULL, NULL, NULL };
  for (int k = GR_EXPERTS_IDS; k <= GR_EXPERTS_OFFSETS && experts; k++) in[k] = base->in[k];
  if (experts) in[GR_EXPERTS_OFFSETS + 1] = down->in[0], in[GR_EXPERTS_OFFSETS + 2] = b;
  gr_tensor *y = gr_graph_node(g, experts ? GR_OP_matmul_id_lora : GR_OP_matmul_lora, in, experts ? 7 : 4, h->node->params);
  if (!y || (experts && !runs_as(p, base, y->node))) return NULL;
  gr_node *fused = y->node;
  h->node->out[0] = fused->out[1]; /* which nobody reads: the node is dropped */
  fused->out[0] = sum->out[0];
  fused->out[1] = h;
  h->output = 1;
  h->node = sum->out[0]->node = fused;
  fused->name = sum->name;
  return fused;
}

/* dy, of which t is a transposed view; or NULL. */
static gr_tensor *transposed_of(const gr_tensor *t, const gr_node *reader)
{
  return made_by(t, GR_OP_transpose, reader) ? t->node->in[0] : NULL;
}

/* Where in the schedule before `end` a node stands, or end. */
static size_t place_of(const gr_plan *p, const gr_node *node, size_t end)
{
  size_t i = end;
  while (i-- > 0)
    if (p->schedule[i] == node) return i;
  return end;
}

/* What a gradient through a linear and its adapter is made of: W^T dy, and (sum +) A^T h with h = scale(B^T dy). */
typedef struct lora_back {
  gr_tensor *w, *dy, *a, *b, *sum, *h;
  gr_node *low;
} lora_back;

static bool find_lora_back(const gr_node *sum, const gr_tensor *base, const gr_tensor *up, const uint32_t *uses, lora_back *l)
{
  if (!made_by(base, GR_OP_out_prod, sum) || uses[base->id] != 1 || uses[up->id] != 1) return false;
  bool added = made_by(up, GR_OP_out_prod_add, sum);
  if (!added && !made_by(up, GR_OP_out_prod, sum)) return false;
  *l = (lora_back){ .w = base->node->in[0], .a = up->node->in[added], .sum = added ? up->node->in[0] : NULL };
  l->dy = transposed_of(base->node->in[1], sum);
  l->h = transposed_of(up->node->in[added + 1], sum);
  if (!l->dy || !l->h || !made_by(l->h, GR_OP_scale, sum) || l->h->base) return false;
  const gr_tensor *low = l->h->node->in[0];
  if (!made_by(low, GR_OP_out_prod, sum) || uses[low->id] != 1 || transposed_of(low->node->in[1], sum) != l->dy) return false;
  l->low = low->node;
  l->b = low->node->in[0];
  return !l->w->node && !l->a->node && l->a->dtype == GR_F32 && l->b->dtype == GR_F32 && l->b->ne[0] <= GR_FUSED_DEPTH;
}

/* The same of a stack of experts: W^T dy on top of A^T h, or of a sum of that with what was there. */
static bool find_experts_back(const gr_node *sum, const gr_tensor *base, const gr_tensor *up, const uint32_t *uses, lora_back *l)
{
  if (!made_by(base, GR_OP_matmul_id_back, sum) || uses[base->id] != 1 || uses[up->id] != 1) return false;
  gr_tensor *first = NULL;
  if (made_by(up, GR_OP_add, sum)) {
    const gr_node *added = up->node;
    int at = made_by(added->in[1], GR_OP_matmul_id_back, sum) ? 1 : 0;
    if (!gr_tensor_same_shape(added->in[0], up) || !gr_tensor_same_shape(added->in[1], up)) return false;
    up = added->in[at], first = added->in[1 - at];
  }
  if (!made_by(up, GR_OP_matmul_id_back, sum) || uses[up->id] != 1) return false;
  const gr_node *wide = base->node, *high = up->node;
  *l = (lora_back){ .w = wide->in[0], .dy = wide->in[1], .a = high->in[0], .sum = first, .h = high->in[1] };
  if (!made_by(l->h, GR_OP_scale, sum) || l->h->base) return false;
  const gr_tensor *low = l->h->node->in[0];
  if (!made_by(low, GR_OP_matmul_id_back, sum) || uses[low->id] != 1 || low->node->in[1] != l->dy || low->ne[1] != l->dy->ne[1])
    return false;
  l->low = low->node;
  l->b = low->node->in[0];
  if (!same_routing(wide, high) || !same_routing(wide, l->low) || base->ne[1] != up->ne[1]) return false;
  return !l->w->node && !l->a->node && l->a->dtype == GR_F32 && l->b->dtype == GR_F32 && l->b->ne[0] <= GR_FUSED_DEPTH;
}

/* The sum of both becomes matmul_lora_back or matmul_id_lora_back, in the place of B^T dy: h is read before the sum is made, by the
 * gradient of A. */
static bool fuse_lora_back(gr_plan *p, size_t at, const uint32_t *uses)
{
  gr_node *sum = p->schedule[at];
  lora_back l;
  if (sum->op != GR_OP_add || !gr_tensor_same_shape(sum->in[0], sum->in[1])) return false;
  bool experts = find_experts_back(sum, sum->in[1], sum->in[0], uses, &l) || find_experts_back(sum, sum->in[0], sum->in[1], uses, &l);
  if (!experts && !find_lora_back(sum, sum->in[1], sum->in[0], uses, &l) && !find_lora_back(sum, sum->in[0], sum->in[1], uses, &l))
    return false;
  size_t to = place_of(p, l.low, at);
  if (to == at || (l.sum && (l.sum->base || (l.sum->node && place_of(p, l.sum->node, to) == to)))) return false;
  gr_graph *g = p->graph;
  g->layer = sum->layer;
  g->phase = sum->phase;
  gr_tensor *y;
  if (experts) {
    const struct gr_slots_lora_params lora = { sum->out[0]->ne[1], ((const struct gr_scale_params *)l.h->node->params)->s };
    y = gr_matmul_id_lora_back(g, l.w, l.dy, &l.low->in[GR_EXPERTS_IDS], l.a, l.b, l.sum, &lora);
    if (!y || !runs_as(p, l.low, y->node)) return false;
  } else {
    gr_tensor *in[] = { l.w, l.dy, l.a, l.b, l.sum };
    y = gr_graph_node(g, GR_OP_matmul_lora_back, in, l.sum ? 5 : 4, l.h->node->params);
    if (!y) return false;
  }
  gr_node *fused = y->node;
  gr_tensor *dx = sum->out[0];
  l.h->node->out[0] = fused->out[1]; /* which nobody reads: these nodes are dropped */
  sum->out[0] = y;
  fused->out[0] = dx;
  fused->out[1] = l.h;
  l.h->output = 1;
  l.h->node = dx->node = fused;
  fused->name = sum->name;
  p->schedule[to] = fused;
  return true;
}

/* add(g, rms_norm_back(x, mul(dy, w))) becomes norm_back_add. */
static gr_node *fuse_norm_back(gr_plan *p, gr_node *sum, const uint32_t *uses)
{
  if (sum->op != GR_OP_add) return NULL;
  for (int at = 0; at < 2; at++) {
    gr_tensor *back = sum->in[at], *other = sum->in[1 - at];
    if (!made_by(back, GR_OP_rms_norm_back, sum) || uses[back->id] != 1 || !gr_tensor_same_shape(other, sum->out[0])) continue;
    gr_tensor *x = back->node->in[0], *dz = back->node->in[1];
    if (!made_by(dz, GR_OP_mul, sum) || uses[dz->id] != 1 || !gr_tensor_same_shape(back, sum->out[0])) continue;
    gr_tensor *dy = dz->node->in[0], *w = dz->node->in[1];
    if (!gr_tensor_same_shape(dy, x) || w->ne[0] != x->ne[0] || w->ne[1] * w->ne[2] * w->ne[3] != 1) continue;
    gr_graph *g = p->graph;
    g->layer = sum->layer;
    g->phase = sum->phase;
    gr_tensor *y = gr_graph_node(g, GR_OP_norm_back_add, (gr_tensor *[]){ other, x, dy, w }, 4, back->node->params);
    if (!y) return NULL;
    y->node->out[0] = sum->out[0];
    y->node->name = sum->name;
    sum->out[0]->node = y->node;
    return y->node;
  }
  return NULL;
}

static gr_status fuse(gr_plan *p, gr_error *e)
{
  if (p->options.no_fusion) return GR_OK;
  size_t n = p->graph->n_tensors;
  uint32_t *uses = gr_calloc(n, sizeof *uses);
  if (!uses) return gr_fail_memory(e, n * sizeof *uses);
  count_uses(p, uses);
  for (size_t i = 0; i < p->n_schedule; i++) {
    if (p->schedule[i]->out[0]->id < n && fuse_lora_back(p, i, uses)) continue;
    gr_node *whole = p->schedule[i]->out[0]->id < n ? fuse_head(p, p->schedule[i], uses) : NULL;
    if (!whole && p->schedule[i]->out[0]->id < n) whole = fuse_lora(p, i, uses);
    if (!whole && p->schedule[i]->out[0]->id < n) whole = fuse_norm_back(p, p->schedule[i], uses);
    if (whole) {
      p->schedule[i] = whole;
      continue;
    }
    for (size_t f = 0; f < sizeof fusions / sizeof *fusions; f++) {
      gr_node *fused = p->schedule[i]->out[0]->id < n ? try_fusion(p, &fusions[f], p->schedule[i], uses) : NULL;
      if (!fused) continue;
      p->schedule[i] = fused;
      break;
    }
  }
  gr_free(uses);
  GR_TRY(gr_graph_status(p->graph, e));
  return drop_unneeded(p, e);
}

gr_status gr_plan_rewrite(gr_plan *p, gr_error *e)
{
  gr_graph *g = p->graph;
  p->n_schedule = g->n_nodes;
  p->schedule = gr_alloc(g->n_nodes * sizeof(gr_node *));
  if (!p->schedule) return gr_fail_memory(e, g->n_nodes * sizeof(gr_node *));
  memcpy(p->schedule, g->nodes, g->n_nodes * sizeof(gr_node *));
  GR_TRY(drop_unneeded(p, e));
  GR_TRY(recompute_layers(p, e));
  GR_TRY(drop_unneeded(p, e));
  return fuse(p, e);
}
