// A ptrace(2) for User-mode Linux on a processor with AMX, to be preloaded into linux.uml.
//
// The kernel of the guest (6.1) saves a process's extended state in a buffer that has no room for the tiles of AMX, and
// PTRACE_SETREGSET refuses what is shorter than the state is. So what it sets is laid over the state that the process has, and
// the tiles, which the guest never uses, are marked as not in use.
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

// Where the area of XSAVE says which components are in use, and the bits of the tiles' configuration and data.
enum { in_use = 512 };
static const unsigned long tiles = 3UL << 17;

static char state[1 << 16] __attribute__((aligned(64)));

static long set_state(pid_t pid, struct iovec *set) {
  struct iovec whole = {state, sizeof state};
  if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, NT_X86_XSTATE, &whole) < 0) return -1;
  if (set->iov_len >= whole.iov_len) return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, set);
  memcpy(state, set->iov_base, set->iov_len);
  unsigned long components;
  memcpy(&components, state + in_use, sizeof components);
  components &= ~tiles;
  memcpy(state + in_use, &components, sizeof components);
  return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, NT_X86_XSTATE, &whole);
}

long ptrace(enum __ptrace_request request, ...) {
  va_list arguments;
  va_start(arguments, request);
  pid_t pid = va_arg(arguments, pid_t);
  void *address = va_arg(arguments, void *), *data = va_arg(arguments, void *);
  va_end(arguments);
  switch (request) {
  case PTRACE_SETREGSET:
    if ((long)address == NT_X86_XSTATE) return set_state(pid, data);
    break;
  case PTRACE_PEEKTEXT:
  case PTRACE_PEEKDATA:
  case PTRACE_PEEKUSER: { // The C library returns the word, where the kernel stores it.
    long word, result = syscall(SYS_ptrace, request, pid, address, &word);
    return result < 0 ? result : word;
  }
  default:
    break;
  }
  return syscall(SYS_ptrace, request, pid, address, data);
}
