/* Exactly the k lowest of many float scores, of equal ones the first: counted, or marked.
 *
 * As in secateur/_units.py, a sample tells two scores that most likely have the k-th lowest between them. One pass over
 * all scores tells which are below and takes out those that are open, about one in a hundred; the k-th lowest is found
 * among these, and they alone are looked at again. Tensors are cut into pieces of fixed size, each with counts and room
 * of its own, so that results do not depend on the number of threads. */

#include "comparing.h"

#include <math.h>
#include <stdlib.h>

enum { SIZES = 1, HIGHEST = 2, MASKED = 4, REST = 8 };
enum { FOUND = 0, NOT_FOUND = 1 };
enum { PIECE = 1 << 16, LARGEST_SAMPLE = 1 << 15, FEW = 1 << 12 };
static const double TIME = 0.2; /* nanoseconds that a score takes */

/* Part of a tensor.
 *
 * scores, kept, inverted, count: as they are given; see `word_at`.
 * lower_bits, open_bits: a bit an entry, chosen and open; NULL if nothing is to be marked.
 * open, num_open: the open scores, as they are read, in the order of their positions.
 * lower, equal: how many scores are chosen for certain; in the end, how many are below the k-th lowest, and equal. */
struct piece {
    const float *scores;
    const uint8_t *kept;
    uint64_t inverted;
    int64_t count;
    uint64_t *lower_bits, *open_bits;
    float *open;
    int64_t num_open, lower, equal;
};

static const struct reading AS_IT_IS = {-1, 0};

/* ---- a score by its rank */

/* Integers in the order of the floats; -0.0 is lower than 0.0, to which it is equal all the same. */
static inline uint32_t ordered(float score) {
    uint32_t bits;
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline float unordered(uint32_t order) {
    uint32_t bits = order & 0x80000000u ? order ^ 0x80000000u : ~order;
    float score;
    memcpy(&score, &bits, sizeof bits);
    return score;
}

/* The open score of a rank, from 0: by its bits, eleven at a time. */
static float ranked(const struct piece *pieces, int64_t number, int64_t rank) {
    static const int shifts[] = {21, 10, 0}, widths[] = {11, 11, 10};
    uint32_t prefix = 0, known = 0;
    for (int round = 0; round < 3; round++) {
        int64_t numbers[1 << 11] = {0};
        uint32_t last = (1u << widths[round]) - 1, bin = 0;
        for (int64_t i = 0; i < number; i++)
            for (int64_t j = 0; j < pieces[i].num_open; j++) {
                uint32_t order = ordered(pieces[i].open[j]);
                numbers[order >> shifts[round] & last] += (order & known) == prefix;
            }
        while (bin < last && rank >= numbers[bin])
            rank -= numbers[bin++];
        prefix |= bin << shifts[round];
        known |= last << shifts[round];
    }
    return unordered(prefix);
}

/* ---- a guess */

/* A number in [0, 1) that looks random. */
static inline double mixed(uint64_t value) {
    value = (value + 1) * 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 32) * 0xd6e8feb86659fd93u;
    return (double)((value ^ value >> 32) >> 11) * 0x1p-53;
}

/* Look at `wanted` of all scores, one out of each stretch of equal length; returns how many of them may be chosen. */
static int64_t sample_of(const struct piece *pieces, int64_t total, int64_t wanted, struct reading how, float *sample) {
    int64_t start = 0, taken = 0;
    for (int64_t i = 0; i < wanted; i++) {
        int64_t place = (int64_t)(((double)i + mixed((uint64_t)i)) / (double)wanted * (double)total);
        place = place < total ? place : total - 1;
        for (; place >= start + pieces->count; pieces++)
            start += pieces->count;
        float score = read_float(pieces->scores[place - start], how);
        int may = !pieces->kept || pieces->kept[place - start] != (pieces->inverted & 1);
        sample[taken] = score;
        taken += may && score == score;
    }
    return taken;
}

struct bounds {
    float low, high;
};

/* Two scores that most likely have the k-th lowest between them. */
static struct bounds guess(const struct piece *pieces, int64_t total, int64_t k, struct reading how, float *room) {
    struct bounds at = {-INFINITY, INFINITY};
    if (total <= FEW)
        return at;
    int64_t wanted = (int64_t)pow((double)total, 2.0 / 3);
    wanted = wanted < LARGEST_SAMPLE ? wanted : LARGEST_SAMPLE;
    struct piece sample = {.open = room, .num_open = sample_of(pieces, total, wanted, how, room)};
    double share = (double)k / (double)total, rank = share * (double)wanted, taken = (double)sample.num_open;
    double margin = 4 * (sqrt(rank * (1 - share)) + 1); /* four standard deviations */
    if (rank >= margin && rank - margin < taken)
        at.low = ranked(&sample, 1, (int64_t)(rank - margin));
    if (rank + margin < taken)
        at.high = ranked(&sample, 1, (int64_t)(rank + margin));
    return at;
}

