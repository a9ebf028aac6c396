#include "cli/train_run.h"

#include <string.h>

#include "base/alloc.h"

static void print_option(const gr_option_info *i)
{
  char left[200];
  snprintf(left, sizeof left, "  %s%s%s", i->names, i->value ? " " : "", i->value ? i->value : "");
  bool preset = strcmp(i->preset, "NULL") != 0 && strcmp(i->preset, "-1") != 0 && strcmp(i->preset, "false") != 0;
  size_t n = strlen(i->preset);
  bool quoted = n > 1 && i->preset[0] == '"';
  if (strlen(left) < 36) printf("%-36s %s", left, i->help);
  else printf("%s\n%37s%s", left, "", i->help);
  if (preset && !strstr(i->help, "default")) printf(" (default %.*s)", (int)(quoted ? n - 2 : n), i->preset + quoted);
  putchar('\n');
}

void gr_train_command_help(const char *usage)
{
  printf("%s\n\n", usage);
  printf("%-36s %s\n", "  --config FILE", "options from YAML; flags win over it");
  printf("%-36s %s\n", "  --json", "one JSON object a line on stdout");
  for (const gr_option_info *i = gr_train_option_infos(); i->field; i++) print_option(i);
}

/* The option that argv[i] names, in its first n bytes: --no-NAME turns a flag off, and -r8 is -r 8. */
static gr_status find(const char *typed, size_t *n, const gr_option_info **info, bool *negative, gr_error *e)
{
  char name[64];
  size_t hyphens = strspn(typed, "-");
  snprintf(name, sizeof name, "%.*s", (int)(*n - hyphens), typed + hyphens);
  *info = gr_train_option_find_flag(name, negative);
  if (*info) return GR_OK;
  if (gr_arg_is_attached(typed)) {
    name[1] = 0;
    *info = gr_train_option_find(name);
    *n = 2;
    if (*info && ((*info)->kind == GR_OPTION_INT || (*info)->kind == GR_OPTION_REAL)) return GR_OK;
    *n = strcspn(typed, "=");
  }
  snprintf(name, sizeof name, "%.*s", (int)*n, typed);
  return gr_train_option_nearest(name, e);
}

static gr_status take_option(gr_train_command *c, int argc, char **argv, int *i, gr_error *e)
{
  const char *typed = argv[*i];
  size_t n = strcspn(typed, "=");
  const gr_option_info *info;
  bool negative;
  GR_TRY(find(typed, &n, &info, &negative, e));
  if (info->kind == GR_OPTION_FLAG) {
    const char *truth = typed[n] == '=' ? typed + n + 1 : "true";
    return negative ? gr_train_options_set_negated(&c->o, info, truth, e) : gr_train_options_set(&c->o, info, truth, "", e);
  }
  const char *value = typed[n] ? typed + n + (typed[n] == '=') : *i + 1 < argc ? argv[++*i] : NULL;
  if (!value) return gr_fail(e, GR_ERR_USAGE, "%s needs a value: %s", typed, info->value);
  return gr_train_options_set(&c->o, info, value, "", e);
}

static bool is_config(int argc, char **argv, int *i, const char **path)
{
  if (strncmp(argv[*i], "--config=", 9) == 0) *path = argv[*i] + 9;
  else if (strcmp(argv[*i], "--config") == 0 && *i + 1 < argc) *path = argv[++*i];
  else return false;
  return true;
}

gr_status gr_train_command_parse(gr_train_command *c, int argc, char **argv, gr_error *e)
{
  *c = (gr_train_command){ 0 };
  gr_train_options_init(&c->o);
  for (int i = 0; i < argc; i++) {
    is_config(argc, argv, &i, &c->config);
    c->help |= strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0;
  }
  if (c->help) return GR_OK;
  if (c->config) GR_TRY(gr_train_options_load(&c->o, c->config, e));
  gr_train_options_lists_from_flags(&c->o);
  bool overwrite = c->o.overwrite, resume = c->o.resume; /* of the config */
  for (int i = 0; i < argc; i++) {
    if (is_config(argc, argv, &i, &c->config)) continue;
    if (strcmp(argv[i], "--json") == 0) c->json = true;
    else if (argv[i][0] != '-' || !argv[i][1]) return gr_arg_too_many(NULL, argv[i], i ? argv[i - 1] : "", e);
    else GR_TRY(take_option(c, argc, argv, &i, e));
  }
  if (c->o.overwrite && c->o.resume && overwrite != resume) { /* a flag against the config: the flag wins */
    c->o.overwrite = !overwrite;
    c->o.resume = !resume;
  }
  return gr_train_options_check(&c->o, e);
}

gr_status gr_train_command_open(gr_train_command *c, gr_error *e)
{
  c->m = (gr_cli_model){
    .path = c->o.model, .backend = c->o.backend, .precision = c->o.precision, .threads = c->o.threads, .allow_ref = c->o.allow_ref
  };
  return gr_cli_model_open(&c->m, e);
}

gr_trainer_setup gr_train_command_setup(const gr_train_command *c)
{
  return (gr_trainer_setup){
    .options = &c->o, .model = c->m.model, .backends = c->m.backends, .n_backends = c->m.n_backends, .pool = c->m.pool
  };
}

void gr_train_command_free(gr_train_command *c)
{
  gr_cli_model_close(&c->m);
  gr_train_options_free(&c->o);
}
