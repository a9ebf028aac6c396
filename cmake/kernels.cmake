# Kernels of the CPU backend (src/backend/cpu/kernels/*.c), compiled once per instruction set. Every symbol they export ends with
# the set's name (GR_ISA_FN), so that all of them live in one library; which one runs is chosen when the backend opens.
set(GR_CPU_ISAS generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  list(APPEND GR_CPU_ISAS avx2 avx512 avx512_bf16)
  set(GR_CPU_FLAGS_avx2 -march=x86-64-v3)
  set(GR_CPU_FLAGS_avx512 -march=x86-64-v4 -mprefer-vector-width=512)
  set(GR_CPU_FLAGS_avx512_bf16 ${GR_CPU_FLAGS_avx512} -mavx512bf16)
  target_compile_definitions(gr_backend PRIVATE GR_CPU_X86=1 GR_CPU_ARM=0)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  list(APPEND GR_CPU_ISAS neon neon_bf16) # every aarch64 has NEON: no flag, but a word to tell it from the generic set
  set(GR_CPU_FLAGS_neon -DGR_NEON $<$<C_COMPILER_ID:GNU>:-fno-schedule-insns>) # which would load twelve operands ahead, and spill sums
  set(GR_CPU_FLAGS_neon_bf16 ${GR_CPU_FLAGS_neon} -march=armv8.2-a+bf16)
  target_compile_definitions(gr_backend PRIVATE GR_CPU_X86=0 GR_CPU_ARM=1)
else()
  target_compile_definitions(gr_backend PRIVATE GR_CPU_X86=0 GR_CPU_ARM=0)
endif()

file(GLOB cpu_kernels CONFIGURE_DEPENDS src/backend/cpu/kernels/*.c)
if(GR_FUZZ) # no file that is fuzzed reaches them, and clang takes a quarter of an hour for some to instrument what is unrolled in them
  set_source_files_properties(${cpu_kernels} PROPERTIES COMPILE_OPTIONS -fno-sanitize=all)
endif()
foreach(isa IN LISTS GR_CPU_ISAS)
  add_library(gr_cpu_${isa} OBJECT ${cpu_kernels})
  target_link_libraries(gr_cpu_${isa} PRIVATE gr_flags)
  target_compile_options(gr_cpu_${isa} PRIVATE ${GR_CPU_FLAGS_${isa}})
  target_compile_definitions(gr_cpu_${isa} PRIVATE GR_ISA=${isa})
  target_sources(gr_backend PRIVATE $<TARGET_OBJECTS:gr_cpu_${isa}>)
endforeach()

# The emulator's kernels once more, with the fused multiply-add as an instruction (src/backend/emu/kernels.cpp).
if("avx2" IN_LIST GR_CPU_ISAS)
  add_library(gr_emu_fma OBJECT src/backend/emu/kernels.cpp)
  target_link_libraries(gr_emu_fma PRIVATE gr_flags)
  target_compile_options(gr_emu_fma PRIVATE ${GR_CPU_FLAGS_avx2})
  target_compile_definitions(gr_emu_fma PRIVATE GR_EMU_FMA=1)
  target_sources(gr_backend PRIVATE $<TARGET_OBJECTS:gr_emu_fma>)
endif()
