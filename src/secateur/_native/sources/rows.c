/* A sparse weight with 16 outputs in the lanes of a vector, for a few rows of x at a time.
 *
 * Outputs are taken 16 at a time (a group). A step of a group holds 2 x 16 slots, two for each lane: values[2][16] and
 * indices[2][16], all of one window of WINDOW columns that begins at bases[step]: a slot stands for the weight of its
 * lane's output and of column bases[step] + index. Each step begins at the first column, rounded down to a line of the
 * cache, that a lane still waits for, and every lane gives its next two weights, if they are in the window. So lanes
 * with fewer weights run ahead, within the window, and few slots stay empty; those have value 0 and index 0, and no
 * other slot has value 0. The window of x is held in four registers, where vpermt2ps looks up 16 columns at once. */

#include "secateur.h"

enum { WINDOW = 64, GROUP = 16, TOGETHER = 4, NEIGHBOURS = 8 };

struct rows_weight {
    const void *values;       /* float, or bfloat16, [steps][2][GROUP] */
    const uint8_t *indices;   /* [steps][2][GROUP] */
    const int32_t *bases;     /* [steps]; at most inputs - WINDOW, or 0 */
    const int64_t *starts;    /* [groups + 1]: first step of each group */
    const int32_t *outputs_of; /* [groups][GROUP]: the output of each lane, -1 for none */
    const float *bias;        /* [groups][GROUP], in the order of the lanes */
    int64_t outputs, inputs, groups;
    int32_t is_bfloat16, relu;
};

/* Columns of the weights of one row that are not zero; how many. */
static int64_t kept_columns(const float *row, int64_t inputs, int32_t *columns) {
    int64_t kept = 0;
    for (int64_t c = 0; c < inputs; c++) {
        columns[kept] = (int32_t)c;
        kept += row[c] != 0.0f;
    }
    return kept;
}

/* Pack one group of lanes; how many steps. Without `values` they are only counted. `columns` has room for
 * GROUP * (inputs + 1) entries. */
static int64_t pack_group(const float *weight, int64_t inputs, const int32_t *outputs_of, int32_t *columns,
                          float *values, uint8_t *indices, int32_t *bases) {
    const int32_t *next[GROUP], *end[GROUP];
    for (int lane = 0; lane < GROUP; lane++) {
        int32_t *here = columns + lane * (inputs + 1);
        int64_t kept = outputs_of[lane] < 0 ? 0 : kept_columns(weight + outputs_of[lane] * inputs, inputs, here);
        next[lane] = here;
        end[lane] = here + kept;
        *(int32_t *)end[lane] = INT32_MAX;
    }
    int32_t last = inputs > WINDOW ? (int32_t)(inputs - WINDOW) : 0;
    for (int64_t step = 0;; step++) {
        int32_t first = INT32_MAX;
        for (int lane = 0; lane < GROUP; lane++)
            first = *next[lane] < first ? *next[lane] : first;
        if (first == INT32_MAX)
            return step;
        int32_t base = first / 16 * 16 < last ? first / 16 * 16 : last;
        if (values)
            bases[step] = base;
        for (int slot = 0; slot < 2 * GROUP; slot++) {
            int lane = slot % GROUP;
            int taken = next[lane] < end[lane] && *next[lane] - base < WINDOW;
            int32_t column = taken ? *next[lane]++ : base;
            if (values) {
                values[step * 2 * GROUP + slot] = taken ? weight[outputs_of[lane] * inputs + column] : 0.0f;
                indices[step * 2 * GROUP + slot] = (uint8_t)(column - base);
            }
        }
    }
}

/* Pack a weight [.][inputs]. Without `values`: write the starts of its groups, from which follows how much room the
 * rest needs. */
EXPORT void NAME(rows_pack)(const float *weight, int64_t inputs, const int32_t *outputs_of, int64_t groups,
                            int32_t *columns, int64_t *starts, float *values, uint8_t *indices, int32_t *bases) {
    int64_t step = 0;
    for (int64_t group = 0; group < groups; group++) {
        starts[group] = step;
        step += pack_group(weight, inputs, outputs_of + group * GROUP, columns,
                           values ? values + step * 2 * GROUP : NULL, values ? indices + step * 2 * GROUP : NULL,
                           values ? bases + step : NULL);
    }
    starts[groups] = step;
}

