/* graft ops: proves, compares and measures the ops; the work is src/optest's. */
#include "cli/cli.h"
#include "optest/optest.h"

int gr_cmd_ops(int argc, char **argv) { return gr_optest_main(argc, argv, stdout, stderr); }
