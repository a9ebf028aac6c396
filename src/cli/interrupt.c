#define _POSIX_C_SOURCE 200809L
#include "cli/interrupt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

static const int numbers[] = { SIGINT, SIGTERM, SIGHUP };
enum { NUMBERS = sizeof numbers / sizeof *numbers };
static volatile sig_atomic_t seen[NUMBERS], interrupted;

/* A signal that arrives just before a read of the terminal begins would not wake that read: it also puts a byte into a pipe, and what
 * waits on both sees it. */
static int wakeup[2] = { -1, -1 };

static void on_signal(int number)
{
  int kept = errno;
  interrupted = 1;
  for (int i = 0; i < NUMBERS; i++) {
    if (numbers[i] != number) continue;
    if (seen[i]) {
      signal(number, SIG_DFL);
      raise(number); /* when this handler has returned */
    }
    seen[i] = 1;
  }
  if (wakeup[1] >= 0 && write(wakeup[1], "", 1) < 0) errno = kept; /* full: it says so already */
  errno = kept;
}

void gr_interrupt_catch(bool ends)
{
  struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART }, before; /* a write that is broken off would lose text */
  if (pipe(wakeup) != 0) wakeup[0] = wakeup[1] = -1;
  for (int i = 0; i < 2 && wakeup[i] >= 0; i++) {
    fcntl(wakeup[i], F_SETFL, O_NONBLOCK);
    fcntl(wakeup[i], F_SETFD, FD_CLOEXEC);
  }
  for (int i = 0; i < (ends ? NUMBERS : 1); i++) {
    if (numbers[i] == SIGHUP && sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler == SIG_IGN) continue; /* nohup */
    sigaction(numbers[i], &action, NULL);
  }
}

bool gr_interrupted(void) { return interrupted != 0; }

void gr_interrupt_forget(void)
{
  char bytes[64];
  while (wakeup[0] >= 0 && read(wakeup[0], bytes, sizeof bytes) > 0) continue;
  for (int i = 0; i < NUMBERS; i++) seen[i] = 0;
  interrupted = 0;
}

void gr_interrupt_wait(int fd)
{
  struct pollfd both[2] = { { .fd = fd, .events = POLLIN }, { .fd = wakeup[0], .events = POLLIN } };
  while (!interrupted && poll(both, 2, -1) < 0 && errno == EINTR) continue;
  if (both[1].revents & POLLIN) interrupted = 1;
}
