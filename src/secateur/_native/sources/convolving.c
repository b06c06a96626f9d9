/* 2-D convolutions with a sparse weight, as a product of that weight, (outputs, inputs * window), with the image's
 * patches, which are packed a tile of output positions and a block of columns at a time, in the first-level cache. */

#include "columns.h"

enum { CHUNK = 1 << 18 }; /* floats: so many images are padded at once that they stay in the second-level cache */

/* How the window moves; pairs are (down, right). */
struct geometry {
    int64_t inputs;
    int64_t window[2], stride[2], padding[2], dilation[2];
};

/* Where the patches lie. The padded image is stored as stride x stride smaller ones, its "phases", each with every
 * stride-th row and column: neighbouring outputs then read neighbouring floats, whatever the stride. What column k
 * reads for the output at (r, c) of an image is `at[image * image_size + r * pitch + c + shifts[k]]`. */
struct patches {
    const float *at;
    int64_t batch, height, width; /* of the output */
    int64_t pitch, image_size;
    const int64_t *shifts;
    int has_slack; /* two vectors may be read from everywhere, even if they end behind the image */
};

/* Floats to another place, with negative ones made zero where asked. */
static inline void copy_run(float *to, const float *from, int64_t count, int64_t relu) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store(to + i, relu ? rectified(load(from + i)) : load(from + i));
#ifdef WITH_AVX512
    __mmask16 rest = (__mmask16)((1u << (count - i)) - 1);
    vector last = (vector)_mm512_maskz_loadu_ps(rest, from + i);
    _mm512_mask_storeu_ps(to + i, rest, (__m512)(relu ? rectified(last) : last));
#else
    for (; i < count; i++)
        to[i] = relu && from[i] < 0 ? 0 : from[i];
#endif
}

/* ---- the padded image ---- */

struct phases {
    int64_t height, width, size; /* of one phase; of all phases of one channel */
};

static struct phases phases_of(const struct geometry *geometry, int64_t height, int64_t width) {
    const int64_t *stride = geometry->stride, *padding = geometry->padding;
    int64_t rows = parts_of(height + 2 * padding[0], stride[0]), columns = parts_of(width + 2 * padding[1], stride[1]);
    return (struct phases){rows, columns, rows * columns * stride[0] * stride[1]};
}

/* The first row (or column) of the image that belongs to a phase. */
static int64_t first_of(int64_t phase, int64_t padding, int64_t stride) {
    return ((phase - padding) % stride + stride) % stride;
}

/* Whether an entry of the window reads a phase; all in one direction. */
static int is_read(int64_t phase, int64_t window, int64_t dilation, int64_t stride) {
    for (int64_t i = 0; i < window; i++)
        if (i * dilation % stride == phase)
            return 1;
    return 0;
}

/* Every `step`-th float. */
static void copy_every(float *to, const float *from, int64_t count, int64_t step) {
    if (step == 1)
        copy_run(to, from, count, 0);
    else if (step == 2) /* by itself, since compilers know how to vectorize it */
        for (int64_t i = 0; i < count; i++)
            to[i] = from[2 * i];
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = from[step * i];
}

/* One channel of one image into its phases. */
static void pad_channel(const struct geometry *geometry, const struct phases *phases, const float *x, int64_t height,
                        int64_t width, float *to) {
    const int64_t *stride = geometry->stride, *padding = geometry->padding, *window = geometry->window;
    int64_t size = phases->height * phases->width;
    for (int64_t i = 0; i < stride[0]; i++)
        for (int64_t j = 0; j < stride[1]; j++, to += size) {
            if (!is_read(i, window[0], geometry->dilation[0], stride[0]) ||
                !is_read(j, window[1], geometry->dilation[1], stride[1]))
                continue;
            memset(to, 0, (size_t)size * sizeof(float));
            int64_t row = first_of(i, padding[0], stride[0]), column = first_of(j, padding[1], stride[1]);
            float *line = to + (row + padding[0]) / stride[0] * phases->width + (column + padding[1]) / stride[1];
            for (; row < height && column < width; row += stride[0], line += phases->width)
                copy_every(line, x + row * width + column, parts_of(width - column, stride[1]), stride[1]);
        }
}

/* Where column k = (input, window row, window column) is, from where the window's first entry would be. */
static void find_shifts(const struct geometry *geometry, const struct phases *phases, int64_t *shifts) {
    const int64_t *stride = geometry->stride, *dilation = geometry->dilation, *window = geometry->window;
    int64_t size = window[0] * window[1];
    for (int64_t k = 0; k < size; k++) {
        int64_t down = k / window[1] * dilation[0], right = k % window[1] * dilation[1];
        int64_t phase = down % stride[0] * stride[1] + right % stride[1];
        shifts[k] = (phase * phases->height + down / stride[0]) * phases->width + right / stride[1];
    }
    for (int64_t k = size; k < geometry->inputs * size; k++)
        shifts[k] = shifts[k - size] + phases->size;
}

