/* Cases that attention and attention_back share: segments, padding, windows, softcap, groups, caches, tails of every tile. */
#include "ops/attention.h"

/* Two packed sequences and padding, as training sees them; and the second of them after a cache that holds both. */
static const double packed_pos[] = { 0, 1, 2, 0, 1, 2, 3, 4, 0 }, packed_seg[] = { 0, 0, 0, 1, 1, 1, 1, 1, -1 };
static const double late_pos[] = { 3, 4 }, late_seg[] = { 1, 1 };
static const double padding_pos[] = { 0, 0, 0 }, padding_seg[] = { -1, -1, -1 };
/* Queries before every key, and of a segment that no key has. */
static const double early_pos[] = { 0, 5, 5 }, early_seg[] = { 0, 3, 0 }, later_pos[] = { 2, 3, 4, 5 }, later_seg[] = { 0, 0, 0, 0 };

#define PACKED 9, 9, packed_pos, packed_seg, packed_pos, packed_seg

static const struct {
  const char *name;
  unsigned flags;
  gr_attention_case a;
} shared[] = {
  { "two sequences and padding", 0, { 8, 8, 4, 2, PACKED, .params = { 0.35f, 0, 0 }, .key_dim = GR_DIM_TOKENS } },
  { "values of another size", 0, { 8, 6, 3, 1, PACKED, .params = { 0.35f, 0, 0 }, .key_dim = GR_DIM_TOKENS } },
  { "window 2", 0, { 8, 8, 4, 4, PACKED, .params = { 0.35f, 0, 2 }, .key_dim = GR_DIM_TOKENS } },
  { "softcap", 0, { 8, 8, 2, 2, PACKED, .params = { 0.6f, 1.5f, 0 }, .key_dim = GR_DIM_TOKENS } },
  { "softcap and window", 0, { 8, 8, 2, 1, PACKED, .params = { 0.6f, 1.5f, 3 }, .key_dim = GR_DIM_TOKENS } },
  { "one token",
    0,
    { 64, 64, 3, 1, 1, 7, (const double[]){ 6 }, (const double[]){ 0 }, NULL, NULL, .params = { 0.125f, 0, 0 }, .key_dim = GR_DIM_KEYS } },
  { "over a cache",
    0,
    { 8, 8, 2, 2, 2, 9, late_pos, late_seg, packed_pos, packed_seg, .params = { 0.35f, 0, 0 }, .key_dim = GR_DIM_KEYS } },
  { "some queries see nothing", 0, { 8, 8, 2, 2, 3, 4, early_pos, early_seg, later_pos, later_seg, .params = { 0.35f, 0, 0 } } },
  { "padding alone",
    GR_CASE_ZERO | GR_CASE_NO_GRAD,
    { 8, 8, 2, 2, 3, 3, padding_pos, padding_seg, padding_pos, padding_seg, .params = { 0.35f, 0, 0 } } },
  { "heads of odd size", 0, { 5, 3, 2, 1, PACKED, .params = { 0.4f, 0, 0 }, .key_dim = GR_DIM_TOKENS } },
  { "rows apart", 0, { 8, 8, 4, 2, PACKED, .params = { 0.35f, 0, 0 }, .layout = GR_LAYOUT_ROWS } },
  { "offset", 0, { 8, 8, 4, 2, PACKED, .params = { 0.35f, 0, 0 }, .layout = GR_LAYOUT_OFFSET } },
  { "a bias towards one key",
    GR_CASE_NO_GRAD | GR_CASE_F32,
    { 16, 16, 2, 1, 67, 67, NULL, NULL, NULL, NULL, .params = { 1, 0, 0 }, .q = { .a = 30 }, .scores = 500, .key_dim = GR_DIM_TOKENS } },
  { "scores to 1e4",
    GR_CASE_NO_GRAD | GR_CASE_F32,
    { 64, 64, 2, 1, 35, 35, NULL, NULL, NULL, NULL, .params = { 1, 0, 0 }, .q = { .a = 600 }, .scores = 2e4 } },
  { "a bias towards one key, of bf16",
    GR_CASE_NO_GRAD,
    { 16, 16, 2, 1, 67, 67, NULL, NULL, NULL, NULL, .params = { 1, 0, 0 }, .q = { .a = 30, .bf16 = true }, .scores = 500,
      .key_dim = GR_DIM_TOKENS } },
  { "scores to 1e4, of bf16",
    GR_CASE_NO_GRAD,
    { 64, 64, 2, 1, 35, 35, NULL, NULL, NULL, NULL, .params = { 1, 0, 0 }, .q = { .a = 600, .bf16 = true }, .scores = 2e4 } },
  { "tails of every tile",
    GR_CASE_NO_GRAD,
    { 64, 64, 4, 2, 131, 131, NULL, NULL, NULL, NULL, .params = { 0.125f, 0, 0 }, .key_dim = GR_DIM_TOKENS } },
  { "a window over many tiles",
    GR_CASE_NO_GRAD,
    { 32, 32, 2, 1, 150, 150, NULL, NULL, NULL, NULL, .params = { 0.18f, 0, 40 }, .key_dim = GR_DIM_TOKENS } },
};

