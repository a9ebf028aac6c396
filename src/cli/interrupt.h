/* Ctrl-C, for every command that goes on for long: the first one asks it to end what it does and to keep what there is, the second ends
 * the process at once. */
#ifndef GR_CLI_INTERRUPT_H
#define GR_CLI_INTERRUPT_H
#include <stdbool.h>

/* From now on the first SIGINT is caught; with `ends` so are SIGTERM and SIGHUP (but for a process that nohup began). */
void gr_interrupt_catch(bool ends);
bool gr_interrupted(void);
/* What was caught until now counts no more: the next one is a first one again. */
void gr_interrupt_forget(void);
/* Waits until a file descriptor can be read from, is at its end, or a signal is caught. */
void gr_interrupt_wait(int fd);

#endif
