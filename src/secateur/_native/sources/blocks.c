/* A sparse weight in blocks of 16 consecutive outputs that share a column.
 *
 * Outputs are taken 16 at a time (a group); a group has a list of columns and, for each, 16 weights that follow each
 * other. One row of x: each block is 16 products with one entry of x. More rows: a tile of x is turned around, so that
 * the entries of one column lie together, and each block is multiplied with its column of the tile; all sums stay in
 * registers. */

#include <stdlib.h>

#include "secateur.h"

enum { GROUP = 16, VECTORS = GROUP / LANES };

#ifdef WITH_AVX512
enum { TILE = 16 };
#elif defined WITH_AVX2
enum { TILE = 4 };
#else
enum { TILE = 2 };
#endif

struct blocks_weight {
    const void *values;    /* float, or bfloat16, [blocks][GROUP] */
    const void *columns;   /* uint16_t, or int32_t, [blocks] */
    const int64_t *starts; /* [groups + 1]: first block of each group */
    const float *bias;     /* [groups][GROUP] */
    int64_t outputs, inputs, groups;
    int32_t is_bfloat16, is_wide, relu;
};

typedef uint16_t half_vector __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));
typedef uint32_t bits_vector __attribute__((vector_size(VECTOR_BYTES)));

/* As many values of a block as a vector holds. */
static inline __attribute__((always_inline)) vector values_at(const struct blocks_weight *weight, int64_t at,
                                                              int is_bfloat16) {
    if (!is_bfloat16)
        return load((const float *)weight->values + at);
    half_vector halves = *(const half_vector *)((const uint16_t *)weight->values + at);
    return (vector)(__builtin_convertvector(halves, bits_vector) << 16);
}

static inline __attribute__((always_inline)) int64_t column_at(const struct blocks_weight *weight, int64_t block,
                                                               int is_wide) {
    return is_wide ? ((const int32_t *)weight->columns)[block] : ((const uint16_t *)weight->columns)[block];
}

/* Write the sums of one group and row; of the last group, perhaps only some. */
static inline void finish(const struct blocks_weight *weight, int64_t group, const vector *sums, float *y) {
    int64_t count = weight->outputs - group * GROUP;
    float all[GROUP];
    float *to = count < GROUP ? all : y + group * GROUP;
    for (int i = 0; i < VECTORS; i++) {
        vector sum = sums[i] + load(weight->bias + group * GROUP + i * LANES);
        if (weight->relu)
            sum = (vector)((bits_vector)sum & ~(bits_vector)(sum < (vector){0}));
        store(to + i * LANES, sum);
    }
    if (count < GROUP)
        memcpy(y + group * GROUP, all, (size_t)count * sizeof(float));
}

/* One group, one row of x; consecutive blocks go to different sums, so that they do not wait for each other. */
static inline __attribute__((always_inline)) void one_row(const struct blocks_weight *weight, int64_t group,
                                                          const float *x, float *y, int is_bfloat16, int is_wide) {
    enum { CHAINS = 4 };
    vector sums[CHAINS][VECTORS] = {{{0}}};
    int64_t block = weight->starts[group], end = weight->starts[group + 1];
    for (; block + CHAINS <= end; block += CHAINS)
        for (int chain = 0; chain < CHAINS; chain++) {
            vector entry = spread(x[column_at(weight, block + chain, is_wide)]);
            for (int i = 0; i < VECTORS; i++)
                sums[chain][i] += entry * values_at(weight, (block + chain) * GROUP + i * LANES, is_bfloat16);
        }
    for (; block < end; block++) {
        vector entry = spread(x[column_at(weight, block, is_wide)]);
        for (int i = 0; i < VECTORS; i++)
            sums[0][i] += entry * values_at(weight, block * GROUP + i * LANES, is_bfloat16);
    }
    for (int i = 0; i < VECTORS; i++)
        sums[0][i] = (sums[0][i] + sums[1][i]) + (sums[2][i] + sums[3][i]);
    finish(weight, group, sums[0], y);
}

