/* Writes the seeds of fuzz_jinja into the folder named on the command line: the templates of tests/golden/jinja.jsonl, named by the
 * second argument. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
  FILE *golden = argc == 3 ? fopen(argv[2], "r") : NULL;
  if (!golden) {
    fprintf(stderr, "usage: seed_jinja FOLDER tests/golden/jinja.jsonl\n");
    return 2;
  }
  char line[65536];
  for (int i = 0; fgets(line, sizeof line, golden); i++) {
    json_t *json = json_loads(line, 0, NULL);
    const char *text = json_string_value(json_object_get(json, "template"));
    char path[1024];
    snprintf(path, sizeof path, "%s/%04d", argv[1], i);
    FILE *f = text ? fopen(path, "wb") : NULL;
    if (f) {
      fputs(text, f);
      fclose(f);
    }
    json_decref(json);
  }
  fclose(golden);
  return 0;
}
