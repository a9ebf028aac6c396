/* graft COMMAND ...: finds the command, and says what there is. */
#define _POSIX_C_SOURCE 200809L
#include <fcntl.h>
#include <string.h>

#include "base/nearest.h"
#include "cli/cli.h"

static const struct {
  const char *name, *help;
  int (*run)(int argc, char **argv);
} commands[] = {
#define GR_COMMAND(name, help) { #name, help, gr_cmd_##name },
#include "cli/commands.def"
#undef GR_COMMAND
};

enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_usage(FILE *out)
{
  fprintf(out,
          "graft %s: trains LoRA adapters on the quantized GGUF model you serve\n\nusage: graft COMMAND [options]; graft help COMMAND\n\n",
          GR_VERSION);
  for (size_t i = 0; i < COMMANDS; i++) fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].help);
}

/* A standard stream that was closed must not become the next file that is opened. It stays unusable, by the wrong direction. */
static void guard_streams(void)
{
  for (int fd = 0; fd <= 2; fd++)
    if (fcntl(fd, F_GETFD) < 0) (void)!open("/dev/null", fd ? O_RDONLY : O_WRONLY);
}

static bool is_help(const char *word) { return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0; }

/* The command of that name, or what may have been meant. */
static int run_command(const char *name, int argc, char **argv)
{
  const char *names[COMMANDS];
  for (size_t i = 0; i < COMMANDS; i++) {
    names[i] = commands[i].name;
    if (strcmp(name, names[i]) == 0) return gr_cli_end(commands[i].run(argc, argv));
  }
  const char *near = gr_nearest(name, names, COMMANDS);
  if (near) fprintf(stderr, "graft: there is no command '%s'; did you mean '%s'?\n", name, near);
  else fprintf(stderr, "graft: there is no command '%s'; graft --help lists them\n", name);
  return 2;
}

int main(int argc, char **argv)
{
  guard_streams();
  if (argc > 2 && is_help(argv[1]) && argv[2][0] != '-' && !is_help(argv[2])) {
    char word[] = "--help", *only[] = { word, NULL };
    return run_command(argv[2], 1, only);
  }
  if (argc < 2 || is_help(argv[1])) {
    print_usage(argc < 2 ? stderr : stdout);
    return gr_cli_end(argc < 2 ? 2 : 0);
  }
  if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "version") == 0) {
    printf("graft %s\n", GR_VERSION);
    return gr_cli_end(0);
  }
  return run_command(argv[1], argc - 2, argv + 2);
}
