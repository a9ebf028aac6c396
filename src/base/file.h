/* Files: read-only maps, whole reads, and writes that are atomic (all of the new content, or the old file untouched). */
#ifndef GR_BASE_FILE_H
#define GR_BASE_FILE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct gr_map {
  const uint8_t *data; /* NULL when size is 0 */
  size_t size;
} gr_map;

/* Maps a regular file read-only and shared: its pages are the kernel's, never copied. Directories, devices, pipes: refused. */
gr_status gr_map_open(gr_map *m, const char *path, gr_error *e);
void gr_map_close(gr_map *m);

/* Reads all of a file into *data (NUL-terminated, gr_free it), refusing one larger than limit. Pipes and "-" (stdin) are fine. */
gr_status gr_file_read(const char *path, size_t limit, char **data, size_t *size, gr_error *e);

bool gr_file_exists(const char *path);
bool gr_file_is_folder(const char *path);
/* "PATH is a folder" + what is wanted in its place + ", such as PATH/example". */
gr_status gr_file_fail_folder(const char *path, const char *wanted, const char *example, gr_status status, gr_error *e);
/* GR_ERR_IO, in words, when there is no folder for a file of that path to be written in; otherwise: what else to do than to make it. */
gr_status gr_file_check_folder(const char *path, const char *otherwise, gr_error *e);
bool gr_file_same(const char *a, const char *b); /* both are there and are one file, whatever they are called */

/* A file being written beside its final name; nothing appears under that name before gr_file_commit, which flushes to
 * stable storage, renames, and flushes the folder, and on failure removes the temporary: the old file is whole either way.
 * Each gr_file ends in exactly one commit or abandon; after a failed write, abandon. Folders, devices and pipes are no place
 * for one: GR_ERR_IO. A link to a file stays a link: what it leads to is replaced. */
typedef struct gr_file gr_file;
gr_status gr_file_create(gr_file **f, const char *path, gr_error *e);
gr_status gr_file_write(gr_file *f, const void *bytes, size_t n, gr_error *e);
gr_status gr_file_commit(gr_file *f, gr_error *e);
void gr_file_abandon(gr_file *f); /* NULL is fine */

#endif
