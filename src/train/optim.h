/* AdamW with decoupled weight decay (Loshchilov and Hutter, 2019), global-norm clipping, and learning-rate schedules. */
#ifndef GR_TRAIN_OPTIM_H
#define GR_TRAIN_OPTIM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/pool.h"

typedef struct gr_adamw {
  double beta1, beta2, eps, weight_decay;
} gr_adamw;

static inline gr_adamw gr_adamw_defaults(void) { return (gr_adamw){ .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8 }; }

/* Euclidean norm of x[n] times scale, summed in double in fixed pieces: the same bits for any number of threads. */
double gr_norm(const float *x, size_t n, double scale, gr_pool *pool);

/* One update of p[n] by gradient `scale` * g[n]; m and v [n] are the moments, step counts from 1. PyTorch's order:
 * p -= lr wd p; m, v; p -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps). Arithmetic in double, storage in F32. */
void gr_adamw_update(const gr_adamw *o, float *p, const float *g, float *m, float *v, size_t n, double scale, double lr, uint64_t step,
                     gr_pool *pool);

typedef enum gr_schedule { GR_SCHEDULE_COSINE, GR_SCHEDULE_LINEAR, GR_SCHEDULE_CONSTANT } gr_schedule;
const char *gr_schedule_name(gr_schedule s);
bool gr_schedule_from_name(const char *name, gr_schedule *s);

/* Rate of step 0..total-1: linear from lr/warmup up to lr over the first `warmup` steps, then cosine or linear down to
 * lr_min (reached after the last step), or constant. */
double gr_schedule_rate(gr_schedule s, double lr, double lr_min, uint64_t warmup, uint64_t total, uint64_t step);

#endif
