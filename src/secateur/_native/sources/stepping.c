/* Steps of AdamW and SGD over the kept weights of some tensors, and their state as masks change.
 *
 * Weights and gradients are dense, in the order of memory, and so are the bits: one an entry, the first in the lowest
 * bit of the first byte, padded to whole 8 bytes. State is compact: an entry for each kept weight, in the same order.
 *
 * What is kept of a block is gathered into memory that stays in L1, stepped there beside its stretch of the state, and
 * scattered back with zeros at masked places. So what masked entries held has no influence. A tensor without bits is
 * kept as a whole.
 *
 * Arithmetic is that of torch's fused kernels, operation by operation: products and sums are contracted where fma says
 * so and nowhere else (this file is compiled with -ffp-contract=off). All lanes are stepped alike, whichever thread or
 * block they fall to, so results do not depend on the number of threads. */

#include "gathering.h"

#include <math.h>

typedef int32_t lanes_of_bits __attribute__((vector_size(VECTOR_BYTES)));

/* The larger of two, nan if one of them is. */
static inline vector larger(vector a, vector b) {
    lanes_of_bits take = (a > b) | (a != a);
    return (vector)((take & (lanes_of_bits)a) | (~take & (lanes_of_bits)b));
}

/* How many of the first entries of a tensor are kept. */
static int64_t count_kept(const char *bits, int64_t entries) {
    int64_t found = bits ? 0 : entries, words = bits ? (entries + 63) / 64 : 0;
    for (int64_t i = 0; i < words; i++)
        found += __builtin_popcountll(word(bits, i));
    return found;
}

/* A tensor, as a row of 8 bytes each; state that the optimizer does not keep is NULL. */
typedef struct {
    float *weights;
    const float *gradients;
    const char *bits;                /* NULL where all are kept */
    int64_t count, kept;             /* entries, and kept ones among them, which is how long the state is */
    float *first, *second, *largest; /* AdamW's moments; SGD's momentum is `first` */
    float *steps;                    /* AdamW's count of those before this one, which is raised; or NULL */
    int64_t begins;                  /* SGD's momentum begins with the gradient */
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

union numbers {
    adamw_numbers adamw;
    sgd_numbers sgd;
};

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
static void prepare_adamw(const double *options, double step, numbers *made) {
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
        .rate = spread((float)-(lr / (1 - pow(beta1, step)))),
        .correction = spread((float)sqrt(1 - pow(beta2, step))),
        .eps = spread((float)options[3]),
    };
}

static inline vector adamw_meet(vector weight, vector gradient, const numbers *with) {
    (void)weight, (void)with;
    return gradient;
}

static inline vector adamw_finish(vector weight, vector change, const numbers *with) {
    return weight * with->adamw.decay + change;
}

static inline void adamw_lanes(gathered *block, int64_t i, float *first, float *second, float *largest,
                               const numbers *all, int64_t lanes) {
    const adamw_numbers *with = &all->adamw;
    vector gradient = gradient_of(block, i, adamw_meet, all) * with->sign;
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
    settle(block, i, with->rate * moment / scale, adamw_finish, all);
}

static void adamw_block(gathered *block, int64_t n, const job *of, int64_t at, const numbers *with) {
    float *first = of->first + at, *second = of->second + at, *largest = of->largest ? of->largest + at : NULL;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        adamw_lanes(block, i, first, second, largest, with, LANES);
    if (i < n)
        adamw_lanes(block, i, first, second, largest, with, n - i);
}

/* lr, momentum, dampening, weight decay, 1 or -1, nesterov */
static void prepare_sgd(const double *options, int begins, numbers *made) {
    made->sgd = (sgd_numbers){
        .sign = spread((float)options[4]),
        .decay = spread((float)options[3]),
        .decays = options[3] != 0,
        .momentum = spread((float)options[1]),
        .gradient_new = spread((float)(1 - options[2])),
        .rate = spread((float)-options[0]),
        .begins = begins,
        .nesterov = options[5] != 0,
    };
}

