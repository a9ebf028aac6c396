/* WATCHED: this is built with ThreadSanitizer. */
#ifndef GR_TESTS_WATCHED_H
#define GR_TESTS_WATCHED_H
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define WATCHED 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define WATCHED 1
#endif

#endif
