/* Masked entries become zero, or a number: packed bits choose among the words that weights are made of.
 *
 * Bits: one an entry, set where it is kept, the first entry in the lowest bit of the first byte, in the order of memory,
 * padded to whole 8 bytes. Entries are 1, 2, 4, 8 or 16 bytes wide and are taken as integers, at any address: what is
 * masked becomes 0.0 whatever it was (inf, nan, -0.0), what is kept keeps every bit. 64 entries, a block, have one word
 * of bits; what is left of a tensor at its end is copied to a block and back. */

#include "secateur.h"

typedef uint64_t loose_word __attribute__((aligned(1), may_alias));

static inline uint64_t word(const char *bits, int64_t block) { return ((const loose_word *)bits)[block]; }

/* For each width: fill_W gives the masked entries of a block a value, repeated to 8 bytes; seen_W tells whether any of
 * them is not zero. */

#ifdef WITH_AVX512

#define WIDTH(W, BITS, LANES_, MASK)                                                                                   \
    static inline void fill_##W(char *at, uint64_t kept, uint64_t value) {                                             \
        const __m512i filling = _mm512_set1_epi64((long long)value);                                                   \
        for (int i = 0; i < 64; i += LANES_, at += 64)                                                                 \
            _mm512_storeu_si512(at, _mm512_mask_loadu_epi##BITS(filling, (MASK)(kept >> i), at));                      \
    }                                                                                                                  \
    static inline int seen_##W(const char *at, uint64_t kept) {                                                        \
        __m512i found = _mm512_setzero_si512();                                                                        \
        for (int i = 0; i < 64; i += LANES_, at += 64)                                                                 \
            found = _mm512_or_si512(found, _mm512_maskz_mov_epi##BITS((MASK)(~kept >> i), _mm512_loadu_si512(at)));    \
        return _mm512_test_epi64_mask(found, found) != 0;                                                              \
    }

WIDTH(1, 8, 64, __mmask64)
WIDTH(2, 16, 32, __mmask32)
WIDTH(4, 32, 16, __mmask16)
WIDTH(8, 64, 8, __mmask8)

#endif

typedef uint64_t long_lanes __attribute__((vector_size(VECTOR_BYTES)));

/* The word of bits is repeated in every lane: AND with the entry's own bit, and compare. Entries wider than a lane, of
 * which narrow instruction sets compare but 4 bytes, take several. */
#define WIDTH_IN_LANES(W, TYPE)                                                                                        \
    typedef TYPE lanes_##W __attribute__((vector_size(VECTOR_BYTES)));                                                 \
    typedef TYPE loose_lanes_##W __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));                    \
    static inline lanes_##W mask_##W(uint64_t kept) {                                                                  \
        lanes_##W own;                                                                                                 \
        for (size_t i = 0; i < VECTOR_BYTES / sizeof(TYPE); i++)                                                       \
            own[i] = (TYPE)1 << (i * sizeof(TYPE) / W);                                                                \
        return (lanes_##W)((((TYPE)kept - (lanes_##W){0}) & own) == own);                                              \
    }                                                                                                                  \
    static inline void fill_##W(char *at, uint64_t kept, uint64_t value) {                                             \
        const lanes_##W filling = (lanes_##W)(value - (long_lanes){0});                                                \
        for (int i = 0; i < 64; i += VECTOR_BYTES / W, at += VECTOR_BYTES) {                                           \
            lanes_##W mask = mask_##W(kept >> i);                                                                      \
            *(loose_lanes_##W *)at = (*(loose_lanes_##W *)at & mask) | (filling & ~mask);                              \
        }                                                                                                              \
    }                                                                                                                  \
    static inline int seen_##W(const char *at, uint64_t kept) {                                                        \
        lanes_##W found = {0};                                                                                         \
        for (int i = 0; i < 64; i += VECTOR_BYTES / W, at += VECTOR_BYTES)                                             \
            found |= *(const loose_lanes_##W *)at & ~mask_##W(kept >> i);                                              \
        long_lanes halves = (long_lanes)found;                                                                         \
        uint64_t any = 0;                                                                                              \
        for (int i = 0; i < VECTOR_BYTES / 8; i++)                                                                     \
            any |= halves[i];                                                                                          \
        return any != 0;                                                                                               \
    }

WIDTH_IN_LANES(16, uint32_t)

#ifndef WITH_AVX512

WIDTH_IN_LANES(2, uint16_t)
WIDTH_IN_LANES(4, uint32_t)
WIDTH_IN_LANES(8, uint32_t)

/* Eight bits to eight bytes of ones or zeros: each bit alone in a byte, then 0x80 or 0, then 0xff or 0. */
static inline uint64_t mask_1(uint64_t kept) {
    uint64_t alone = (kept & 0xff) * 0x0101010101010101 & 0x8040201008040201;
    return ((alone + 0x7f7f7f7f7f7f7f7f) >> 7 & 0x0101010101010101) * 0xff;
}

static inline void fill_1(char *at, uint64_t kept, uint64_t value) {
    for (int i = 0; i < 64; i += 8) {
        uint64_t mask = mask_1(kept >> i);
        loose_word *entries = (loose_word *)(at + i);
        *entries = (*entries & mask) | (value & ~mask);
    }
}

