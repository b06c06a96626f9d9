/* 64 floats looked at together: what is asked about them is answered by 64 bits, the first in the lowest. */

#ifndef COMPARING_H
#define COMPARING_H

#include "secateur.h"

enum { WORD = 64, PARTS = WORD / LANES };

typedef int32_t integers __attribute__((vector_size(VECTOR_BYTES)));

/* What is done to the bits of a float before it is compared: AND, then XOR. */
struct reading {
    int32_t keep, flip;
};

/* 64 floats, and which of them count. */
struct word {
    vector floats[PARTS];
    uint64_t may;
};

#ifdef WITH_AVX512
#define COMPARE(name, sign, predicate, parameter, other)                                                             \
    static inline uint64_t name(const struct word *word, parameter) {                            \
        uint64_t bits = 0;                                                                         \
        for (int i = 0; i < PARTS; i++) {                                                          \
            __mmask16 truth = _mm512_cmp_ps_mask((__m512)word->floats[i], (__m512)(other), predicate); \
            bits |= (uint64_t)truth << (16 * i);                                                   \
        }                                                                                          \
        return bits;                                                                               \
    }
#elif defined(WITH_AVX2)
#define COMPARE(name, sign, predicate, parameter, other)                                                             \
    static inline uint64_t name(const struct word *word, parameter) {                            \
        uint64_t bits = 0;                                                                         \
        for (int i = 0; i < PARTS; i++) {                                                          \
            __m256 truth = _mm256_cmp_ps((__m256)word->floats[i], (__m256)(other), predicate); \
            bits |= (uint64_t)(uint32_t)_mm256_movemask_ps(truth) << (8 * i);                      \
        }                                                                                          \
        return bits;                                                                               \
    }
#else
/* Each lane collects its own bits of the answer; four lanes, whatever the machine. */
#define COMPARE(name, sign, predicate, parameter, other)                                                             \
    static inline uint64_t name(const struct word *word, parameter) {                            \
        integers halves[2] = {{0}, {0}};                                                           \
        for (int i = 0; i < PARTS; i++)                                                            \
            halves[i / 8] |= (word->floats[i] sign (other)) & ((integers){1, 2, 4, 8} << (4 * (i % 8))); \
        return joined(halves[0]) | (uint64_t)joined(halves[1]) << 32;                              \
    }

static inline uint32_t joined(integers lanes) { return (uint32_t)(lanes[0] | lanes[1] | lanes[2] | lanes[3]); }
#endif

COMPARE(less, <, _CMP_LT_OQ, float bound, spread(bound))
COMPARE(up_to, <=, _CMP_LE_OQ, float bound, spread(bound))
COMPARE(up_to_each, <=, _CMP_LE_OQ, const struct word *partners, partners->floats[i])

/* 64 bytes of 0 and 1 as bits. */
static inline uint64_t gathered(const uint8_t *bytes) {
#ifdef WITH_AVX512
    __m512i all = _mm512_loadu_si512(bytes);
    return _mm512_test_epi8_mask(all, all);
#elif defined(WITH_AVX2)
    __m256i first = _mm256_loadu_si256((const __m256i *)bytes), second = _mm256_loadu_si256((const __m256i *)bytes + 1);
    uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(first, 7));
    return low | (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(second, 7)) << 32;
#else
    uint64_t bits = 0, eight;
    for (int i = 0; i < 8; i++) {
        memcpy(&eight, bytes + 8 * i, 8);
        bits |= (eight * 0x0102040810204080u) >> 56 << (8 * i);
    }
    return bits;
#endif
}

/* The reverse. */
static inline void scattered(uint64_t bits, uint8_t *bytes) {
#ifdef WITH_AVX512
    _mm512_storeu_si512(bytes, _mm512_maskz_set1_epi8(bits, 1));
#else
    for (int i = 0; i < 8; i++) {
        uint64_t eight = ((bits >> (8 * i) & 0xff) * 0x0101010101010101u) & 0x8040201008040201u;
        eight = ((eight + 0x7f7f7f7f7f7f7f7fu) >> 7 | eight >> 7) & 0x0101010101010101u;
        memcpy(bytes + 8 * i, &eight, 8);
    }
#endif
}

/* Some floats from `at` on, no more than 64 and no more than `count`, as they are read. Those count whose byte in
 * `kept` is 1 (or 0, if `inverted` is all ones); all of them, if it is NULL. */
static inline struct word word_at(const float *at, const uint8_t *kept, uint64_t inverted, int64_t count,
                                  struct reading how) {
    float floats[WORD];
    uint8_t bytes[WORD];
    uint64_t valid = ~(uint64_t)0;
    if (count < WORD) {
        valid = ((uint64_t)1 << count) - 1;
        at = memcpy(memset(floats, 0, sizeof floats), at, (size_t)count * sizeof(float));
        kept = kept ? memcpy(memset(bytes, 0, sizeof bytes), kept, (size_t)count) : kept;
    }
    struct word word;
    for (int i = 0; i < PARTS; i++) {
        integers bits = ((integers)load(at + LANES * i) & how.keep) ^ how.flip;
        word.floats[i] = (vector)bits;
    }
    word.may = kept ? (gathered(kept) ^ inverted) & valid : valid;
    return word;
}

/* One float as it is read. */
static inline float read_float(float value, struct reading how) {
    int32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits & how.keep) ^ how.flip;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* The first of some bits. */
static inline uint64_t first_of(uint64_t bits, int64_t number) {
    uint64_t others = bits;
    for (; number > 0 && others; number--)
        others &= others - 1;
    return bits & ~others;
}

/* The lowest bits, each moved to the place of one of those that are set in `places`, in their order. */
static inline uint64_t deposited(uint64_t bits, uint64_t places) {
#if defined(WITH_AVX512) || defined(WITH_AVX2)
    return _pdep_u64(bits, places);
#else
    uint64_t moved = 0;
    for (; places; places &= places - 1, bits >>= 1)
        moved |= bits & 1 ? places & -places : 0;
    return moved;
#endif
}

/* Write some of the floats to `to`, where there is room for 64; returns where the next one goes. */
static inline float *append(float *to, const struct word *word, uint64_t wanted) {
#ifdef WITH_AVX512
    for (int i = 0; i < PARTS; i++) {
        __mmask16 some = (__mmask16)(wanted >> (16 * i));
        _mm512_storeu_ps(to, _mm512_maskz_compress_ps(some, (__m512)word->floats[i]));
        to += __builtin_popcount(some);
    }
#else
    float floats[WORD];
    memcpy(floats, word->floats, sizeof floats);
    for (; wanted; wanted &= wanted - 1)
        *to++ = floats[__builtin_ctzll(wanted)];
#endif
    return to;
}

#endif
