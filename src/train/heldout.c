#include "train/heldout.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

gr_status gr_heldout_open(gr_heldout *h, const gr_dataset *d, const size_t *indices, size_t n, int32_t budget, gr_error *e)
{
  *h = (gr_heldout){ .data = d, .n = n };
  gr_status s = gr_pack(&h->packing, d, indices, n, budget, true, e);
  for (size_t i = 0; i < h->packing.n_windows; i++)
    if (h->packing.windows[i].tokens > h->longest) h->longest = h->packing.windows[i].tokens;
  h->losses = gr_calloc(n, sizeof *h->losses);
  h->nll = gr_calloc((size_t)h->longest, sizeof *h->nll);
  if (s == GR_OK && (!h->losses || !h->nll)) s = gr_fail_memory(e, n * sizeof *h->losses);
  if (s != GR_OK) gr_heldout_close(h);
  return s;
}

void gr_heldout_close(gr_heldout *h)
{
  gr_packing_free(&h->packing);
  gr_free(h->losses);
  gr_free(h->baseline);
  gr_free(h->nll);
  *h = (gr_heldout){ 0 };
}

size_t gr_heldout_bytes(const gr_heldout *h) { return 2 * h->n * sizeof(double) + (size_t)h->longest * sizeof(float); }

/* Mean weighted nll of each sample of a window. */
static void sample_losses(gr_heldout *h, const gr_window *w, double *loss, double *weight)
{
  const float *nll = h->nll;
  for (size_t i = w->first; i < w->first + w->n; i++) {
    const gr_sample *x = gr_dataset_at(h->data, h->packing.order[i]);
    double sum = 0, total = 0;
    for (int32_t t = 1; t < x->n; t++) {
      sum += (double)x->weights[t] * (double)nll[t];
      total += (double)x->weights[t];
      h->tokens += x->weights[t] > 0;
    }
    h->losses[i] = total > 0 ? sum / total : 0;
    *loss += sum;
    *weight += total;
    nll += x->n;
  }
}

gr_status gr_heldout_run(gr_heldout *h, gr_step *step, bool (*stop)(void *ctx), void *ctx, gr_error *e)
{
  double loss = 0, weight = 0;
  h->tokens = 0;
  for (size_t i = 0; i < h->packing.n_windows; i++) {
    const gr_window *w = &h->packing.windows[i];
    GR_TRY(gr_step_run(step, h->data, h->packing.order + w->first, w->n, 0, h->nll, stop, ctx, e));
    sample_losses(h, w, &loss, &weight);
  }
  h->loss = weight > 0 ? loss / weight : 0;
  if (h->baseline) return GR_OK;
  h->baseline = gr_calloc(h->n, sizeof *h->baseline);
  if (!h->baseline) return gr_fail_memory(e, h->n * sizeof *h->baseline);
  memcpy(h->baseline, h->losses, h->n * sizeof *h->baseline);
  return GR_OK;
}

/* Mean of losses - minus, and the standard error of that mean; minus may be NULL. */
static void moments(const double *losses, const double *minus, size_t count, double *mean, double *standard_error)
{
  double sum = 0, squares = 0, n = (double)count;
  *mean = *standard_error = 0;
  if (!count) return;
  for (size_t i = 0; i < count; i++) sum += losses[i] - (minus ? minus[i] : 0);
  *mean = sum / n;
  for (size_t i = 0; i < count; i++) {
    double d = losses[i] - (minus ? minus[i] : 0) - *mean;
    squares += d * d;
  }
  if (count > 1) *standard_error = sqrt(squares / (n - 1) / n);
}

void gr_heldout_compare(const gr_heldout *h, double *mean, double *standard_error)
{
  *mean = *standard_error = 0;
  if (h->baseline) moments(h->baseline, h->losses, h->n, mean, standard_error);
}

double gr_heldout_standard_error(const gr_heldout *h)
{
  double mean, error;
  moments(h->losses, NULL, h->n, &mean, &error);
  return error;
}
