/* What every unit test needs on top of cmocka. */
#ifndef GR_TESTS_CHECK_H
#define GR_TESTS_CHECK_H
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"

/* Fails the test with the error's own sentence. */
#define assert_ok(status, error)                                                                                                           \
  do {                                                                                                                                     \
    if ((status) != GR_OK) fail_msg("%s", (error)->text);                                                                                  \
  } while (0)

/* Path of a file of the shared data that stands beside the checkout; the test is skipped (and counted as such) without it. */
#define SHARED_DATA GR_SOURCE_DIR "/../shared/data/"
#define require_shared()                                                                                                                   \
  do {                                                                                                                                     \
    if (access(SHARED_DATA "SOURCES.md", R_OK) != 0) skip();                                                                               \
  } while (0)

#endif
