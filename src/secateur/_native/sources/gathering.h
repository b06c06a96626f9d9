/* The kept entries of a block of weights and gradients, in L1, and back: one form with AVX-512, one for all else.
 *
 * Bits are those of the weights, one an entry, the first in the lowest bit of the first byte, padded to whole 8 bytes;
 * NULL where all are kept. What masked entries hold has no influence, and they become zero. */

#ifndef GATHERING_H
#define GATHERING_H

#include "secateur.h"

typedef uint64_t loose_word __attribute__((aligned(1), may_alias));

#define INLINE static inline __attribute__((always_inline))

enum { BLOCK = 1024 }; /* weights that are gathered at a time, whole words of bits */

static inline uint64_t word(const char *bits, int64_t number) {
    return bits ? ((const loose_word *)bits)[number] : ~0ull;
}

/* The lowest bits of a word. */
static inline uint64_t lowest(uint64_t bits, int64_t count) { return count < 64 ? bits & ((1ull << count) - 1) : bits; }

/* What an optimizer does to single lanes of weights, with numbers of its own: `meet` gives the gradient that counts,
 * from the weight and its gradient; `finish` the new weight, from the weight and what its state has made of that. */
typedef union numbers numbers;
typedef vector lanes_step(vector weight, vector other, const numbers *with);

#ifdef WITH_AVX512

