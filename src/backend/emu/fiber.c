#include "backend/emu/fiber.h"

#include <string.h>

#include "backend/emu/sanitizers.h"

enum { CANARY_BYTES = 64, CANARY = 0xa5 };

static void fiber_main(void *arg);

#if !GR_FIBER_UCONTEXT_
/* Saves the callee-saved registers on the running stack and its top in *save, then takes both back from `to`. */
void gr_fiber_swap(void **save, void *to);
/* Where a new fiber's first switch arrives: calls the function in one saved register with the argument in another. */
void gr_fiber_start(void);

#define STRING_(x) #x
#define STRING(x) STRING_(x)
#ifdef __USER_LABEL_PREFIX__
#define SYMBOL(name) STRING(__USER_LABEL_PREFIX__) #name
#else
#define SYMBOL(name) #name
#endif
#ifdef __APPLE__
#define FUNCTION(name) ".private_extern " SYMBOL(name) "\n" SYMBOL(name) ":\n"
#else
#define FUNCTION(name) ".hidden " SYMBOL(name) "\n.globl " SYMBOL(name) "\n.type " SYMBOL(name) ", %function\n" SYMBOL(name) ":\n"
#endif
#endif

#if !GR_FIBER_UCONTEXT_ && defined(__x86_64__)
/* System V ABI: rbx, rbp, r12..r15, and the control words of SSE and x87. */
enum { SAVED_WORDS = 8, SAVED_ENTRY = 3, SAVED_ARG = 4 };
__asm__(".text\n.p2align 4\n" FUNCTION(gr_fiber_swap) //
        "  pushq %rbp\n"
        "  pushq %rbx\n"
        "  pushq %r12\n"
        "  pushq %r13\n"
        "  pushq %r14\n"
        "  pushq %r15\n"
        "  subq $8, %rsp\n"
        "  stmxcsr (%rsp)\n"
        "  fnstcw 4(%rsp)\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  ldmxcsr (%rsp)\n"
        "  fldcw 4(%rsp)\n"
        "  addq $8, %rsp\n"
        "  popq %r15\n"
        "  popq %r14\n"
        "  popq %r13\n"
        "  popq %r12\n"
        "  popq %rbx\n"
        "  popq %rbp\n"
        "  ret\n"
        ".p2align 4\n" FUNCTION(gr_fiber_start) //
        "  .cfi_startproc\n"
        "  .cfi_undefined rip\n" /* the outermost frame: unwinders stop here */
        "  movq %r12, %rdi\n"
        "  callq *%r13\n"
        "  ud2\n"
        "  .cfi_endproc\n");

static void *first_frame(gr_fiber *f, unsigned char *top)
{
  /* From low to high: control words, r15, r14, r13, r12, rbx, rbp, return address. The stack is 16-byte aligned once they are popped. */
  uint64_t frame[SAVED_WORDS] = { 0 };
  uint32_t control[2] = { 0, 0 };
  __asm__ volatile("stmxcsr %0\n\tfnstcw %1" : "=m"(control[0]), "=m"(control[1]));
  memcpy(&frame[0], control, sizeof control);
  frame[SAVED_ENTRY] = (uint64_t)(uintptr_t)fiber_main;
  frame[SAVED_ARG] = (uint64_t)(uintptr_t)f;
  frame[SAVED_WORDS - 1] = (uint64_t)(uintptr_t)gr_fiber_start;
  unsigned char *sp = top - sizeof frame;
  memcpy(sp, frame, sizeof frame);
  return sp;
}
#elif !GR_FIBER_UCONTEXT_
/* AAPCS64: x19..x30 and the low halves of v8..v15. */
enum { SAVED_BYTES = 160 };
__asm__(".text\n.p2align 4\n" FUNCTION(gr_fiber_swap) //
        "  sub sp, sp, #160\n"
        "  stp x19, x20, [sp]\n"
        "  stp x21, x22, [sp, #16]\n"
        "  stp x23, x24, [sp, #32]\n"
        "  stp x25, x26, [sp, #48]\n"
        "  stp x27, x28, [sp, #64]\n"
        "  stp x29, x30, [sp, #80]\n"
        "  stp d8, d9, [sp, #96]\n"
        "  stp d10, d11, [sp, #112]\n"
        "  stp d12, d13, [sp, #128]\n"
        "  stp d14, d15, [sp, #144]\n"
        "  mov x2, sp\n"
        "  str x2, [x0]\n"
        "  mov sp, x1\n"
        "  ldp x19, x20, [sp]\n"
        "  ldp x21, x22, [sp, #16]\n"
        "  ldp x23, x24, [sp, #32]\n"
        "  ldp x25, x26, [sp, #48]\n"
        "  ldp x27, x28, [sp, #64]\n"
        "  ldp x29, x30, [sp, #80]\n"
        "  ldp d8, d9, [sp, #96]\n"
        "  ldp d10, d11, [sp, #112]\n"
        "  ldp d12, d13, [sp, #128]\n"
        "  ldp d14, d15, [sp, #144]\n"
        "  add sp, sp, #160\n"
        "  ret\n"
        ".p2align 4\n" FUNCTION(gr_fiber_start) //
        "  .cfi_startproc\n"
        "  .cfi_undefined x30\n" /* the outermost frame: unwinders stop here */
        "  mov x0, x20\n"
        "  blr x19\n"
        "  brk #1\n"
        "  .cfi_endproc\n");

