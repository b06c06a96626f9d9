/* Masked entries become zero: packed bits AND the words that weights are made of. */

#include "secateur.h"

/* Clear the masked entries of 4-byte words. `bits` has one bit an entry, the first in the lowest bit, and is padded to
 * whole 8 bytes. AND, not a product: inf and nan become 0, too, and -0.0 becomes 0.0. */
static void clear_words(uint32_t *words, const uint64_t *bits, int64_t count) {
    int64_t whole = count / 64;
    for (int64_t i = 0; i < whole; i++) {
        uint64_t kept = bits[i];
        uint32_t *at = words + 64 * i;
#ifdef WITH_AVX512
        for (int part = 0; part < 4; part++) {
            __m512i value = _mm512_maskz_loadu_epi32((__mmask16)(kept >> (16 * part)), at + 16 * part);
            _mm512_storeu_si512(at + 16 * part, value);
        }
#else
        for (int j = 0; j < 64; j++)
            at[j] &= -(uint32_t)((kept >> j) & 1);
#endif
    }
    for (int64_t j = 64 * whole; j < count; j++)
        words[j] &= -(uint32_t)((bits[j / 64] >> (j % 64)) & 1);
}

/* The same for a list of tensors in one call. */
EXPORT void NAME(clear32)(uint32_t *const *words, const uint64_t *const *bits, const int64_t *counts, int64_t number,
                          int threads) {
    int64_t all = 0;
    for (int64_t i = 0; i < number; i++)
        all += counts[i];
    threads = threads_for(0.15 * (double)all, threads);
    (void)threads;
    for (int64_t i = 0; i < number; i++)
        clear_words(words[i], bits[i], counts[i]);
}