static inline vector sgd_meet(vector weight, vector gradient, const numbers *with) {
    gradient *= with->sgd.sign;
    return with->sgd.decays ? fma_(weight, with->sgd.decay, gradient) : gradient;
}

static inline vector sgd_finish(vector weight, vector change, const numbers *with) {
    return fma_(change, with->sgd.rate, weight);
}

static inline void sgd_lanes(gathered *block, int64_t i, float *first, const numbers *all, int64_t lanes) {
    const sgd_numbers *with = &all->sgd;
    vector gradient = gradient_of(block, i, sgd_meet, all);
    if (first) {
        vector moment = gradient;
        if (!with->begins)
            moment = fma_(with->gradient_new, gradient, take(first + i, lanes) * with->momentum);
        put(first + i, moment, lanes);
        gradient = with->nesterov ? fma_(with->momentum, moment, gradient) : moment;
    }
    settle(block, i, gradient, sgd_finish, all);
}

static void sgd_block(gathered *block, int64_t n, const job *of, int64_t at, const numbers *with) {
    float *first = of->first ? of->first + at : NULL;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sgd_lanes(block, i, first, with, LANES);
    if (i < n)
        sgd_lanes(block, i, first, with, n - i);
}

typedef void block_step(gathered *block, int64_t n, const job *of, int64_t at, const numbers *with);

/* One thread's share of a tensor. */
INLINE void share(const job *of, const numbers *with, lanes_step *meet, block_step *step, lanes_step *finish,
                  int64_t part, int64_t parts) {
    int64_t blocks = (of->count + BLOCK - 1) / BLOCK;
    int64_t from = blocks * part / parts, to = blocks * (part + 1) / parts;
    int64_t at = from < to ? count_kept(of->bits, from * BLOCK) : 0;
    for (int64_t i = from; i < to; i++) {
        gathered block;
        int64_t start = i * BLOCK, count = of->count - start < BLOCK ? of->count - start : BLOCK;
        const char *bits = of->bits ? of->bits + start / 8 : NULL;
        int64_t n = gather(of->weights + start, of->gradients + start, bits, count, &block, meet, with);
        step(&block, n, of, at, with);
        scatter(&block, bits, count, of->weights + start, finish, with);
        at += n;
    }
}

static void adamw_share(const job *of, const double *options, int64_t part, int64_t parts) {
    numbers made;
    prepare_adamw(options, (double)*of->steps + 1, &made);
    share(of, &made, adamw_meet, adamw_block, adamw_finish, part, parts);
}

static void sgd_share(const job *of, const double *options, int64_t part, int64_t parts) {
    numbers made;
    prepare_sgd(options, of->begins != 0, &made);
    share(of, &made, sgd_meet, sgd_block, sgd_finish, part, parts);
}

typedef void share_step(const job *of, const double *options, int64_t part, int64_t parts);

/* Returns how many of the tensors have as many kept weights as was said; nothing is done unless all have. */
static int64_t step_all(const job *jobs, int64_t number, const double *options, share_step *step, int threads) {
    int64_t all = 0;
    for (int64_t i = 0; i < number; i++) {
        if (count_kept(jobs[i].bits, jobs[i].count) != jobs[i].kept)
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
        for (int64_t i = 0; i < number; i++)
            step(jobs + i, options, part, parts);
    }
    for (int64_t i = 0; i < number; i++)
        if (jobs[i].steps)
            *jobs[i].steps += 1;
    return number;
}

EXPORT int64_t NAME(step_adamw)(const job *jobs, int64_t number, const double *options, int threads) {
    return step_all(jobs, number, options, adamw_share, threads);
}

EXPORT int64_t NAME(step_sgd)(const job *jobs, int64_t number, const double *options, int threads) {
    return step_all(jobs, number, options, sgd_share, threads);
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
