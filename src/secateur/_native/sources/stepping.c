/* Steps of AdamW and SGD over the kept weights of some tensors, and their state as masks change.
 *
 * Weights and gradients are dense, in the order of memory, and so are the bits: one an entry, the first in the lowest
 * bit of the first byte, padded to whole 8 bytes. State is compact: an entry for each kept weight, in the same order.
 *
 * A block of weights and of gradients is gathered into memory that stays in L1, stepped there beside its stretch of the
 * state, and scattered back with zeros at masked places. So what masked entries held is never looked at.
 *
 * Arithmetic is that of torch's fused kernels, operation by operation: products and sums are contracted where fma says
 * so and nowhere else (this file is compiled with -ffp-contract=off). All lanes are stepped alike, whichever thread or
 * block they fall to, so results do not depend on the number of threads. */

#include "secateur.h"

#include <math.h>

typedef uint64_t loose_word __attribute__((aligned(1), may_alias));
typedef int32_t lanes_of_bits __attribute__((vector_size(VECTOR_BYTES)));

enum {
    BLOCK = 1024, /* weights that are gathered at a time, whole words of bits */
    AHEAD = 512   /* entries by which memory is asked for ahead: processors do not look beyond a page by themselves */
};

/* The kept ones of a block. There is room for one more vector, as vectors are written and read whole. */
typedef struct {
    float weights[BLOCK + LANES], gradients[BLOCK + LANES];
} gathered;

static inline uint64_t word(const char *bits, int64_t number) { return ((const loose_word *)bits)[number]; }

/* The lowest bits of a word. */
static inline uint64_t lowest(uint64_t bits, int64_t count) { return count < 64 ? bits & ((1ull << count) - 1) : bits; }

/* Fill the last vector. */
static inline int64_t pad(gathered *to, int64_t n) {
    store(to->weights + n, (vector){0});
    store(to->gradients + n, (vector){0});
    return n;
}

/* Ask for a line of memory, which may lie beyond the tensor's end. */
static inline void prefetch(const float *from) { __builtin_prefetch((const char *)from + AHEAD * sizeof(float)); }

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

/* Registers are compressed and stored whole: stores with a mask are slow on some processors. */
static inline int64_t gather(const float *weights, const float *gradients, const char *bits, int64_t count,
                             gathered *to) {
    int64_t n = 0;
    for (int64_t i = 0; i < count; i += 64) {
        uint64_t kept = lowest(word(bits, i / 64), count - i);
        for (int64_t j = i; j < i + 64; j += LANES, kept >>= LANES) {
            __mmask16 lanes = (__mmask16)kept;
            prefetch(weights + j);
            prefetch(gradients + j);
            __m512 weight = _mm512_maskz_loadu_ps(lanes, weights + j);
            __m512 gradient = _mm512_maskz_loadu_ps(lanes, gradients + j);
            _mm512_storeu_ps(to->weights + n, _mm512_maskz_compress_ps(lanes, weight));
            _mm512_storeu_ps(to->gradients + n, _mm512_maskz_compress_ps(lanes, gradient));
            n += __builtin_popcount(lanes);
        }
    }
    return pad(to, n);
}

static inline __m512 spread_out(const float *from, uint64_t kept) {
    return _mm512_maskz_expand_ps((__mmask16)kept, _mm512_loadu_ps(from));
}

static inline void scatter(const gathered *from, const char *bits, int64_t count, float *weights) {
    const float *next = from->weights;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        uint64_t kept = word(bits, i / 64) >> (i % 64) & 0xffff;
        _mm512_storeu_ps(weights + i, spread_out(next, kept));
        next += __builtin_popcountll(kept);
    }
    if (i < count)
        store_some(weights + i, (vector)spread_out(next, word(bits, i / 64) >> (i % 64)), count - i);
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

