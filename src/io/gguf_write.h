/* Writing GGUF version 3 files: metadata of every type, tensors from memory or streamed, all or nothing.
 *
 *   gr_gguf_writer *w;
 *   GR_TRY(gr_gguf_writer_create(&w, e));
 *   gr_gguf_put_string(w, "general.architecture", "llama");
 *   gr_gguf_add_data(w, "output_norm.weight", GR_F32, 1, (int64_t[]){ 64 }, norm);
 *   gr_status s = gr_gguf_writer_save(w, path, e);
 *   gr_gguf_writer_free(w);
 *
 * What is put or added wrongly (a bad or repeated name, a row that blocks do not fill, no memory) makes save fail with the
 * first such reason: the calls before it need no checks. Keys and tensors stand in the file in the order they were given;
 * tensor data follows without gaps other than the alignment's padding, as ggml's reader demands. */
#ifndef GR_IO_GGUF_WRITE_H
#define GR_IO_GGUF_WRITE_H
#include "base/buf.h"
#include "io/gguf.h"

typedef struct gr_gguf_writer gr_gguf_writer;
gr_status gr_gguf_writer_create(gr_gguf_writer **w, gr_error *e);
void gr_gguf_writer_free(gr_gguf_writer *w); /* NULL is fine */

/* Of tensor data, a power of two from 8 to 2^31; 32 unless set. Putting general.alignment sets it too. */
void gr_gguf_writer_set_alignment(gr_gguf_writer *w, uint64_t alignment);

/* ---- metadata: values are copied ---- */
void gr_gguf_put_u32(gr_gguf_writer *w, const char *key, uint32_t value);
void gr_gguf_put_u64(gr_gguf_writer *w, const char *key, uint64_t value);
void gr_gguf_put_i32(gr_gguf_writer *w, const char *key, int32_t value);
void gr_gguf_put_f32(gr_gguf_writer *w, const char *key, float value);
void gr_gguf_put_bool(gr_gguf_writer *w, const char *key, bool value);
void gr_gguf_put_string(gr_gguf_writer *w, const char *key, const char *text);

/* Any scalar but a string: `value` points to one of the C type of `type` (uint8_t of 0 or 1 for GR_GGUF_BOOL). */
void gr_gguf_put_scalar(gr_gguf_writer *w, const char *key, gr_gguf_type type, const void *value);
/* n such elements, one after the other. */
void gr_gguf_put_array(gr_gguf_writer *w, const char *key, gr_gguf_type type, const void *elements, uint64_t n);
void gr_gguf_put_str(gr_gguf_writer *w, const char *key, gr_gguf_str value);
void gr_gguf_put_strs(gr_gguf_writer *w, const char *key, const gr_gguf_str *values, uint64_t n);
/* A value read from another file, as it is. */
void gr_gguf_put_kv(gr_gguf_writer *w, const gr_gguf_kv *kv);

/* ---- tensors: data must stay until save returns ---- */

typedef struct gr_gguf_sink gr_gguf_sink;
gr_status gr_gguf_sink_write(gr_gguf_sink *sink, const void *bytes, size_t n, gr_error *e);

/* Writes all of one tensor's bytes, in order, in pieces of any size. More or fewer than its shape and type say is an error. */
typedef gr_status gr_gguf_produce(void *ctx, gr_gguf_sink *sink, gr_error *e);

void gr_gguf_add_stream(gr_gguf_writer *w, const char *name, gr_dtype dtype, int n_dims, const int64_t *ne, gr_gguf_produce *produce,
                        void *ctx);
void gr_gguf_add_data(gr_gguf_writer *w, const char *name, gr_dtype dtype, int n_dims, const int64_t *ne, const void *data);
void gr_gguf_add_copy(gr_gguf_writer *w, const gr_gguf_tensor *t); /* of another file; of any type */

/* Writes the file beside `path` and renames it there when it is whole and on disk; on failure the old file is untouched.
 * May be called again. */
gr_status gr_gguf_writer_save(gr_gguf_writer *w, const char *path, gr_error *e);

/* The same bytes into memory, replacing what `out` held. */
gr_status gr_gguf_writer_encode(gr_gguf_writer *w, gr_buf *out, gr_error *e);

#endif