/* One group, `height` rows of x that are turned around: turned[inputs][height]. The first `rows` are written. */
static inline __attribute__((always_inline)) void tile_rows(const struct blocks_weight *weight, int64_t group,
                                                            const float *turned, int height, float *y, int64_t rows,
                                                            int is_bfloat16, int is_wide) {
    vector sums[TILE][VECTORS];
    for (int row = 0; row < height; row++)
        for (int i = 0; i < VECTORS; i++)
            sums[row][i] = (vector){0};
    for (int64_t block = weight->starts[group]; block < weight->starts[group + 1]; block++) {
        const float *entries = turned + column_at(weight, block, is_wide) * height;
        vector values[VECTORS];
        for (int i = 0; i < VECTORS; i++)
            values[i] = values_at(weight, block * GROUP + i * LANES, is_bfloat16);
        for (int row = 0; row < height; row++)
            for (int i = 0; i < VECTORS; i++)
                sums[row][i] += spread(entries[row]) * values[i];
    }
#pragma GCC unroll 16
    for (int row = 0; row < height; row++)
        if (row < rows)
            finish(weight, group, sums[row], y + row * weight->outputs);
}

#ifdef WITH_AVX512
/* Turn 16 x 16 floats around in registers. */
static inline void turn_square(__m512 *rows) {
    __m512 half[16];
    for (int i = 0; i < 16; i += 2) {
        half[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
        half[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            __m512d upper = _mm512_castps_pd(half[i + j]), lower = _mm512_castps_pd(half[i + j + 2]);
            rows[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(upper, lower));
            rows[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(upper, lower));
        }
    /* Now quarter q of rows[4 i + j] is column 4 q + j of rows 4 i to 4 i + 3. */
    for (int j = 0; j < 4; j++) {
        __m512 even[2], odd[2];
        for (int i = 0; i < 2; i++) {
            even[i] = _mm512_shuffle_f32x4(rows[8 * i + j], rows[8 * i + j + 4], 0x88);
            odd[i] = _mm512_shuffle_f32x4(rows[8 * i + j], rows[8 * i + j + 4], 0xdd);
        }
        half[j] = _mm512_shuffle_f32x4(even[0], even[1], 0x88);
        half[j + 4] = _mm512_shuffle_f32x4(odd[0], odd[1], 0x88);
        half[j + 8] = _mm512_shuffle_f32x4(even[0], even[1], 0xdd);
        half[j + 12] = _mm512_shuffle_f32x4(odd[0], odd[1], 0xdd);
    }
    memcpy(rows, half, sizeof half);
}

/* turned[inputs][height] = x[rows][inputs], zeros where there are fewer rows. `turned` has room for
 * inputs rounded up to whole 16. */
static inline __attribute__((always_inline)) void turn(const float *x, int64_t inputs, int64_t rows, int height,
                                                       float *turned) {
    for (int64_t column = 0; column < inputs; column += 16) {
        int64_t width = inputs - column < 16 ? inputs - column : 16;
        __mmask16 within = (__mmask16)(0xffff >> (16 - width));
        __m512 square[16];
        for (int row = 0; row < 16; row++)
            square[row] = row < rows ? _mm512_maskz_loadu_ps(within, x + row * inputs + column) : _mm512_setzero_ps();
        turn_square(square);
        float *to = turned + column * height;
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++, to += height)
            if (height == 16)
                _mm512_storeu_ps(to, square[i]);
            else if (height == 8)
                _mm256_storeu_ps(to, _mm512_castps512_ps256(square[i]));
            else
                _mm_storeu_ps(to, _mm512_castps512_ps128(square[i]));
    }
}
#else
static inline __attribute__((always_inline)) void turn(const float *x, int64_t inputs, int64_t rows, int height,
                                                       float *turned) {
    for (int64_t column = 0; column < inputs; column++)
        for (int row = 0; row < height; row++)
            turned[column * height + row] = row < rows ? x[row * inputs + column] : 0.0f;
}
#endif

/* What one thread does at once: some groups for up to TILE rows, which it turns around first. */
struct piece {
    int64_t first, last;
    const float *x;
    float *turned, *y;
    int64_t rows;
};

static inline __attribute__((always_inline)) void groups_of(const struct blocks_weight *weight,
                                                            const struct piece *piece, int height, int is_bfloat16,
                                                            int is_wide) {
    for (int64_t group = piece->first; group < piece->last; group++)
        if (height == 1)
            one_row(weight, group, piece->x, piece->y, is_bfloat16, is_wide);
        else
            tile_rows(weight, group, piece->turned, height, piece->y, piece->rows, is_bfloat16, is_wide);
}

static inline __attribute__((always_inline)) void piece_of(const struct blocks_weight *weight,
                                                           const struct piece *piece, int height) {
    if (height > 1)
        turn(piece->x, weight->inputs, piece->rows, height, piece->turned);
    if (weight->is_bfloat16 && weight->is_wide)
        groups_of(weight, piece, height, 1, 1);
    else if (weight->is_bfloat16)
        groups_of(weight, piece, height, 1, 0);
    else if (weight->is_wide)
        groups_of(weight, piece, height, 0, 1);
    else
        groups_of(weight, piece, height, 0, 0);
}

static void any_piece(const struct blocks_weight *weight, const struct piece *piece) {
    if (piece->rows == 1)
        piece_of(weight, piece, 1);
    else if (TILE >= 16 && piece->rows <= TILE / 4)
        piece_of(weight, piece, TILE / 4);
    else if (TILE >= 4 && piece->rows <= TILE / 2)
        piece_of(weight, piece, TILE / 2);
    else
        piece_of(weight, piece, TILE);
}

/* The first group of a part: parts have as many blocks, as nearly as whole groups allow. */
static int64_t part_begins(const struct blocks_weight *weight, int64_t part, int64_t parts) {
    int64_t low = 0, high = weight->groups;
    int64_t wanted = weight->starts[high] / parts * part;
    while (part > 0 && low < high) {
        int64_t middle = (low + high) / 2;
        if (weight->starts[middle] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return part == parts ? weight->groups : low;
}

/* Piece `i` of a product whose tiles are each divided into `parts`. */
static void do_piece(const struct blocks_weight *weight, const float *x, float *y, int64_t rows, int64_t i,
                     int64_t parts, float *turned) {
    int64_t row = i / parts * TILE, part = i % parts;
    struct piece piece = {.first = part_begins(weight, part, parts),
                          .last = part_begins(weight, part + 1, parts),
                          .x = x + row * weight->inputs,
                          .turned = turned,
                          .y = y + row * weight->outputs,
                          .rows = rows - row < TILE ? rows - row : TILE};
    any_piece(weight, &piece);
}

/* y[rows][outputs] = x[rows][inputs] times the weight, plus the bias; 1 if there is no memory for it. */
EXPORT int NAME(blocks_product)(const void *given, const float *x, float *y, int64_t rows, int threads) {
    const struct blocks_weight *weight = given;
    threads = threads_for((double)weight->starts[weight->groups] * (0.6 + 0.19 * (double)rows), threads);
    int64_t tiles = (rows + TILE - 1) / TILE, parts = tiles % threads == 0 ? 1 : threads;
    size_t floats = (size_t)(weight->inputs / 16 + 1) * 16 * TILE;
    float *turned = rows > 1 ? aligned_alloc(64, floats * sizeof(float) * (size_t)threads) : NULL;
    if (rows > 1 && !turned)
        return 1;
    if (threads == 1)
        for (int64_t i = 0; i < tiles; i++)
            do_piece(weight, x, y, rows, i, 1, turned);
    else {
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < tiles * parts; i++)
            do_piece(weight, x, y, rows, i, parts, turned + (turned ? (size_t)thread_number() * floats : 0));
    }
    free(turned);
    return 0;
}
