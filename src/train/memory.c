/* Linux says all of it under /proc and /sys/fs/cgroup (proc(5), cgroups(7)); elsewhere the machine's physical memory is the limit. */
#include "train/memory.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

/* The head of a small text file, NUL-terminated; false when there is none. */
static bool read_head(const char *path, char *text, size_t size)
{
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  size_t used = 0;
  for (ssize_t n; used + 1 < size && (n = read(fd, text + used, size - 1 - used)) > 0;) used += (size_t)n;
  close(fd);
  text[used] = 0;
  return used > 0;
}

/* "KEY:   123 kB" at the start of a line, in bytes. */
static bool find_kilobytes(const char *text, const char *key, size_t *bytes)
{
  size_t n = strlen(key);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    if (strncmp(line, key, n) != 0 || line[n] != ':') continue;
    *bytes = (size_t)strtoull(line + n + 1, NULL, 10) * 1024;
    return true;
  }
  return false;
}

size_t gr_memory_anonymous(void)
{
  char text[4096];
  size_t bytes = 0;
  if (read_head("/proc/self/status", text, sizeof text)) find_kilobytes(text, "RssAnon", &bytes);
  return bytes;
}

void gr_memory_give_back(void)
{
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

static size_t lesser(size_t a, size_t b) { return a < b ? a : b; }

/* The least limit from group `own` (up to a newline) up to `root`. "max" means none. */
static size_t least_limit(const char *root, const char *own, const char *file)
{
  char text[64], path[4400];
  size_t least = SIZE_MAX, top = strlen(root);
  int n = snprintf(path, sizeof path - 64, "%s%.*s", root, (int)strcspn(own, "\n"), own);
  if (n < 0 || (size_t)n >= sizeof path - 64) return least;
  for (size_t at = (size_t)n; at >= top;) {
    snprintf(path + at, sizeof path - at, "/%s", file);
    if (read_head(path, text, sizeof text) && text[0] >= '0' && text[0] <= '9') {
      unsigned long long max = strtoull(text, NULL, 10);
      if (max < least) least = (size_t)max;
    }
    while (at > 0 && path[--at] != '/') continue;
  }
  return least;
}

static size_t group_limit(void)
{
  char text[4096];
  if (!read_head("/proc/self/cgroup", text, sizeof text)) return SIZE_MAX;
  const char *second = strstr(text, "0::/"), *first = strstr(text, ":memory:/"); /* versions 2 and 1 */
  size_t a = second ? least_limit("/sys/fs/cgroup", second + 3, "memory.max") : SIZE_MAX;
  size_t b = first ? least_limit("/sys/fs/cgroup/memory", first + 8, "memory.limit_in_bytes") : SIZE_MAX;
  return lesser(a, b);
}

static size_t machine_limit(void)
{
  char text[4096];
  size_t available = 0;
  if (read_head("/proc/meminfo", text, sizeof text) && find_kilobytes(text, "MemAvailable", &available))
    return available + gr_memory_anonymous();
  long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
  return pages > 0 && size > 0 ? (size_t)pages * (size_t)size : SIZE_MAX;
}

/* ulimit -v counts all addresses, mapped files too: what is left of them is what may still be taken. */
static size_t address_limit(void)
{
  struct rlimit r;
  char text[4096];
  size_t mapped = 0;
  if (getrlimit(RLIMIT_AS, &r) != 0 || r.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  if (read_head("/proc/self/status", text, sizeof text)) find_kilobytes(text, "VmSize", &mapped);
  return (r.rlim_cur > mapped ? (size_t)r.rlim_cur - mapped : 0) + gr_memory_anonymous();
}

size_t gr_memory_limit(void) { return lesser(lesser(machine_limit(), group_limit()), address_limit()); }

gr_status gr_memory_parse(const char *text, size_t *bytes, gr_error *e)
{
  static const char units[] = "KMGT";
  char *end;
  double v = strtod(text, &end);
  bool number = end != text && v > 0 && (*end || v >= 1 << 20); /* who writes 6 means 6G */
  while (*end == ' ') end++;
  const char *unit = *end ? strchr(units, *end & ~0x20) : NULL;
  if (unit) end++;
  if (!number || (*end && strcmp(end, "B") != 0 && !(unit && (strcmp(end, "iB") == 0 || strcmp(end, "b") == 0))))
    return gr_fail(e, GR_ERR_USAGE, "a size is a number with K, M, G or T, as in 900M or 6G, not '%s'", text);
  for (const char *u = units; unit && u <= unit; u++) v *= 1024;
  *bytes = v < 0x1p62 ? (size_t)v : (size_t)1 << 62;
  return GR_OK;
}
