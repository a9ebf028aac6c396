/* What a run reports beside its adapter NAME.gguf: NAME.metrics.jsonl (the step and eval events, one a line), NAME.metrics.csv
 * (the same for spreadsheets) and, when asked for, NAME.tensorboard/. */
#ifndef GR_TRAIN_METRICS_H
#define GR_TRAIN_METRICS_H
#include "train/trainer.h"

typedef struct gr_metrics gr_metrics;

/* resumed: lines of steps up to `step` are kept, later ones (of a run that was killed) dropped. Otherwise begins anew. */
gr_status gr_metrics_open(gr_metrics **m, const char *output, bool tensorboard, bool resumed, uint64_t step, gr_error *e);
/* Step and eval events are written, others ignored. */
gr_status gr_metrics_add(gr_metrics *m, const gr_train_event *event, gr_error *e);
void gr_metrics_close(gr_metrics *m); /* NULL is fine */

#endif