static inline float widened(uint16_t bfloat16) {
    uint32_t bits = (uint32_t)bfloat16 << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Whether no entry is inf or nan. */
static int all_finite(const float *x, int64_t count) {
    vector sum = {0};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        sum += load(x + i) * spread(0.0f);
    float rest = 0.0f;
    for (; i < count; i++)
        rest += x[i] * 0.0f;
    for (int lane = 0; lane < LANES; lane++)
        rest += sum[lane];
    return rest == 0.0f;
}

/* One group and one row of x, slot by slot; `careful`: empty slots are left out, so that 0 * inf is not added. */
static inline __attribute__((always_inline)) void walk_group(const struct rows_weight *weight, int64_t group,
                                                             const float *x, float *sums, int is_bfloat16,
                                                             int careful) {
    for (int64_t step = weight->starts[group]; step < weight->starts[group + 1]; step++) {
        const float *window = x + weight->bases[step];
        for (int slot = 0; slot < 2 * GROUP; slot++) {
            int64_t at = step * 2 * GROUP + slot;
            float value = is_bfloat16 ? widened(((const uint16_t *)weight->values)[at])
                                      : ((const float *)weight->values)[at];
            if (!careful || value != 0.0f)
                sums[slot % GROUP] += value * window[weight->indices[at]];
        }
    }
}

/* Sums of the lanes to the outputs they belong to. */
static inline void finish_lanes(const struct rows_weight *weight, int64_t group, const float *sums, float *y) {
    const int32_t *outputs_of = weight->outputs_of + group * GROUP;
    for (int lane = 0; lane < GROUP; lane++) {
        float sum = sums[lane] + weight->bias[group * GROUP + lane];
        if (outputs_of[lane] >= 0)
            y[outputs_of[lane]] = weight->relu && sum < 0.0f ? 0.0f : sum;
    }
}

/* A row with inf or nan. */
static __attribute__((noinline)) void careful_row(const struct rows_weight *weight, int64_t group, const float *x,
                                                  float *y) {
    float sums[GROUP] = {0};
    if (weight->is_bfloat16)
        walk_group(weight, group, x, sums, 1, 1);
    else
        walk_group(weight, group, x, sums, 0, 1);
    finish_lanes(weight, group, sums, y);
}

#ifdef WITH_AVX512
static inline __m512 slots(const struct rows_weight *weight, int64_t at, int is_bfloat16) {
    if (!is_bfloat16)
        return _mm512_loadu_ps((const float *)weight->values + at);
    __m512i halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)((const uint16_t *)weight->values + at)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(halves, 16));
}

/* One group and `count` rows of x. */
static inline __attribute__((always_inline)) void group_rows(const struct rows_weight *weight, int64_t group,
                                                             const float *x, int64_t stride, float *y, int count,
                                                             int is_bfloat16) {
    __m512 sums[TOGETHER][2];
    for (int row = 0; row < count; row++)
        sums[row][0] = sums[row][1] = _mm512_setzero_ps();
    for (int64_t step = weight->starts[group], end = weight->starts[group + 1]; step < end; step++) {
        const float *window = x + weight->bases[step];
        __m512i index[2];
        __mmask16 upper[2];
        __m512 value[2];
        for (int half = 0; half < 2; half++) {
            int64_t at = (2 * step + half) * GROUP;
            index[half] = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)(weight->indices + at)));
            upper[half] = _mm512_test_epi32_mask(index[half], _mm512_set1_epi32(32));
            value[half] = slots(weight, at, is_bfloat16);
        }
        for (int row = 0; row < count; row++, window += stride) {
            __m512 a = _mm512_loadu_ps(window), b = _mm512_loadu_ps(window + 16);
            __m512 c = _mm512_loadu_ps(window + 32), d = _mm512_loadu_ps(window + 48);
            for (int half = 0; half < 2; half++) {
                __m512 low = _mm512_permutex2var_ps(a, index[half], b);
                __m512 high = _mm512_permutex2var_ps(c, index[half], d);
                __m512 found = _mm512_mask_blend_ps(upper[half], low, high);
                sums[row][half] = _mm512_fmadd_ps(value[half], found, sums[row][half]);
            }
        }
    }
    for (int row = 0; row < count; row++) {
        float both[GROUP];
        _mm512_storeu_ps(both, _mm512_add_ps(sums[row][0], sums[row][1]));
        finish_lanes(weight, group, both, y + row * weight->outputs);
    }
}
#elif defined WITH_AVX2
static inline __m256 slots(const struct rows_weight *weight, int64_t at, int is_bfloat16) {
    if (!is_bfloat16)
        return _mm256_loadu_ps((const float *)weight->values + at);
    __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)((const uint16_t *)weight->values + at)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
}