/* ---- passes */

/* Tell which scores of a piece are below two bounds, and take out those that are not beyond either. Returns whether
 * there is a nan, may it be chosen or not. */
static int sift(struct piece *piece, struct bounds at, struct reading how) {
    float *to = piece->open;
    int64_t num_lower = 0;
    uint64_t nan = 0;
    for (int64_t i = 0; i < piece->count; i += WORD) {
        const uint8_t *kept = piece->kept ? piece->kept + i : NULL;
        struct word word = word_at(piece->scores + i, kept, piece->inverted, piece->count - i, how);
        uint64_t lower = less(&word, at.low) & word.may, open = up_to(&word, at.high) & word.may & ~lower;
        nan |= ~up_to(&word, INFINITY);
        num_lower += __builtin_popcountll(lower);
        if (piece->lower_bits) {
            piece->lower_bits[i / WORD] = lower;
            piece->open_bits[i / WORD] = open;
        }
        if (open)
            to = append(to, &word, open);
    }
    piece->lower = num_lower;
    piece->num_open = to - piece->open;
    return nan != 0;
}

/* Count the open scores that are below a score, and those that are equal to it. */
static void settle(struct piece *piece, float score) {
    int64_t lower = 0, equal = 0;
    for (int64_t i = 0; i < piece->num_open; i++) {
        lower += piece->open[i] < score;
        equal += piece->open[i] == score;
    }
    piece->lower += lower;
    piece->equal = equal;
}

/* Mark the entries of a piece that are chosen: the certain ones, and of the open ones those below a score and the first
 * `equal` of those equal to it. */
static void mark(const struct piece *piece, float score, int64_t equal, uint64_t inverted, uint8_t *marks) {
    const float *next = piece->open;
    for (int64_t i = 0; i < piece->count; i += WORD) {
        uint64_t chosen = piece->lower_bits[i / WORD], open = piece->open_bits[i / WORD];
        if (open) {
            int number = __builtin_popcountll(open);
            struct word word = word_at(next, NULL, 0, number, AS_IT_IS);
            uint64_t lower = less(&word, score) & word.may;
            uint64_t same = first_of(up_to(&word, score) & word.may & ~lower, equal);
            equal -= __builtin_popcountll(same);
            chosen |= deposited(lower | same, open);
            next += number;
        }
        uint8_t bytes[WORD];
        int64_t left = piece->count - i;
        scattered(chosen ^ inverted, left < WORD ? bytes : marks + i);
        if (left < WORD)
            memcpy(marks + i, bytes, (size_t)left);
    }
}

static int sift_all(struct piece *pieces, int64_t number, struct bounds at, struct reading how, int threads) {
    int nan = 0;
    (void)threads;
#pragma omp parallel for num_threads(threads) if (threads > 1) reduction(| : nan)
    for (int64_t i = 0; i < number; i++)
        nan |= sift(&pieces[i], at, how);
    return nan;
}

/* Find the k-th lowest score of all pieces together, and how many of each are lower and equal. */
static int find_cut(struct piece *pieces, int64_t number, int64_t total, int64_t k, struct reading how, int threads,
                    float *room, float *score) {
    struct bounds at = guess(pieces, total, k, how, room);
    for (;;) {
        if (sift_all(pieces, number, at, how, threads))
            return NOT_FOUND;
        int64_t lower = 0, open = 0;
        for (int64_t i = 0; i < number; i++)
            lower += pieces[i].lower, open += pieces[i].num_open;
        if (k > lower && k <= lower + open) {
            *score = at.low == at.high ? at.low : ranked(pieces, number, k - lower - 1);
            break;
        }
        if (k > lower && at.high == INFINITY)
            return NOT_FOUND; /* there are not so many */
        at = k <= lower ? (struct bounds){-INFINITY, at.low} : (struct bounds){at.high, INFINITY}; /* certain bounds */
    }
    for (int64_t i = 0; i < number; i++)
        settle(&pieces[i], *score);
    return FOUND;
}

/* ---- tensors */

static struct reading reading_of(int flags) {
    return (struct reading){flags & SIZES ? INT32_MAX : -1, flags & HIGHEST ? INT32_MIN : 0};
}

