/* Options of other trainers that have no equivalent here: what to do instead. */
#ifndef GR_TRAIN_FOREIGN_H
#define GR_TRAIN_FOREIGN_H
#include <stdbool.h>
#include <stddef.h>

/* A clause for a name typed as "--load-in-4bit", "load_in_4bit" or the like, n bytes of it; NULL: nobody's option.
 * run: an option of a training run, and not of any other command. */
const char *gr_foreign_option(const char *typed, size_t n, bool run);

#endif
