/* TensorBoard event files: one record an event, in TFRecord framing.
 *
 * A record is its length (u64, little-endian), the masked CRC-32C of those 8 bytes, the bytes, and the masked CRC-32C of them
 * (tensorflow/core/lib/io/record_writer.h describes it); the bytes are an Event message of tensorflow/core/util/event.proto in
 * protocol-buffer encoding, of which we write: wall_time = 1 (double), step = 2, file_version = 3, summary = 5, session_log = 7. */
#ifndef GR_TRAIN_TENSORBOARD_H
#define GR_TRAIN_TENSORBOARD_H
#include <stdint.h>

#include "base/error.h"

typedef struct gr_tensorboard gr_tensorboard;

typedef struct gr_scalar {
  const char *tag; /* "train/loss" */
  double value;
} gr_scalar;

/* Makes `folder` if need be, and a new event file in it. first_step: readers forget what older files there say of this step and
 * later ones (a run that is resumed); 0: the older event files are removed. */
gr_status gr_tensorboard_open(gr_tensorboard **t, const char *folder, uint64_t first_step, gr_error *e);
gr_status gr_tensorboard_add(gr_tensorboard *t, uint64_t step, const gr_scalar *scalars, size_t n, gr_error *e);
void gr_tensorboard_close(gr_tensorboard *t); /* NULL is fine */

/* CRC-32C (Castagnoli: polynomial 0x1edc6f41, reflected) of n bytes. */
uint32_t gr_crc32c(const void *bytes, size_t n);

#endif