static int64_t pieces_in(int64_t size) { return (size + PIECE - 1) / PIECE; }

/* The pieces of some tensors, with room for open scores and for a sample after them; NULL without memory. A piece has
 * 64 floats more than it needs, since `append` writes whole vectors. */
static struct piece *cut_up(const float *const *scores, const int64_t *sizes, int64_t number, int64_t *num_pieces,
                            int64_t *total, float **room) {
    *total = *num_pieces = 0;
    for (int64_t i = 0; i < number; i++)
        *total += sizes[i], *num_pieces += pieces_in(sizes[i]);
    size_t floats = (size_t)(*total + WORD * *num_pieces) + LARGEST_SAMPLE;
    struct piece *pieces = malloc((size_t)*num_pieces * sizeof(struct piece) + floats * sizeof(float));
    if (!pieces)
        return NULL;
    struct piece *next = pieces;
    *room = (float *)(pieces + *num_pieces);
    float *open = *room + LARGEST_SAMPLE;
    for (int64_t i = 0; i < number; i++)
        for (int64_t start = 0; start < sizes[i]; start += PIECE, next++) {
            int64_t count = sizes[i] - start < PIECE ? sizes[i] - start : PIECE;
            *next = (struct piece){.scores = scores[i] + start, .count = count, .open = open};
            open += count + WORD;
        }
    return pieces;
}

/* How many of the k lowest scores of all tensors together are in each; of equal ones the first are taken. Returns 0, or
 * 1 if there is a nan, no memory, or less than k scores. */
EXPORT int NAME(lowest_counts)(const float *const *scores, const int64_t *sizes, int64_t number, int64_t k,
                               int64_t *counts, int threads) {
    int64_t num_pieces, total, left = k;
    float *room, score;
    struct piece *pieces = cut_up(scores, sizes, number, &num_pieces, &total, &room), *piece = pieces;
    if (!pieces)
        return NOT_FOUND;
    threads = threads_for(TIME * (double)total, threads);
    int failed = find_cut(pieces, num_pieces, total, k, reading_of(0), threads, room, &score);
    for (int64_t i = 0; i < num_pieces; i++)
        left -= pieces[i].lower;
    for (int64_t i = 0; i < number && !failed; i++) {
        counts[i] = 0;
        for (int64_t j = 0; j < pieces_in(sizes[i]); j++, piece++) {
            int64_t equal = piece->equal < left ? piece->equal : left;
            counts[i] += piece->lower + equal;
            left -= equal;
        }
    }
    free(pieces);
    return failed;
}

/* Mark the k lowest scores of a tensor with bytes of 1, all others with 0; of equal ones the first are taken.
 *
 * `kept`: bytes of 0 and 1, those of 1 may be chosen; NULL: all. `flags`: SIZES, of absolute values; HIGHEST, the
 * highest instead; MASKED, those of 0 may be chosen; REST, 0 and 1 of the marks are swapped. Returns as above. */
EXPORT int NAME(choose)(const float *scores, const uint8_t *kept, int64_t size, int64_t k, int flags, uint8_t *marks,
                        int threads) {
    int64_t num_pieces, total, left = k, words = (size + WORD - 1) / WORD;
    float *room, score;
    struct reading how = reading_of(flags);
    struct piece *pieces = cut_up(&scores, &size, 1, &num_pieces, &total, &room);
    uint64_t *bits = malloc((size_t)(2 * words) * sizeof(uint64_t));
    if (!pieces || !bits) {
        free(pieces);
        free(bits);
        return NOT_FOUND;
    }
    for (int64_t i = 0; i < num_pieces; i++) {
        pieces[i].kept = kept ? kept + i * PIECE : NULL;
        pieces[i].inverted = flags & MASKED ? ~(uint64_t)0 : 0;
        pieces[i].lower_bits = bits + i * (PIECE / WORD);
        pieces[i].open_bits = pieces[i].lower_bits + words;
    }
    threads = threads_for(TIME * (double)size, threads);
    int failed = find_cut(pieces, num_pieces, total, k, how, threads, room, &score);
    for (int64_t i = 0; i < num_pieces; i++)
        left -= pieces[i].lower;
    for (int64_t i = 0; i < num_pieces; i++) { /* from now on `equal` are those that are chosen */
        pieces[i].equal = pieces[i].equal < left ? pieces[i].equal : left;
        left -= pieces[i].equal;
    }
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < (failed ? 0 : num_pieces); i++)
        mark(&pieces[i], score, pieces[i].equal, flags & REST ? ~(uint64_t)0 : 0, marks + i * PIECE);
    free(bits);
    free(pieces);
    return failed;
}
