/* The name that was probably meant. */
#ifndef GR_BASE_NEAREST_H
#define GR_BASE_NEAREST_H
#include <stddef.h>

/* The nearest of n names to a mistyped one by edit distance, '_' and '-' being the same; NULL when none is near (more than a
 * third of the letters off). The first wins a tie. */
const char *gr_nearest(const char *word, const char *const *names, size_t n);

#endif
