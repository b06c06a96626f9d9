/* The highest of each group of neighbouring scores, of equal ones the last: what N:M patterns keep.
 *
 * As many whole groups as fit into 64 scores are ranked together. For each distance all scores are compared with those at
 * that distance; the rank of an entry, how many of its group go before it, is counted in bits: digits[0] has the lowest
 * binary digit of all 64 ranks, digits[1] the next. */

#include "comparing.h"

enum { DIGITS = 6, LARGEST_GROUP = 63 };

/* Add one to the ranks at some places. */
static inline void count(uint64_t digits[DIGITS], uint64_t places) {
    for (int i = 0; i < DIGITS && places; i++) {
        uint64_t carry = digits[i] & places;
        digits[i] ^= places;
        places = carry;
    }
}

/* Where ranks are at least a number. */
static inline uint64_t reached(const uint64_t digits[DIGITS], int number) {
    uint64_t above = 0, same = ~(uint64_t)0;
    for (int i = DIGITS - 1; i >= 0; i--) {
        if (number >> i & 1) {
            same &= digits[i];
        } else {
            above |= same & digits[i];
            same &= ~digits[i];
        }
    }
    return above | same;
}

/* The kept ones among the first 64 scores from `at` on; there are 64 more behind them. `firsts[d]` has the places whose
 * partner at distance d is in the same group. */
static inline uint64_t kept_of(const float *at, const uint64_t *firsts, int size, int num_gone) {
    const struct reading as_it_is = {-1, 0};
    struct word word = word_at(at, NULL, 0, WORD, as_it_is);
    uint64_t digits[DIGITS] = {0};
    for (int d = 1; d < size; d++) {
        struct word partners = word_at(at + d, NULL, 0, WORD, as_it_is);
        uint64_t goes_first = up_to_each(&word, &partners);
        count(digits, (goes_first & firsts[d]) << d);
        count(digits, ~goes_first & firsts[d]);
    }
    return reached(digits, num_gone);
}

/* Mark the kept entries of each group with bytes of 1, all others with 0. `total` is a multiple of `size`, from 2 to
 * LARGEST_GROUP; no score is nan. */
EXPORT void NAME(keep_of_groups)(const float *scores, int64_t total, int size, int num_kept, uint8_t *marks,
                                 int threads) {
    int step = WORD / size * size;
    int64_t steps = (total + step - 1) / step;
    uint64_t firsts[WORD] = {0};
    for (int d = 1; d < size; d++)
        for (int i = 0; i < step; i++)
            firsts[d] |= (uint64_t)(i % size + d < size) << i;
    threads = threads_for(0.05 * size * (double)total, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < steps; i++) {
        int64_t start = i * step, left = total - start;
        float end[2 * WORD];
        const float *at = scores + start;
        if (left < 2 * WORD)
            at = memcpy(memset(end, 0, sizeof end), at, (size_t)left * sizeof(float));
        uint8_t bytes[WORD];
        scattered(kept_of(at, firsts, size, size - num_kept), bytes);
        memcpy(marks + start, bytes, (size_t)(left < step ? left : step));
    }
}
