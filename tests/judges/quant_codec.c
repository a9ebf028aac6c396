/* For tools/judge_quant.py: runs one codec of ours from stdin to stdout, or quantizes a file.
 *   quant_codec decode TYPE   blocks in, F32 out          quant_codec encode TYPE   F32 in, blocks out
 *   quant_codec file TYPE IN.gguf OUT.gguf
 * Input that is no whole number of blocks, and a file that is refused, is an error (exit 2). */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "io/quantize.h"
#include "quant/quant.h"

static unsigned char *read_all(size_t *size)
{
  void *data = NULL;
  size_t cap = 0;
  for (*size = 0;;) {
    if (!gr_grow(&data, &cap, *size + 65536, 1)) return NULL;
    size_t got = fread((unsigned char *)data + *size, 1, cap - *size, stdin);
    if (!got) return data;
    *size += got;
  }
}

int main(int argc, char **argv)
{
  gr_dtype t;
  if (argc < 3 || !gr_dtype_from_name(argv[2], &t)) return 2;
  if (argc == 5 && strcmp(argv[1], "file") == 0) {
    gr_error e = { 0 };
    if (gr_quantize_file(argv[3], argv[4], t, NULL, &e) == GR_OK) return 0;
    fprintf(stderr, "quant_codec: %s\n", e.text);
    return 2;
  }
  const bool decoding = strcmp(argv[1], "decode") == 0;
  const gr_dtype_info *info = gr_dtype_get(t);
  gr_decode_fn *decode = gr_quant_decoder(t);
  gr_encode_fn *encode = gr_quant_encoder(t);
  size_t size = 0;
  unsigned char *in = read_all(&size);
  size_t block = decoding ? (size_t)info->block_bytes : sizeof(float) * (size_t)info->block_elems;
  if (!in || (decoding ? !decode : !encode) || size % block) return 2;
  int64_t n = (int64_t)(size / block) * info->block_elems;
  size_t out_bytes = decoding ? sizeof(float) * (size_t)n : gr_row_bytes(t, n);
  void *out = gr_alloc(out_bytes);
  if (!out) return 2;
  if (decoding) decode(in, out, n);
  else encode((const float *)(const void *)in, out, n);
  size_t written = fwrite(out, 1, out_bytes, stdout);
  gr_free(in);
  gr_free(out);
  return written == out_bytes && fflush(stdout) == 0 ? 0 : 2;
}
