# Cross-building for Linux on arm64 with Debian's compiler, and running what was built under qemu (the preset aarch64; tools/install-needs
# --cross brings both). Libraries of that machine are looked for in GR_CROSS_ROOT, a folder that has usr/include and usr/lib in it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

set(cache $ENV{XDG_CACHE_HOME})
if(NOT cache)
  set(cache $ENV{HOME}/.cache)
endif()
set(GR_CROSS_ROOT ${cache}/graft/aarch64 CACHE PATH "Where libraries of the other machine are")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES GR_CROSS_ROOT)
set(ENV{PKG_CONFIG_LIBDIR} ${GR_CROSS_ROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE}/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${GR_CROSS_ROOT})
set(ENV{PKG_CONFIG_ALLOW_SYSTEM_CFLAGS} 1)
set(ENV{PKG_CONFIG_ALLOW_SYSTEM_LIBS} 1)
