/* Making and propagating errors. See include/graft/status.h for the contract with callers. */
#ifndef GR_BASE_ERROR_H
#define GR_BASE_ERROR_H
#include <graft/status.h>
#include <stddef.h>

#if defined(__GNUC__)
#define GR_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define GR_PRINTF(fmt, args)
#endif

/* Writes the sentence into e (NULL: discarded) and returns status, so that callers can `return gr_fail(...)`.
 * Bytes that are not printable UTF-8 are escaped: error text often quotes hostile input. */
gr_status gr_fail(gr_error *e, gr_status status, const char *fmt, ...) GR_PRINTF(3, 4);

/* Puts "context: " in front of the sentence already in e; returns e's status (or GR_OK when there is none). */
gr_status gr_error_context(gr_error *e, const char *fmt, ...) GR_PRINTF(2, 3);

/* gr_fail(GR_ERR_MEMORY) with the size in the sentence. */
gr_status gr_fail_memory(gr_error *e, size_t bytes);

/* gr_fail(GR_ERR_IO) with "verb path: strerror(errno_value)". */
gr_status gr_fail_errno(gr_error *e, int errno_value, const char *verb, const char *path);

#define GR_TRY(call)                                                                                                                       \
  do {                                                                                                                                     \
    gr_status gr_try_status_ = (call);                                                                                                     \
    if (gr_try_status_ != GR_OK) return gr_try_status_;                                                                                    \
  } while (0)

#endif
