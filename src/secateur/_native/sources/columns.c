/* y = x W^T + bias for a sparse W: activations are packed and multiplied a tile of rows of x at a time. */

#include "columns.h"

/* ---- one cell ---- */

#define ALWAYS static inline __attribute__((always_inline))

/* A bfloat16 value in all lanes: it is the upper half of a float. */
ALWAYS vector spread_half(const uint16_t *from) {
#ifdef WITH_AVX512
    return (vector)_mm512_maskz_set1_epi16(0xaaaaaaaa, (short)*from);
#else
    uint32_t bits = (uint32_t)*from << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return spread(value);
#endif
}

/* The value of a number in all lanes. */
ALWAYS vector spread_value(const void *values, int64_t number, const int is_half) {
    return is_half ? spread_half((const uint16_t *)values + number) : spread(((const float *)values)[number]);
}

ALWAYS void add_product(vector *sum, vector weight, const float *from, const int number) {
    for (int j = 0; j < number; j++)
        sum[j] += weight * load(from + LANES * j);
}

/* Inlined with constant `units` and `is_half`, so that all sums of a row stay in registers. */
ALWAYS void add_entries(const struct columns *matrix, const int64_t *start, const float *x, float *sums,
                        const int units, const int is_half) {
    const int positions = units * UNIT, number = positions / LANES;
    const uint16_t *column = matrix->columns;
    int64_t i = start[1];
    for (int64_t entry = start[0]; entry < start[2]; entry++) {
        float *row = sums + (int64_t)matrix->rows[entry] * positions;
        int64_t end = i + matrix->counts[entry];
        vector sum[WIDEST / LANES], other[WIDEST / LANES];
        for (int j = 0; j < number; j++) {
            sum[j] = load(row + LANES * j);
            other[j] = (vector){0};
        }
        if (number <= 2) /* Few sums wait for each other, so there are twice as many. */
            for (; i + 1 < end; i += 2) {
                add_product(sum, spread_value(matrix->values, i, is_half), x + column[i] * (int64_t)positions, number);
                add_product(other, spread_value(matrix->values, i + 1, is_half),
                            x + column[i + 1] * (int64_t)positions, number);
            }
        for (; i < end; i++)
            add_product(sum, spread_value(matrix->values, i, is_half), x + column[i] * (int64_t)positions, number);
        for (int j = 0; j < number; j++)
            store(row + LANES * j, number <= 2 ? sum[j] + other[j] : sum[j]);
    }
}

ALWAYS void add_values(const struct columns *matrix, const int64_t *start, const float *x, float *sums,
                       const int units) {
    if (matrix->is_half)
        add_entries(matrix, start, x, sums, units, 1);
    else
        add_entries(matrix, start, x, sums, units, 0);
}

void NAME(add_cell)(const struct columns *matrix, int64_t panel, int64_t block, int64_t positions, const float *x,
                    float *sums) {
    int64_t blocks = parts_of(matrix->inputs, matrix->width);
    const int64_t *start = matrix->starts + 2 * (panel * blocks + block);
    switch (positions / UNIT) {
    case 1:
        add_values(matrix, start, x, sums, 1);
        break;
    case 2:
        add_values(matrix, start, x, sums, 2);
        break;
#if VECTOR_BYTES > 16
    case 3:
        add_values(matrix, start, x, sums, 3);
        break;
    case 4:
        add_values(matrix, start, x, sums, 4);
        break;
#endif
    }
}

void NAME(begin_panel)(const struct columns *matrix, int64_t panel, int64_t positions, float *sums) {
    int64_t first = panel * matrix->panel, rows = least(matrix->panel, matrix->outputs - first);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < positions; i += LANES)
            store(sums + row * positions + i, spread(matrix->bias ? matrix->bias[first + row] : 0.0f));
}

/* ---- between [row][feature] and [feature][row] ---- */

/* The lanes of two registers in turn: a0 b0 a1 b1 ..., the first half of them or the second. */
#if defined(WITH_AVX512)
ALWAYS vector first_half(vector a, vector b) {
    const __m512i from = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return (vector)_mm512_permutex2var_ps((__m512)a, from, (__m512)b);
}
ALWAYS vector second_half(vector a, vector b) {
    const __m512i from = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return (vector)_mm512_permutex2var_ps((__m512)a, from, (__m512)b);
}
#elif defined(WITH_AVX2)
ALWAYS vector first_half(vector a, vector b) {
    __m256 low = _mm256_unpacklo_ps((__m256)a, (__m256)b), high = _mm256_unpackhi_ps((__m256)a, (__m256)b);
    return (vector)_mm256_permute2f128_ps(low, high, 0x20);
}
ALWAYS vector second_half(vector a, vector b) {
    __m256 low = _mm256_unpacklo_ps((__m256)a, (__m256)b), high = _mm256_unpackhi_ps((__m256)a, (__m256)b);
    return (vector)_mm256_permute2f128_ps(low, high, 0x31);
}
#else
ALWAYS vector first_half(vector a, vector b) { return (vector){a[0], b[0], a[1], b[1]}; }
ALWAYS vector second_half(vector a, vector b) { return (vector){a[2], b[2], a[3], b[3]}; }
#endif

