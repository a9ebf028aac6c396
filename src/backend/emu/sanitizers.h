/* Which sanitizers this build has, and marking memory as out of bounds for AddressSanitizer (nothing without it). */
#ifndef GR_BACKEND_EMU_SANITIZERS_H
#define GR_BACKEND_EMU_SANITIZERS_H

#if defined(__has_feature)
#define GR_HAS_FEATURE(x) __has_feature(x)
#else
#define GR_HAS_FEATURE(x) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || GR_HAS_FEATURE(address_sanitizer)
#define GR_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define GR_ASAN_POISON(address, bytes) __asan_poison_memory_region(address, bytes)
#define GR_ASAN_UNPOISON(address, bytes) __asan_unpoison_memory_region(address, bytes)
#else
#define GR_ASAN_POISON(address, bytes) ((void)(address), (void)(bytes))
#define GR_ASAN_UNPOISON(address, bytes) ((void)(address), (void)(bytes))
#endif

#if defined(__SANITIZE_THREAD__) || GR_HAS_FEATURE(thread_sanitizer)
#define GR_TSAN 1
#include <sanitizer/tsan_interface.h>
#endif

#endif