bool gr_attention_case_get(int i, gr_attention_case *a, const char **name, unsigned *flags)
{
  if (i >= (int)(sizeof shared / sizeof *shared)) return false;
  *a = shared[i].a;
  *name = shared[i].name;
  *flags = shared[i].flags;
  return true;
}

static gr_fill listed(const double *list, double *room, int64_t n, bool count)
{
  for (int64_t i = 0; !list && i < n; i++) room[i] = count ? (double)i : 0;
  return gr_fill_values(list ? list : room, (int)n);
}

void gr_attention_case_inputs(gr_case *c, const gr_attention_case *a, double room[2][GR_ATTENTION_CASE_MAX])
{
  uint8_t tokens = a->key_dim ? GR_DIM_TOKENS : GR_DIM_STATIC;
  int64_t most = a->n > a->m ? a->n : a->m;
  gr_fill pos = listed(NULL, room[0], most, true), seg = listed(NULL, room[1], most, false);
  c->in[GR_ATTN_Q] = (gr_case_in){ .ne = { a->head, a->heads, a->n }, .dim = { 0, 0, tokens }, .fill = a->q, .layout = a->layout };
  c->in[GR_ATTN_K] = (gr_case_in){ .ne = { a->head, a->kv_heads, a->m }, .dim = { 0, 0, a->key_dim }, .layout = a->layout };
  c->in[GR_ATTN_V] = (gr_case_in){ .ne = { a->width, a->kv_heads, a->m }, .dim = { 0, 0, a->key_dim }, .layout = a->layout };
  c->in[GR_ATTN_K].fill.bf16 = c->in[GR_ATTN_V].fill.bf16 = a->q.bf16;
  for (int i = GR_ATTN_POS_Q; i <= GR_ATTN_SEG_K; i++) {
    bool key = i >= GR_ATTN_POS_K, is_pos = i == GR_ATTN_POS_Q || i == GR_ATTN_POS_K;
    const double *list = i == GR_ATTN_POS_Q ? a->pos_q : i == GR_ATTN_SEG_Q ? a->seg_q : i == GR_ATTN_POS_K ? a->pos_k : a->seg_k;
    int64_t n = key ? a->m : a->n;
    c->in[i] = (gr_case_in){ .dtype = GR_I32,
                             .ne = { n },
                             .dim = { key ? a->key_dim : tokens },
                             .fill = list     ? gr_fill_values(list, (int)n)
                                     : is_pos ? pos
                                              : seg };
  }
}

gr_tolerance gr_attention_case_tolerance(const gr_attention_case *a, double size)
{
  double steep = size > 0 ? a->scores : 0, norm = 1e-5 + 2.5e-7 * steep;
  return (gr_tolerance){ .norm = norm,
                         .max = 10 * norm,
                         .seen = 2.2e-6 + 7e-8 * steep,
                         .defect = a->scores < 1000 ? 2e-4
                                   : size > 0       ? 70
                                                    : 1.5e-4,
                         .floor = size * (double)a->params.scale };
}

void gr_attention_case_perf(gr_case *c, const gr_attention_case *a)
{
  static const double zero[] = { 0 };
  double room[2][GR_ATTENTION_CASE_MAX];
  gr_attention_case one = *a;
  one.n = one.m = 1;
  gr_attention_case_inputs(c, &one, room);
  for (int i = GR_ATTN_Q; i <= GR_ATTN_SEG_K; i++) {
    bool key = i == GR_ATTN_K || i == GR_ATTN_V || i == GR_ATTN_POS_K || i == GR_ATTN_SEG_K;
    c->in[i].ne[i < GR_ATTN_POS_Q ? 2 : 0] = key ? a->m : a->n;
  }
  c->in[GR_ATTN_POS_K].fill = gr_fill_count();
  c->in[GR_ATTN_POS_Q].fill = a->n == a->m ? gr_fill_count() : gr_fill_below(1);
  c->in[GR_ATTN_SEG_Q].fill = c->in[GR_ATTN_SEG_K].fill = gr_fill_values(zero, 1);
  if (a->n != a->m) c->in[GR_ATTN_POS_Q].fill = gr_fill_uniform((double)a->m - 1, (double)a->m - 1);
}
