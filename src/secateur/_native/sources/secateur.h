/* What all kernels share. Each source is compiled once for each instruction set; NAME gives its functions the suffix of
 * that set (secateur_clear_avx512), and the loader takes those that fit the machine. */

#ifndef SECATEUR_H
#define SECATEUR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || __SIZEOF_POINTER__ != 8
#error "the kernels are for little-endian machines of 64 bits; others run in pure torch"
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define WITH_AVX512 1
#include <immintrin.h>
#define VECTOR_BYTES 64
#elif defined(__AVX2__) && defined(__FMA__)
#define WITH_AVX2 1
#include <immintrin.h>
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(function) JOIN(secateur_##function, LEVEL)
#define EXPORT __attribute__((visibility("default")))

/* As many floats as a register of this instruction set holds; gcc and clang know + - * on them. */
typedef float vector __attribute__((vector_size(VECTOR_BYTES)));
typedef float loose_vector __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
enum { LANES = VECTOR_BYTES / sizeof(float) };

static inline vector load(const float *from) { return *(const loose_vector *)from; }
static inline void store(float *to, vector value) { *(loose_vector *)to = value; }
static inline vector spread(float value) { return value - (vector){0}; }

/* Threads for a piece of work: as many as torch uses, but one where starting them would cost as much as it saves. */
static inline int threads_for(double nanoseconds, int threads) {
    return nanoseconds < 100e3 || threads < 1 ? 1 : threads;
}

/* Negative values become zero, and nan stays nan, as with torch. */
static inline vector rectified(vector value) {
    typedef int32_t bits __attribute__((vector_size(VECTOR_BYTES)));
    return (vector)((bits)value & ~(bits)(value < (vector){0}));
}

static inline int thread_number(void) {
#ifdef _OPENMP
    return omp_get_thread_num();
#else
    return 0;
#endif
}

#endif