static inline int seen_1(const char *at, uint64_t kept) {
    uint64_t found = 0;
    for (int i = 0; i < 64; i += 8)
        found |= *(const loose_word *)(at + i) & ~mask_1(kept >> i);
    return found != 0;
}

#endif

/* The last entries, fewer than a block: a block of their own, copied there and back. */
#define RANGES(W)                                                                                                        \
    static void fill_end_##W(char *at, uint64_t kept, int64_t count, uint64_t value) {                                 \
        char block[64 * W] = {0};                                                                                      \
        memcpy(block, at, (size_t)count * W);                                                                          \
        fill_##W(block, kept, value);                                                                                  \
        memcpy(at, block, (size_t)count * W);                                                                          \
    }                                                                                                                  \
    static int seen_end_##W(const char *at, uint64_t kept, int64_t count) {                                            \
        char block[64 * W] = {0};                                                                                      \
        memcpy(block, at, (size_t)count * W);                                                                          \
        return seen_##W(block, kept);                                                                                  \
    }                                                                                                                  \
    static inline void fill_blocks_##W(char *at, const char *bits, int64_t first, int64_t last, int64_t count,         \
                                       uint64_t value) {                                                               \
        int64_t whole = count / 64;                                                                                    \
        for (int64_t i = first; i < last && i < whole; i++)                                                            \
            fill_##W(at + 64 * W * i, word(bits, i), value);                                                           \
        if (first <= whole && whole < last && count % 64)                                                              \
            fill_end_##W(at + 64 * W * whole, word(bits, whole), count % 64, value);                                   \
    }                                                                                                                  \
    static int seen_blocks_##W(const char *at, const char *bits, int64_t first, int64_t last, int64_t count) {         \
        int64_t whole = count / 64;                                                                                    \
        for (int64_t i = first; i < last && i < whole; i++)                                                            \
            if (seen_##W(at + 64 * W * i, word(bits, i)))                                                              \
                return 1;                                                                                              \
        return first <= whole && whole < last && count % 64 &&                                                         \
               seen_end_##W(at + 64 * W * whole, word(bits, whole), count % 64);                                       \
    }

RANGES(1)
RANGES(2)
RANGES(4)
RANGES(8)
RANGES(16)

/* A tensor without gaps, as a row of int64: where its entries and its bits begin, entries, bytes an entry. */
typedef struct {
    char *entries;
    const char *bits;
    int64_t count;
    int64_t width;
} job;

enum { PIECE = 1 << 9 }; /* blocks that a thread takes at a time */

static inline __attribute__((always_inline)) void fill_blocks(const job *of, int64_t first, uint64_t value) {
    int64_t last = first + PIECE;
    switch (of->width) {
    case 1: fill_blocks_1(of->entries, of->bits, first, last, of->count, value); break;
    case 2: fill_blocks_2(of->entries, of->bits, first, last, of->count, value); break;
    case 4: fill_blocks_4(of->entries, of->bits, first, last, of->count, value); break;
    case 8: fill_blocks_8(of->entries, of->bits, first, last, of->count, value); break;
    default: fill_blocks_16(of->entries, of->bits, first, last, of->count, value);
    }
}

/* Zero the masked entries of some tensors. */
EXPORT void NAME(clear)(const job *jobs, int64_t number, int threads) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < number; i++)
        bytes += jobs[i].count * jobs[i].width;
    threads = threads_for(0.04 * (double)bytes, threads);
    (void)threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < number; i++) {
#pragma omp for nowait
        for (int64_t first = 0; first < (jobs[i].count + 63) / 64; first += PIECE)
            fill_blocks(jobs + i, first, 0);
    }
}

/* Give the masked entries of one tensor a value, which comes repeated to 8 bytes. */
EXPORT void NAME(fill)(const job *of, uint64_t value) {
    for (int64_t first = 0; first < (of->count + 63) / 64; first += PIECE)
        fill_blocks(of, first, value);
}

static int is_seen(const job *of, int64_t first, int64_t last) {
    switch (of->width) {
    case 1: return seen_blocks_1(of->entries, of->bits, first, last, of->count);
    case 2: return seen_blocks_2(of->entries, of->bits, first, last, of->count);
    case 4: return seen_blocks_4(of->entries, of->bits, first, last, of->count);
    case 8: return seen_blocks_8(of->entries, of->bits, first, last, of->count);
    default: return seen_blocks_16(of->entries, of->bits, first, last, of->count);
    }
}

/* Whether the masked ones among the entries of some blocks are zero, in each of some tensors. */
EXPORT int NAME(is_clear)(const job *jobs, int64_t number, int64_t first, int64_t last) {
    for (int64_t i = 0; i < number; i++)
        if (is_seen(jobs + i, first, last))
            return 0;
    return 1;
}

/* How many of the bits of some words are set. */
EXPORT int64_t NAME(count_bits)(const char *bits, int64_t words) {
    int64_t found = 0;
    for (int64_t i = 0; i < words; i++)
        found += __builtin_popcountll(word(bits, i));
    return found;
}