/* ---- patches of a tile ---- */

/* The offsets of `positions` outputs from number `first` on; behind the last output, that one again. */
static void find_offsets(const struct patches *patches, int64_t first, int64_t positions, int64_t *offsets) {
    int64_t size = patches->height * patches->width, all = patches->batch * size;
    int64_t image = first / size, row = first % size / patches->width, column = first % patches->width;
    for (int64_t i = 0; i < positions; i++) {
        offsets[i] = image * patches->image_size + row * patches->pitch + column;
        if (first + i + 1 >= all)
            continue;
        if (++column == patches->width) {
            column = 0;
            if (++row == patches->height) {
                row = 0;
                image++;
            }
        }
    }
}

#ifdef WITH_AVX512
/* The same for outputs that read, up to `split`, what is near to the first of them, and from there on what is near to
 * the one at `split`. Columns whose shifts differ by little, as those of one row of the window do, share their loads:
 * loads that cross lines of the cache are what this costs. */
static void pack_near(const struct patches *patches, const int64_t *offsets, int split, const int64_t *shifts,
                      int64_t columns, int64_t positions, float *packed) {
    const float *from = patches->at + offsets[0], *other = patches->at + offsets[split % LANES];
    int32_t lanes[LANES];
    for (int i = 0; i < LANES; i++)
        lanes[i] = (int32_t)(offsets[i] - offsets[i < split ? 0 : split]);
    int reach = 2 * LANES - 1 - lanes[split - 1];
    if (split < LANES && reach > 2 * LANES - 1 - lanes[LANES - 1])
        reach = 2 * LANES - 1 - lanes[LANES - 1];
    __m512i chosen = _mm512_loadu_si512(lanes);
    __mmask16 second = (__mmask16)(0xffffu << split);
    for (int64_t k = 0; k < columns;) {
        int64_t shift = shifts[k], more = 0;
        __m512 a = _mm512_loadu_ps(from + shift), b = _mm512_loadu_ps(from + shift + LANES), c = a, d = b;
        if (split < LANES) {
            c = _mm512_loadu_ps(other + shift);
            d = _mm512_loadu_ps(other + shift + LANES);
        }
        do {
            __m512i index = _mm512_add_epi32(chosen, _mm512_set1_epi32((int32_t)more));
            __m512 value = _mm512_permutex2var_ps(a, index, b);
            if (split < LANES)
                value = _mm512_mask_blend_ps(second, value, _mm512_permutex2var_ps(c, index, d));
            store(packed + k * positions, (vector)value);
            more = ++k < columns ? shifts[k] - shift : -1;
        } while (more >= 0 && more <= reach);
    }
}

/* Where the outputs begin that do not read near to the first; `LANES` if all do. 0: there are more such places. */
static int split_of(const int64_t *offsets) {
    int split = 1;
    while (split < LANES && offsets[split] - offsets[0] < 2 * LANES)
        split++;
    return split == LANES || offsets[LANES - 1] - offsets[split] < 2 * LANES ? split : 0;
}
#endif

/* One vector of each column of a block. `offsets` do not fall. */
static void pack_vectors(const struct patches *patches, const int64_t *offsets, const int64_t *shifts, int64_t columns,
                         int64_t positions, float *packed) {
#ifdef WITH_AVX512
    int split = patches->has_slack ? split_of(offsets) : 0;
    if (split) {
        pack_near(patches, offsets, split, shifts, columns, positions, packed);
        return;
    }
#endif
    int is_run = 1;
    for (int i = 0; i < LANES; i++)
        is_run &= offsets[i] == offsets[0] + i;
    if (is_run)
        for (int64_t k = 0; k < columns; k++)
            store(packed + k * positions, load(patches->at + offsets[0] + shifts[k]));
    else
        for (int64_t k = 0; k < columns; k++)
            for (int i = 0; i < LANES; i++)
                packed[k * positions + i] = patches->at[offsets[i] + shifts[k]];
}

/* ---- the product ---- */

/* Sums, [output][position], to y, [image][output][place]: `count` positions from number `first` on. */
static void store_sums(const struct columns *matrix, const struct patches *patches, const float *sums, int64_t outputs,
                       int64_t positions, int64_t first, int64_t count, float *y) {
    int64_t size = patches->height * patches->width;
    for (int64_t done = 0, run; done < count; done += run) {
        int64_t image = (first + done) / size, place = (first + done) % size;
        run = least(count - done, size - place);
        for (int64_t o = 0; o < outputs; o++)
            copy_run(y + (image * matrix->outputs + o) * size + place, sums + o * positions + done, run, matrix->relu);
    }
}

