/* A folder for one test's files, removed with what is in it. */
#ifndef GR_TESTS_SCRATCH_H
#define GR_TESTS_SCRATCH_H
#include <dirent.h>

#include "check.h"

typedef struct scratch {
  char folder[64];
  char path[8][192]; /* the last results of scratch_path */
  unsigned next;
} scratch;

static inline void scratch_open(scratch *s)
{
  *s = (scratch){ .folder = "/tmp/graft-test-XXXXXX" };
  assert_non_null(mkdtemp(s->folder));
}

static inline const char *scratch_path(scratch *s, const char *name)
{
  char *path = s->path[s->next++ % 8];
  size_t n = strlen(s->folder);
  memcpy(path, s->folder, n);
  snprintf(path + n, sizeof s->path[0] - n, "/%s", name);
  return path;
}

static inline size_t scratch_count(scratch *s)
{
  size_t n = 0;
  DIR *d = opendir(s->folder);
  assert_non_null(d);
  while (readdir(d)) n++;
  closedir(d);
  return n - 2;
}

static inline void scratch_close(scratch *s)
{
  DIR *d = opendir(s->folder);
  assert_non_null(d);
  for (struct dirent *entry; (entry = readdir(d));) {
    char path[400];
    snprintf(path, sizeof path, "%s/%s", s->folder, entry->d_name);
    unlink(path);
  }
  closedir(d);
  assert_int_equal(rmdir(s->folder), 0);
}

#endif