/* Transpose a square of registers: each round halves the distance of lanes that end up beside each other. */
ALWAYS void transpose(vector *square) {
    for (int distance = 1; distance < LANES; distance *= 2) {
        vector next[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            next[2 * i] = first_half(square[i], square[i + LANES / 2]);
            next[2 * i + 1] = second_half(square[i], square[i + LANES / 2]);
        }
        for (int i = 0; i < LANES; i++)
            square[i] = next[i];
    }
}

ALWAYS vector load_some(const float *from, int64_t count) {
    float lanes[LANES] = {0};
    memcpy(lanes, from, (size_t)count * sizeof(float));
    return load(lanes);
}

ALWAYS void store_some(float *to, vector value, int64_t count) {
    float lanes[LANES];
    store(lanes, value);
    memcpy(to, lanes, (size_t)count * sizeof(float));
}

/* x, [row][input] with `rows` of at most `positions` rows, to [input][position]; positions without a row are zero. */
static void pack_rows(const float *x, int64_t rows, int64_t inputs, int64_t positions, float *packed) {
    for (int64_t row = 0; row < positions; row += LANES)
        for (int64_t input = 0; input < inputs; input += LANES) {
            int64_t count = least(LANES, inputs - input);
            vector square[LANES];
            for (int i = 0; i < LANES; i++) {
                const float *from = x + (row + i) * inputs + input;
                square[i] = row + i >= rows ? (vector){0} : count == LANES ? load(from) : load_some(from, count);
            }
            transpose(square);
            for (int i = 0; i < LANES; i++)
                store(packed + (input + i) * positions + row, square[i]);
        }
}

/* Sums of a panel, [output][position], to y, [row][output], whose rows are `pitch` apart. */
static void unpack_sums(const float *sums, int64_t rows, int64_t outputs, int64_t positions, int64_t relu, float *y,
                        int64_t pitch) {
    for (int64_t row = 0; row < rows; row += LANES)
        for (int64_t output = 0; output < outputs; output += LANES) {
            int64_t count = least(LANES, outputs - output);
            vector square[LANES];
            for (int i = 0; i < LANES; i++) {
                vector sum = i < count ? load(sums + (output + i) * positions + row) : (vector){0};
                square[i] = relu ? rectified(sum) : sum;
            }
            transpose(square);
            for (int i = 0; i < LANES && row + i < rows; i++) {
                float *to = y + (row + i) * pitch + output;
                if (count == LANES)
                    store(to, square[i]);
                else
                    store_some(to, square[i], count);
            }
        }
}

/* ---- the product ---- */

/* Some rows of x with the panels from `first` to `end`. `packed` holds x, and behind it are the sums of a panel. */
static void multiply_tile(const struct columns *matrix, const float *x, float *y, int64_t rows, int64_t first,
                          int64_t end, float *packed, float *sums) {
    int64_t positions = whole(rows, UNIT), blocks = parts_of(matrix->inputs, matrix->width);
    pack_rows(x, rows, matrix->inputs, positions, packed);
    for (int64_t panel = first; panel < end; panel++) {
        int64_t output = panel * matrix->panel, outputs = least(matrix->panel, matrix->outputs - output);
        NAME(begin_panel)(matrix, panel, positions, sums);
        for (int64_t block = 0; block < blocks; block++)
            NAME(add_cell)(matrix, panel, block, positions, packed + block * matrix->width * positions, sums);
        unpack_sums(sums, rows, outputs, positions, matrix->relu, y + output, matrix->outputs);
    }
}

/* x (rows, inputs) to y (rows, outputs). Not 0: there is no memory for the packed activations. */
EXPORT int NAME(multiply_columns)(const void *given, const float *x, float *y, int64_t rows, int threads) {
    const struct columns *matrix = given;
    int64_t panels = parts_of(matrix->outputs, matrix->panel), tiles = parts_of(rows, WIDEST);
    int64_t blocks = parts_of(matrix->inputs, matrix->width), values = matrix->starts[2 * panels * blocks + 1];
    int64_t positions = least(whole(rows, UNIT), WIDEST);
    int64_t size_packed = whole(matrix->inputs, LANES) * positions, size_sums = matrix->panel * positions;
    threads = threads_for(0.02 * (double)values * (double)whole(rows, UNIT), threads);
    int64_t parts = divisions(tiles, panels, threads), pieces = tiles * parts;
    threads = (int)least(threads, pieces > 1 ? pieces : 1);
    float *scratch = lines(threads * (size_packed + size_sums));
    if (!scratch)
        return 1;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t piece = 0; piece < pieces; piece++) {
        int64_t row = piece / parts * WIDEST, part = piece % parts;
        float *packed = scratch + thread_number() * (size_packed + size_sums);
        multiply_tile(matrix, x + row * matrix->inputs, y + row * matrix->outputs, least(WIDEST, rows - row),
                      panels * part / parts, panels * (part + 1) / parts, packed, packed + size_packed);
    }
    free(scratch);
    return 0;
}