static inline vector fma_(vector a, vector b, vector c) {
    return (vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
static inline vector root(vector value) { return (vector)_mm512_sqrt_ps((__m512)value); }
static inline __mmask16 first_lanes(int64_t count) { return (__mmask16)((1u << count) - 1); }
static inline vector load_some(const float *from, int64_t count) {
    return (vector)_mm512_maskz_loadu_ps(first_lanes(count), from);
}
static inline void store_some(float *to, vector value, int64_t count) {
    _mm512_mask_storeu_ps(to, first_lanes(count), (__m512)value);
}

/* What is kept of a block: its gradients, then what becomes of them. There is room for one more vector, as vectors are
 * written and read whole. Weights stay where they are: they are read when they are written, in lanes of their own. */
typedef struct {
    float values[BLOCK + LANES];
} gathered;

static inline vector gradient_of(const gathered *block, int64_t i, lanes_step *meet, const numbers *with) {
    (void)meet, (void)with; /* done */
    return load(block->values + i);
}
static inline void settle(gathered *block, int64_t i, vector change, lanes_step *finish, const numbers *with) {
    (void)finish, (void)with; /* when it is scattered */
    store(block->values + i, change);
}

/* A word of bits, as those of four vectors, and how many are set in those before each. */
typedef struct {
    __mmask16 lanes[4];
    int64_t before[5];
} quarters;

static inline quarters split(uint64_t kept) {
    quarters made = {.before = {0}};
    for (int i = 0; i < 4; i++) {
        made.lanes[i] = (__mmask16)(kept >> (LANES * i));
        made.before[i + 1] = __builtin_popcountll(lowest(kept, LANES * (i + 1)));
    }
    return made;
}

/* The word's kept gradients, one after another. Loads are whole: masked ones leave lines out, and a processor that sees
 * no stream asks for no memory ahead. All come before the stores, which overlap, so that none waits for another. */
INLINE int64_t gather_word(const float *weights, const float *gradients, uint64_t bits, float *to, lanes_step *meet,
                           const numbers *with) {
    quarters kept = split(bits);
    __m512 found[4];
    for (int j = 0; j < 4; j++) {
        vector gradient = meet(load(weights + LANES * j), load(gradients + LANES * j), with);
        found[j] = _mm512_maskz_compress_ps(kept.lanes[j], (__m512)gradient);
    }
    for (int j = 0; j < 4; j++)
        _mm512_storeu_ps(to + kept.before[j], found[j]);
    return kept.before[4];
}

INLINE int64_t scatter_word(const float *from, uint64_t bits, float *weights, lanes_step *finish, const numbers *with) {
    quarters kept = split(bits);
    __m512 found[4];
    for (int j = 0; j < 4; j++)
        found[j] = _mm512_maskz_expand_ps(kept.lanes[j], _mm512_loadu_ps(from + kept.before[j]));
    for (int j = 0; j < 4; j++) {
        float *at = weights + LANES * j;
        vector stepped = finish(load(at), (vector)found[j], with);
        _mm512_storeu_ps(at, _mm512_maskz_mov_ps(kept.lanes[j], (__m512)stepped));
    }
    return kept.before[4];
}

/* The last entries of a tensor, fewer than a word has bits: a copy that can be read and written whole. */
typedef struct {
    float entries[64];
} padded;

static inline padded pad(const float *from, int64_t count) {
    padded made = {{0}};
    memcpy(made.entries, from, (size_t)count * sizeof(float));
    return made;
}

INLINE int64_t gather(const float *weights, const float *gradients, const char *bits, int64_t count, gathered *to,
                      lanes_step *meet, const numbers *with) {
    int64_t n = 0, i = 0;
    for (; i + 64 <= count; i += 64)
        n += gather_word(weights + i, gradients + i, word(bits, i / 64), to->values + n, meet, with);
    if (i < count) {
        padded weight = pad(weights + i, count - i), gradient = pad(gradients + i, count - i);
        uint64_t kept = lowest(word(bits, i / 64), count - i);
        n += gather_word(weight.entries, gradient.entries, kept, to->values + n, meet, with);
    }
    store(to->values + n, (vector){0});
    return n;
}

INLINE void scatter(const gathered *from, const char *bits, int64_t count, float *weights, lanes_step *finish,
                    const numbers *with) {
    int64_t n = 0, i = 0;
    for (; i + 64 <= count; i += 64)
        n += scatter_word(from->values + n, word(bits, i / 64), weights + i, finish, with);
    if (i < count) {
        padded weight = pad(weights + i, count - i);
        scatter_word(from->values + n, word(bits, i / 64), weight.entries, finish, with);
        memcpy(weights + i, weight.entries, (size_t)(count - i) * sizeof(float));
    }
}

#else

#ifdef WITH_AVX2
static inline vector fma_(vector a, vector b, vector c) {
    return (vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
static inline vector root(vector value) { return (vector)_mm256_sqrt_ps((__m256)value); }
#else
static inline vector fma_(vector a, vector b, vector c) {
#ifdef __FP_FAST_FMAF
    for (int i = 0; i < LANES; i++)
        c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#else
    return a * b + c; /* no instruction for it: torch's kernels round twice here, too */
#endif
}
static inline vector root(vector value) {
    for (int i = 0; i < LANES; i++)
        value[i] = __builtin_sqrtf(value[i]);
    return value;
}
#endif

static inline vector load_some(const float *from, int64_t count) {
    vector value = {0};
    memcpy(&value, from, (size_t)count * sizeof(float));
    return value;
}
static inline void store_some(float *to, vector value, int64_t count) {
    memcpy(to, &value, (size_t)count * sizeof(float));
}

enum { AHEAD = 512 }; /* entries by which memory is asked for ahead, since not every line of it may be read */

/* Ask for a line of memory, which may lie beyond the tensor's end. */
static inline void prefetch(const float *from) { __builtin_prefetch((const char *)from + AHEAD * sizeof(float)); }

/* The kept ones of a block. There is room for one more vector, as vectors are written and read whole. */
typedef struct {
    float weights[BLOCK + LANES], gradients[BLOCK + LANES];
} gathered;

INLINE vector gradient_of(const gathered *block, int64_t i, lanes_step *meet, const numbers *with) {
    return meet(load(block->weights + i), load(block->gradients + i), with);
}
INLINE void settle(gathered *block, int64_t i, vector change, lanes_step *finish, const numbers *with) {
    store(block->weights + i, finish(load(block->weights + i), change, with));
}

INLINE int64_t gather(const float *weights, const float *gradients, const char *bits, int64_t count, gathered *to,
                      lanes_step *meet, const numbers *with) {
    int64_t n = bits ? 0 : count;
    (void)meet, (void)with; /* once they are side by side */
    memcpy(to->weights, weights, (size_t)n * sizeof(float));
    memcpy(to->gradients, gradients, (size_t)n * sizeof(float));
    for (int64_t i = n; i < count; i += 64) {
        for (int64_t j = i; j < i + 64; j += 16) {
            prefetch(weights + j);
            prefetch(gradients + j);
        }
        for (uint64_t kept = lowest(word(bits, i / 64), count - i); kept; kept &= kept - 1, n++) {
            int64_t j = i + __builtin_ctzll(kept);
            to->weights[n] = weights[j];
            to->gradients[n] = gradients[j];
        }
    }
    store(to->weights + n, (vector){0});
    store(to->gradients + n, (vector){0});
    return n;
}

INLINE void scatter(const gathered *from, const char *bits, int64_t count, float *weights, lanes_step *finish,
                    const numbers *with) {
    int64_t n = 0;
    (void)finish, (void)with; /* done */
    if (!bits) {
        memcpy(weights, from->weights, (size_t)count * sizeof(float));
        return;
    }
    memset(weights, 0, (size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i += 64)
        for (uint64_t kept = lowest(word(bits, i / 64), count - i); kept; kept &= kept - 1)
            weights[i + __builtin_ctzll(kept)] = from->weights[n++];
}

#endif

#endif
