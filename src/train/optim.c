#include "train/optim.h"
#include "base/mutant.h"

#include <math.h>
#include <string.h>

enum {
  PIECE = 1 << 14,
  PIECES_MAX = 256,
  CHAINS = 16 /* of additions at once: one waits for itself */
};

/* ---- norm: pieces of fixed size, in groups so that the partial sums fit on the stack ---- */

struct norm_job {
  const float *x;
  size_t n;
  double sums[PIECES_MAX];
};

static void norm_piece(void *ctx, size_t job, int thread)
{
  (void)thread;
  struct norm_job *j = ctx;
  size_t from = job * PIECE, to = from + PIECE < j->n ? from + PIECE : j->n;
  double sum[CHAINS] = { 0 }, all = 0;
  for (; from + CHAINS <= to; from += CHAINS)
    for (int c = 0; c < CHAINS; c++) sum[c] += (double)j->x[from + (size_t)c] * (double)j->x[from + (size_t)c];
  for (int c = 0; from < to; from++, c++) sum[c] += (double)j->x[from] * (double)j->x[from];
  for (int c = 0; c < CHAINS; c++) all += sum[c];
  j->sums[job] = all;
}

double gr_norm(const float *x, size_t n, double scale, gr_pool *pool)
{
  double total = 0;
  for (size_t at = 0; at < n; at += (size_t)PIECE * PIECES_MAX) {
    struct norm_job j = { .x = x + at, .n = n - at < (size_t)PIECE * PIECES_MAX ? n - at : (size_t)PIECE * PIECES_MAX };
    size_t pieces = (j.n + PIECE - 1) / PIECE;
    gr_pool_run(pool, pieces, norm_piece, &j);
    for (size_t i = 0; i < pieces; i++) total += j.sums[i];
  }
  return sqrt(total) * fabs(scale);
}

/* ---- AdamW ---- */

struct adamw_job {
  const gr_adamw *o;
  float *p, *m, *v;
  const float *g;
  size_t n;
  double scale, decay, rate, root;
};

static void adamw_piece(void *ctx, size_t job, int thread)
{
  (void)thread;
  const struct adamw_job *j = ctx;
  const gr_adamw *o = j->o;
  size_t from = job * PIECE, to = from + PIECE < j->n ? from + PIECE : j->n;
  for (size_t i = from; i < to; i++) {
    double g = (double)j->g[i] * j->scale;
    double m = o->beta1 * (double)j->m[i] + (1 - o->beta1) * g;
    double v = o->beta2 * (double)j->v[i] + (1 - o->beta2) * g * g;
    double p = (double)j->p[i] * j->decay;
    j->m[i] = (float)m;
    j->v[i] = (float)v;
    j->p[i] = (float)(p - j->rate * m / (sqrt(v) * j->root + o->eps));
  }
}

void gr_adamw_update(const gr_adamw *o, float *p, const float *g, float *m, float *v, size_t n, double scale, double lr, uint64_t step,
                     gr_pool *pool)
{
  double t = (double)step;
  struct adamw_job j = { .o = o,
                         .p = p,
                         .m = m,
                         .v = v,
                         .g = g,
                         .n = n,
                         .scale = scale,
                         .decay = GR_MUTANT(adamw_no_decay) ? 1 : 1 - lr * o->weight_decay,
                         .rate = lr / (1 - pow(o->beta1, t)),
                         .root = GR_MUTANT(adamw_no_correction) ? 1 : 1 / sqrt(1 - pow(o->beta2, t)) };
  gr_pool_run(pool, (n + PIECE - 1) / PIECE, adamw_piece, &j);
}

/* ---- schedules ---- */

static const char *const schedule_names[] = {
  [GR_SCHEDULE_COSINE] = "cosine", [GR_SCHEDULE_LINEAR] = "linear", [GR_SCHEDULE_CONSTANT] = "constant"
};

const char *gr_schedule_name(gr_schedule s) { return schedule_names[s]; }

bool gr_schedule_from_name(const char *name, gr_schedule *s)
{
  for (int i = 0; i <= GR_SCHEDULE_CONSTANT; i++)
    if (strcmp(schedule_names[i], name) == 0) {
      *s = (gr_schedule)i;
      return true;
    }
  if (strcmp(name, "constant_with_warmup") != 0) return false; /* as ours is: the Transformers library has one without */
  *s = GR_SCHEDULE_CONSTANT;
  return true;
}

double gr_schedule_rate(gr_schedule s, double lr, double lr_min, uint64_t warmup, uint64_t total, uint64_t step)
{
  if (step < warmup) return lr * (double)(step + 1) / (double)warmup;
  if (s == GR_SCHEDULE_CONSTANT || total <= warmup) return lr;
  double progress = (double)(step - warmup) / (double)(total - warmup);
  if (progress > 1) progress = 1;
  double left = s == GR_SCHEDULE_LINEAR ? 1 - progress : 0.5 * (1 + cos(3.14159265358979323846 * progress));
  return lr_min + (lr - lr_min) * left;
}
