/* Which instruction sets the library was compiled for and this machine has. */

#include "secateur.h"

/* Raised whenever the arguments of any function change, so that a library left over from another version is refused. */
enum { INTERFACE = 3 };

EXPORT int secateur_interface(void) { return INTERFACE; }

/* 0: portable, 1: AVX2, 2: AVX-512. */
EXPORT int secateur_level(void) {
#ifdef HAS_AVX2
    __builtin_cpu_init();
#ifdef HAS_AVX512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("bmi2"))
        return 2;
#endif
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return 1;
#endif
    return 0;
}

EXPORT int secateur_has_openmp(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}
