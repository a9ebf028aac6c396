#include "train/heldout.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

gr_status gr_heldout_open(gr_heldout *h, const gr_dataset *d, const size_t *indices, size_t n, int32_t budget, gr_error *e)
{
  *h = (gr_heldout){ .data = d, .n = n, .budget = budget };
  h->losses = gr_calloc(n, sizeof *h->losses);
  h->nll = gr_calloc((size_t)budget, sizeof *h->nll);
  gr_status s = h->losses && h->nll ? GR_OK : gr_fail_memory(e, n * sizeof *h->losses);
  if (s == GR_OK) s = gr_pack(&h->packing, d, indices, n, budget, true, e);
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

size_t gr_heldout_bytes(const gr_heldout *h) { return 3 * h->n * sizeof(double) + (size_t)h->budget * sizeof(float); }

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

void gr_heldout_compare(const gr_heldout *h, double *mean, double *standard_error)
{
  double sum = 0, squares = 0, n = (double)h->n;
  *mean = *standard_error = 0;
  if (!h->baseline || !h->n) return;
  for (size_t i = 0; i < h->n; i++) sum += h->baseline[i] - h->losses[i];
  *mean = sum / n;
  for (size_t i = 0; i < h->n; i++) {
    double d = h->baseline[i] - h->losses[i] - *mean;
    squares += d * d;
  }
  if (h->n > 1) *standard_error = sqrt(squares / (n - 1) / n);
}
