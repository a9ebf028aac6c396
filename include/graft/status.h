/* Status codes and the error object shared by every Graft call that can fail.
 *
 * The library never exits, aborts on input or prints. A call that fails returns a status other than GR_OK and, when the
 * caller passed a gr_error, leaves one sentence in it: what, where, what to do. Passing NULL discards the sentence. */
#ifndef GRAFT_STATUS_H
#define GRAFT_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum gr_status {
  GR_OK = 0,
  GR_ERR_USAGE,       /* an option or argument is wrong: the command line exits 2 */
  GR_ERR_MEMORY,      /* an allocation failed, or a plan exceeds its limit */
  GR_ERR_IO,          /* the operating system refused a file operation */
  GR_ERR_FORMAT,      /* a file or text is malformed */
  GR_ERR_UNSUPPORTED, /* well-formed, but Graft does not handle it */
  GR_ERR_MISMATCH,    /* two things that must agree do not (shapes, adapter and base, checkpoint and run) */
  GR_ERR_NUMERIC,     /* NaN or infinity where a number was needed */
  GR_ERR_DEVICE,      /* a device reported a failure of a kernel or of its own */
  GR_ERR_CANCELLED    /* the caller asked to stop */
} gr_status;

/* Caller-owned; initialise with {0}. text is always NUL-terminated UTF-8. */
typedef struct gr_error {
  gr_status status;
  char text[1024];
} gr_error;

/* Stable lower-case name of a status, for logs and --json. */
#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const char *
gr_status_name(gr_status status);

#ifdef __cplusplus
}
#endif
#endif
