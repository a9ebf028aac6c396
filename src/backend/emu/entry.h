/* C++: from a kernel as the dialect declares it to a gr_emu_entry, which takes arguments and buffers as memory. */
#ifndef GR_BACKEND_EMU_ENTRY_H
#define GR_BACKEND_EMU_ENTRY_H
#include <stddef.h>

#include "kernels/gk/gk_emu_host.h"

namespace gr_emu
{

template <class T>
struct buffer; /* each buffer is a pointer */
template <class T>
struct buffer<T *> {
  enum { read_only = 0 };
};
template <class T>
struct buffer<const T *> {
  enum { read_only = 1 };
};

template <size_t... I>
struct indices {
};
template <size_t N, size_t... I>
struct make_indices : make_indices<N - 1, N - 1, I...> {
};
template <size_t... I>
struct make_indices<0, I...> {
  typedef indices<I...> type;
};

template <class Function, Function function>
struct kernel;
template <class Args, class... Buffers, void (*function)(gr_emu_thread *, const Args &, Buffers...)>
struct kernel<void (*)(gr_emu_thread *, const Args &, Buffers...), function> {
  typedef Args args;

  /* The letters of kernels.def agree with the parameters: as many, and `i` where the kernel cannot write. */
  static constexpr bool agrees(const char *letters)
  {
    const bool read_only[] = { (buffer<Buffers>::read_only != 0)... };
    size_t n = 0;
    for (; letters[n]; n++)
      if (n >= sizeof...(Buffers) || read_only[n] != (letters[n] == 'i')) return false;
    return n == sizeof...(Buffers);
  }

  static void enter(gr_emu_thread *t, const void *a, void *const *b) { call(t, a, b, typename make_indices<sizeof...(Buffers)>::type()); }

private:
  template <size_t... I>
  static void call(gr_emu_thread *t, const void *a, void *const *b, indices<I...>)
  {
    function(t, *static_cast<const Args *>(a), static_cast<Buffers>(b[I])...);
  }
};

template <class A, class B>
struct same {
  enum { value = 0 };
};
template <class A>
struct same<A, A> {
  enum { value = 1 };
};

/* Both checks, then the entry. */
template <class Kernel, class Args, bool agrees>
constexpr gr_emu_entry *checked_entry()
{
  static_assert(same<typename Kernel::args, Args>::value, "kernels.def names another argument struct than the kernel takes");
  static_assert(agrees, "the buffers that kernels.def lists are not those that the kernel takes");
  return &Kernel::enter;
}

} // namespace gr_emu

#define GR_EMU_KERNEL(name) gr_emu::kernel<decltype(&name), &name>
#define GR_EMU_ENTRY(name, args, buffers) (gr_emu::checked_entry<GR_EMU_KERNEL(name), args, GR_EMU_KERNEL(name)::agrees(buffers)>())

#endif