static void *first_frame(gr_fiber *f, unsigned char *top)
{
  uint64_t frame[SAVED_BYTES / 8] = { 0 };
  frame[0] = (uint64_t)(uintptr_t)fiber_main;      /* x19 */
  frame[1] = (uint64_t)(uintptr_t)f;               /* x20 */
  frame[11] = (uint64_t)(uintptr_t)gr_fiber_start; /* x30 */
  unsigned char *sp = top - sizeof frame;
  memcpy(sp, frame, sizeof frame);
  return sp;
}
#endif

/* A switch has arrived at `self`; fake is what the matching start handed out, NULL on a new stack. */
static void arrive(gr_fiber *self, void *fake)
{
#ifdef GR_ASAN
  __sanitizer_finish_switch_fiber(fake, &self->from->bottom, &self->from->bottom_bytes);
#else
  (void)self;
  (void)fake;
#endif
}

static void fiber_main(void *arg)
{
  gr_fiber *self = arg;
  arrive(self, NULL);
  self->entry(self->arg);
}

#if GR_FIBER_UCONTEXT_
static void context_main(unsigned high, unsigned low) { fiber_main((void *)((uintptr_t)high << 16 << 16 | low)); }
#endif

void gr_fiber_init(gr_fiber *f, void *stack, size_t stack_bytes, gr_fiber_entry *entry, void *arg)
{
  memset(f, 0, sizeof *f);
  f->stack = stack;
  f->bottom = stack;
  f->bottom_bytes = stack_bytes;
  f->entry = entry;
  f->arg = arg;
  GR_ASAN_UNPOISON(stack, stack_bytes); /* frames of a fiber that was forgotten here */
  memset(stack, CANARY, CANARY_BYTES);
#if GR_FIBER_UCONTEXT_
  getcontext(&f->context);
  f->context.uc_stack.ss_sp = stack;
  f->context.uc_stack.ss_size = stack_bytes;
  uintptr_t self = (uintptr_t)f;
  makecontext(&f->context, (void (*)(void))context_main, 2, (unsigned)(self >> 16 >> 16), (unsigned)self);
#else
  f->sp = first_frame(f, f->stack + stack_bytes);
#endif
#ifdef GR_TSAN
  f->tsan = __tsan_create_fiber(0);
#endif
}

void gr_fiber_init_host(gr_fiber *f)
{
  memset(f, 0, sizeof *f);
#ifdef GR_TSAN
  f->tsan = __tsan_get_current_fiber();
#endif
}

void gr_fiber_deinit(gr_fiber *f)
{
#ifdef GR_TSAN
  if (f->stack && f->tsan) __tsan_destroy_fiber(f->tsan);
#endif
  if (f->stack) GR_ASAN_UNPOISON(f->stack, f->bottom_bytes);
  memset(f, 0, sizeof *f);
}

void gr_fiber_switch(gr_fiber *from, gr_fiber *to)
{
  void *fake = NULL;
  to->from = from;
#ifdef GR_ASAN
  __sanitizer_start_switch_fiber(&fake, to->bottom, to->bottom_bytes);
#endif
#ifdef GR_TSAN
  __tsan_switch_to_fiber(to->tsan, 0);
#endif
#if GR_FIBER_UCONTEXT_
  swapcontext(&from->context, &to->context);
#else
  gr_fiber_swap(&from->sp, to->sp);
#endif
  arrive(from, fake);
}

bool gr_fiber_stack_intact(const gr_fiber *f)
{
  unsigned char intact[CANARY_BYTES];
  memset(intact, CANARY, sizeof intact);
  return memcmp(f->stack, intact, sizeof intact) == 0;
}