/* Outputs from number `first` on, of the panels from `panel` to `end`. */
static void convolve_tile(const struct columns *matrix, const struct patches *patches, int64_t first, int64_t panel,
                          int64_t end, float *packed, float *sums, float *y) {
    int64_t size = patches->height * patches->width, count = least(WIDEST, patches->batch * size - first);
    int64_t positions = whole(count, UNIT), pitch = matrix->panel * positions;
    int64_t offsets[WIDEST];
    find_offsets(patches, first, positions, offsets);
    for (int64_t p = panel; p < end; p++)
        NAME(begin_panel)(matrix, p, positions, sums + (p - panel) * pitch);
    for (int64_t block = 0; block * matrix->width < matrix->inputs; block++) {
        int64_t column = block * matrix->width, columns = least(matrix->width, matrix->inputs - column);
        for (int64_t i = 0; i < positions; i += LANES)
            pack_vectors(patches, offsets + i, patches->shifts + column, columns, positions, packed + i);
        for (int64_t p = panel; p < end; p++)
            NAME(add_cell)(matrix, p, block, positions, packed, sums + (p - panel) * pitch);
    }
    int64_t output = panel * matrix->panel, outputs = least(end * matrix->panel, matrix->outputs) - output;
    store_sums(matrix, patches, sums, outputs, positions, first, count, y + output * size);
}

/* All outputs, tile by tile. Not 0: there is no memory for the packed patches. */
static int convolve(const struct columns *matrix, const struct patches *patches, float *y, int threads) {
    int64_t positions = patches->batch * patches->height * patches->width, tiles = parts_of(positions, WIDEST);
    int64_t panels = parts_of(matrix->outputs, matrix->panel), parts = divisions(tiles, panels, threads);
    int64_t size_packed = matrix->width * WIDEST, size_sums = panels * matrix->panel * WIDEST, pieces = tiles * parts;
    threads = (int)least(threads, pieces > 1 ? pieces : 1);
    float *scratch = lines(threads * (size_packed + size_sums));
    if (!scratch)
        return 1;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t piece = 0; piece < pieces; piece++) {
        int64_t tile = piece / parts, part = piece % parts;
        float *packed = scratch + thread_number() * (size_packed + size_sums);
        convolve_tile(matrix, patches, tile * WIDEST, panels * part / parts, panels * (part + 1) / parts, packed,
                      packed + size_packed, y);
    }
    free(scratch);
    return 0;
}

/* x (batch, inputs, height, width) to y; both sizes are at least 1. Not 0: there is no memory for what is packed. */
EXPORT int NAME(convolve_columns)(const struct columns *matrix, const struct geometry *geometry, const float *x,
                                  float *y, int64_t batch, int64_t height, int64_t width, int threads) {
    const int64_t *window = geometry->window, *stride = geometry->stride, *padding = geometry->padding;
    const int64_t *dilation = geometry->dilation, inputs = geometry->inputs;
    struct phases phases = phases_of(geometry, height, width);
    struct patches patches = {
        .batch = batch,
        .height = (height + 2 * padding[0] - dilation[0] * (window[0] - 1) - 1) / stride[0] + 1,
        .width = (width + 2 * padding[1] - dilation[1] * (window[1] - 1) - 1) / stride[1] + 1,
        .pitch = phases.width,
        .image_size = inputs * phases.size,
    };
    int64_t blocks = parts_of(matrix->inputs, matrix->width), panels = parts_of(matrix->outputs, matrix->panel);
    double products = (double)matrix->starts[2 * panels * blocks + 1] * (double)(batch * patches.height * patches.width);
    threads = threads_for(0.02 * products, threads);
    int is_padded = padding[0] || padding[1] || stride[0] > 1 || stride[1] > 1 || window[0] > 1 || window[1] > 1;
    int64_t chunk = is_padded ? least(batch, 1 + CHUNK / patches.image_size) : batch;
    int64_t *shifts = malloc((size_t)matrix->inputs * sizeof *shifts);
    float *padded = is_padded ? lines(chunk * patches.image_size + 2 * LANES) : NULL;
    int failed = !shifts || (is_padded && !padded);
    if (!failed) {
        find_shifts(geometry, &phases, shifts);
        patches.has_slack = is_padded;
        patches.shifts = shifts;
    }
    for (int64_t first = 0; first < batch && !failed; first += chunk) {
        patches.batch = least(chunk, batch - first);
        patches.at = is_padded ? padded : x;
        if (is_padded)
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
            for (int64_t i = 0; i < patches.batch * inputs; i++)
                pad_channel(geometry, &phases, x + (first * inputs + i) * height * width, height, width,
                            padded + i * phases.size);
        failed = convolve(matrix, &patches, y + first * matrix->outputs * patches.height * patches.width, threads);
    }
    free(padded);
    free(shifts);
    return failed;
}