/* One group and `count` rows of x. */
static inline __attribute__((always_inline)) void group_rows(const struct rows_weight *weight, int64_t group,
                                                             const float *x, int64_t stride, float *y, int count,
                                                             int is_bfloat16) {
    __m256 sums[TOGETHER][2];
    for (int row = 0; row < count; row++)
        sums[row][0] = sums[row][1] = _mm256_setzero_ps();
    for (int64_t step = weight->starts[group], end = weight->starts[group + 1]; step < end; step++)
        for (int part = 0; part < 4; part++) {
            int64_t at = 2 * step * GROUP + part * 8;
            __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(weight->indices + at)));
            __m256 value = slots(weight, at, is_bfloat16);
            const float *window = x + weight->bases[step];
            for (int row = 0; row < count; row++, window += stride) {
                __m256 found = _mm256_i32gather_ps(window, index, 4);
                sums[row][part % 2] = _mm256_fmadd_ps(value, found, sums[row][part % 2]);
            }
        }
    for (int row = 0; row < count; row++) {
        float all[GROUP];
        _mm256_storeu_ps(all, sums[row][0]);
        _mm256_storeu_ps(all + 8, sums[row][1]);
        finish_lanes(weight, group, all, y + row * weight->outputs);
    }
}
#else
static inline __attribute__((always_inline)) void group_rows(const struct rows_weight *weight, int64_t group,
                                                             const float *x, int64_t stride, float *y, int count,
                                                             int is_bfloat16) {
    for (int row = 0; row < count; row++) {
        float sums[GROUP] = {0};
        walk_group(weight, group, x + row * stride, sums, is_bfloat16, 0);
        finish_lanes(weight, group, sums, y + row * weight->outputs);
    }
}
#endif

/* One group and up to TOGETHER rows of finite numbers. */
static inline void some_rows(const struct rows_weight *weight, int64_t group, const float *x, int64_t stride, float *y,
                             int64_t count) {
    if (weight->is_bfloat16)
        switch (count) {
        case 1: group_rows(weight, group, x, stride, y, 1, 1); return;
        case 2: group_rows(weight, group, x, stride, y, 2, 1); return;
        case 3: group_rows(weight, group, x, stride, y, 3, 1); return;
        default: group_rows(weight, group, x, stride, y, 4, 1); return;
        }
    switch (count) {
    case 1: group_rows(weight, group, x, stride, y, 1, 0); return;
    case 2: group_rows(weight, group, x, stride, y, 2, 0); return;
    case 3: group_rows(weight, group, x, stride, y, 3, 0); return;
    default: group_rows(weight, group, x, stride, y, 4, 0); return;
    }
}

/* What is to be done with all groups: y[rows][outputs] = x[rows][stride] times the weight. */
struct task {
    const float *x;
    float *y;
    int64_t stride, rows;
    int finite; /* no entry of x is inf or nan */
};

static void some_groups(const struct rows_weight *weight, const struct task *task, int64_t first, int64_t last) {
    for (int64_t group = first; group < last; group++)
        for (int64_t row = 0; row < task->rows; row += TOGETHER) {
            int64_t count = task->rows - row < TOGETHER ? task->rows - row : TOGETHER;
            const float *x = task->x + row * task->stride;
            float *y = task->y + row * weight->outputs;
            if (task->finite)
                some_rows(weight, group, x, task->stride, y, count);
            else
                for (int64_t i = 0; i < count; i++)
                    careful_row(weight, group, x + i * task->stride, y + i * weight->outputs);
        }
}

static void all_groups(const struct rows_weight *weight, const struct task *task, int threads) {
    int64_t groups = weight->groups;
    threads = threads_for((double)weight->starts[groups] * (1.0 + 1.3 * (double)task->rows), threads);
    if (threads == 1) {
        some_groups(weight, task, 0, groups);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t first = 0; first < groups; first += NEIGHBOURS)
        some_groups(weight, task, first, first + NEIGHBOURS < groups ? first + NEIGHBOURS : groups);
}

/* y[rows][outputs] = x[rows][inputs] times the weight, plus the bias. Always 0, for it takes no memory. */
EXPORT int NAME(rows_product)(const void *given, const float *x, float *y, int64_t rows, int threads) {
    const struct rows_weight *weight = given;
    int64_t inputs = weight->inputs, outputs = weight->outputs;
    if (inputs >= WINDOW) {
        struct task all = {x, y, inputs, rows, all_finite(x, inputs * rows)};
        all_groups(weight, &all, threads);
        return 0;
    }
    for (int64_t row = 0; row < rows; row += TOGETHER) {
        int64_t count = rows - row < TOGETHER ? rows - row : TOGETHER;
        float padded[TOGETHER][WINDOW] = {{0}};
        for (int64_t i = 0; i < count; i++)
            for (int64_t column = 0; column < inputs; column++)
                padded[i][column] = x[(row + i) * inputs + column];
        struct task some = {padded[0], y + row * outputs, WINDOW, count, all_finite(padded[0], count * WINDOW)};
        all_groups(weight, &some, threads);
    }
    return 0;
}
