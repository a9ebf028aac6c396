/* Writes the seeds of fuzz_gguf into the folder named on the command line: files of our own writer. */
#include <stdio.h>

#include "gguf_sample.h"

typedef void fill_fn(gr_gguf_writer *w);

static void fill_empty(gr_gguf_writer *w) { (void)w; }

/* An adapter that is its own base, since what is named *_norm.weight is ignored in an adapter. */
static void fill_self(gr_gguf_writer *w)
{
  static const gr_adapter_out pair = { "y_norm.weight", 6, 4, 1, 2, sample_floats, sample_floats };
  gr_adapter_put(w, &(gr_adapter_info){ .architecture = "llama", .alpha = 0, .pairs = &pair, .pair_count = 1 });
  gr_gguf_add_data(w, "y_norm.weight", GR_F32, 2, (int64_t[]){ 6, 4 }, sample_floats);
}

/* Types that cannot be decoded, and a weight that is not finite. */
static void fill_odd(gr_gguf_writer *w)
{
  static const float infinite[2] = { 0, INFINITY };
  gr_gguf_add_copy(w, &(gr_gguf_tensor){ .name = "iq", .n_dims = 1, .ne = { 256, 1, 1, 1 }, .ggml_type = 16, .data = sample_bytes });
  gr_gguf_add_data(w, "infinite", GR_F32, 1, (int64_t[]){ 2 }, infinite);
}

static void fill_split(gr_gguf_writer *w)
{
  gr_gguf_put_u32(w, "split.no", 0);
  gr_gguf_put_u32(w, "split.count", 2);
  gr_gguf_put_u32(w, "split.tensors.count", 9);
}

static gr_status save_filled(const char *path, fill_fn *fill, gr_error *e)
{
  gr_gguf_writer *w;
  GR_TRY(gr_gguf_writer_create(&w, e));
  fill(w);
  gr_status s = gr_gguf_writer_save(w, path, e);
  gr_gguf_writer_free(w);
  return s;
}

static gr_status save_seed(const char *path, int i, gr_error *e)
{
  static fill_fn *const fills[] = { fill_empty, fill_self, fill_odd, fill_split };
  if (i < 2) return sample_model_save(path, i ? 64 : 32, e);
  if (i == 2) return sample_adapter_save(path, e);
  if (i == 3) return sample_base_save(path, "llama", 3, e);
  return save_filled(path, fills[i - 4], e);
}

int main(int argc, char **argv)
{
  if (argc != 2) {
    fprintf(stderr, "usage: seed_gguf FOLDER\n");
    return 2;
  }
  for (int i = 0; i < 8; i++) {
    char path[4096];
    gr_error e = { 0 };
    snprintf(path, sizeof path, "%s/gguf-%d", argv[1], i);
    if (save_seed(path, i, &e) != GR_OK) {
      fprintf(stderr, "%s\n", e.text);
      return 1;
    }
  }
  return 0;
}