static inline int64_t gather(const float *weights, const float *gradients, const char *bits, int64_t count,
                             gathered *to) {
    int64_t n = 0;
    for (int64_t i = 0; i < count; i += 64) {
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
    return pad(to, n);
}

static inline void scatter(const gathered *from, const char *bits, int64_t count, float *weights) {
    int64_t n = 0;
    memset(weights, 0, (size_t)count * sizeof(float));
    for (int64_t i = 0; i < count; i += 64)
        for (uint64_t kept = lowest(word(bits, i / 64), count - i); kept; kept &= kept - 1)
            weights[i + __builtin_ctzll(kept)] = from->weights[n++];
}

#endif

/* The larger of two, nan if one of them is. */
static inline vector larger(vector a, vector b) {
    lanes_of_bits take = (a > b) | (a != a);
    return (vector)((take & (lanes_of_bits)a) | (~take & (lanes_of_bits)b));
}

static int64_t count_kept(const char *bits, int64_t words) {
    int64_t found = 0;
    for (int64_t i = 0; i < words; i++)
        found += __builtin_popcountll(word(bits, i));
    return found;
}

/* A tensor, as a row of 8 bytes each; state that the optimizer does not keep is NULL. */
typedef struct {
    float *weights;
    const float *gradients;
    const char *bits;
    int64_t count, kept;             /* entries, and kept ones among them, which is how long the state is */
    float *first, *second, *largest; /* AdamW's moments; SGD's momentum is `first` */
    int64_t step;                    /* number of this step; SGD's momentum begins with the gradient at step 1 */
} job;

/* Numbers of a step, the same in every lane. */
typedef struct {
    vector sign, decay, moving, square_new, square_old, rate, correction, eps;
    int starts_from_gradient;
} adamw_numbers;

typedef struct {
    vector sign, decay, momentum, gradient_new, rate;
    int decays, begins, nesterov;
} sgd_numbers;

typedef union {
    adamw_numbers adamw;
    sgd_numbers sgd;
} numbers;

/* As many lanes as there are, of which `lanes` are meant. */
static inline vector take(const float *from, int64_t lanes) {
    return lanes == LANES ? load(from) : load_some(from, lanes);
}
static inline void put(float *to, vector value, int64_t lanes) {
    if (lanes == LANES)
        store(to, value);
    else
        store_some(to, value, lanes);
}

/* beta1, beta2, lr, eps, weight decay, 1 or -1 */
static void prepare_adamw(const double *options, int64_t step, numbers *made) {
    double beta1 = options[0], beta2 = options[1], lr = options[2];
    float moving = (float)(1 - beta1);
    int near = fabsf(moving) < 0.5f; /* as torch.lerp: from the nearer end */
    made->adamw = (adamw_numbers){
        .sign = spread((float)options[5]),
        .decay = spread((float)(1 - lr * options[4])),
        .moving = spread(near ? moving : moving - 1.0f),
        .starts_from_gradient = !near,
        .square_new = spread((float)(1 - beta2)),
        .square_old = spread((float)beta2),
        .rate = spread((float)-(lr / (1 - pow(beta1, (double)step)))),
        .correction = spread((float)sqrt(1 - pow(beta2, (double)step))),
        .eps = spread((float)options[3]),
    };
}

static inline void adamw_lanes(gathered *block, int64_t i, float *first, float *second, float *largest,
                               const adamw_numbers *with, int64_t lanes) {
    vector gradient = load(block->gradients + i) * with->sign;
    vector moment = take(first + i, lanes), square = take(second + i, lanes) * with->square_old;
    moment = fma_(with->moving, gradient - moment, with->starts_from_gradient ? gradient : moment);
    square = fma_(with->square_new * gradient, gradient, square);
    put(first + i, moment, lanes);
    put(second + i, square, lanes);
    if (largest) {
        square = larger(take(largest + i, lanes), square);
        put(largest + i, square, lanes);
    }
    vector scale = root(square) / with->correction + with->eps;
    store(block->weights + i, load(block->weights + i) * with->decay + with->rate * moment / scale);
}

static void adamw_block(gathered *block, int64_t n, const job *of, int64_t at, const numbers *with) {
    float *first = of->first + at, *second = of->second + at, *largest = of->largest ? of->largest + at : NULL;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        adamw_lanes(block, i, first, second, largest, &with->adamw, LANES);
    if (i < n)
        adamw_lanes(block, i, first, second, largest, &with->adamw, n - i);
}

/* lr, momentum, dampening, weight decay, 1 or -1, nesterov */
static void prepare_sgd(const double *options, int64_t step, numbers *made) {
    made->sgd = (sgd_numbers){
        .sign = spread((float)options[4]),
        .decay = spread((float)options[3]),
        .decays = options[3] != 0,
        .momentum = spread((float)options[1]),
        .gradient_new = spread((float)(1 - options[2])),
        .rate = spread((float)-options[0]),
        .begins = step == 1,
        .nesterov = options[5] != 0,
    };
}

static inline void sgd_lanes(gathered *block, int64_t i, float *first, const sgd_numbers *with, int64_t lanes) {
    vector weight = load(block->weights + i), gradient = load(block->gradients + i) * with->sign;
    if (with->decays)
        gradient = fma_(weight, with->decay, gradient);
    if (first) {
        vector moment = gradient;
        if (!with->begins)
            moment = fma_(with->gradient_new, gradient, take(first + i, lanes) * with->momentum);
        put(first + i, moment, lanes);
        gradient = with->nesterov ? fma_(with->momentum, moment, gradient) : moment;
    }
    store(block->weights + i, fma_(gradient, with->rate, weight));
}

static void sgd_block(gathered *block, int64_t n, const job *of, int64_t at, const numbers *with) {
    float *first = of->first ? of->first + at : NULL;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sgd_lanes(block, i, first, &with->sgd, LANES);
    if (i < n)
        sgd_lanes(block, i, first, &with->sgd, n - i);
}

typedef void prepare(const double *options, int64_t step, numbers *made);
typedef void block_step(gathered *block, int64_t n, const job *of, int64_t at, const numbers *with);

/* One thread's share of a tensor. */
static void share(const job *of, const numbers *with, block_step *step, int64_t part, int64_t parts) {
    int64_t blocks = (of->count + BLOCK - 1) / BLOCK;
    int64_t from = blocks * part / parts, to = blocks * (part + 1) / parts;
    int64_t at = from < to ? count_kept(of->bits, from * (BLOCK / 64)) : 0;
    for (int64_t i = from; i < to; i++) {
        gathered block;
        int64_t start = i * BLOCK, count = of->count - start < BLOCK ? of->count - start : BLOCK;
        const char *bits = of->bits + start / 8;
        int64_t n = gather(of->weights + start, of->gradients + start, bits, count, &block);
        step(&block, n, of, at, with);
        scatter(&block, bits, count, of->weights + start);
        at += n;
    }
}

/* Returns how many of the tensors have as many kept weights as was said; nothing is done unless all have. */
static int64_t step_all(const job *jobs, int64_t number, const double *options, prepare *prepare_numbers,
                        block_step *step, int threads) {
    int64_t all = 0;
    for (int64_t i = 0; i < number; i++) {
        if (count_kept(jobs[i].bits, (jobs[i].count + 63) / 64) != jobs[i].kept)
            return i;
        all += jobs[i].count;
    }
    threads = threads_for(0.4 * (double)all, threads);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        int part = 0, parts = 1;
#ifdef _OPENMP
        part = omp_get_thread_num(), parts = omp_get_num_threads();
#endif
        for (int64_t i = 0; i < number; i++) {
            numbers made;
            prepare_numbers(options, jobs[i].step, &made);
            share(jobs + i, &made, step, part, parts);
        }
    }
    return number;
}

EXPORT int64_t NAME(step_adamw)(const job *jobs, int64_t number, const double *options, int threads) {
    return step_all(jobs, number, options, prepare_adamw, adamw_block, threads);
}

EXPORT int64_t NAME(step_sgd)(const job *jobs, int64_t number, const double *options, int threads) {
    return step_all(jobs, number, options, prepare_sgd, sgd_block, threads);
}

/* State of the weights that some bits keep, from that of those that other bits kept; 0 where there was none. */
EXPORT void NAME(move_state)(const float *from, const char *old, const char *new, int64_t words, float *to) {
    for (int64_t i = 0; i < words; i++) {
        uint64_t before = word(old, i);
        for (uint64_t kept = word(new, i); kept; kept &= kept - 1) {
            int place = __builtin_ctzll(kept);
            *to++ = before >> place & 1 ? from[__builtin_popcountll(lowest(before, place))] : 0.0f;
        }
        from += __builtin_popcountll(before);
    }
}
