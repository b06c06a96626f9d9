/* Products that follow each other, the output of one being the input of the next, in one call: to come back to Python
 * between them takes as long as a small product does. */

#include <stdlib.h>

#include "secateur.h"

struct link {
    int (*multiply)(const void *weight, const float *x, float *y, int64_t rows, int threads);
    const void *weight;
    int64_t outputs;
};

struct chain {
    const struct link *links;
    int64_t count;
    int64_t widest; /* outputs of the widest link but the last */
};

/* y[rows][outputs of the last] = x times one weight after another; 1 if there is no memory for it. */
EXPORT int NAME(chain_product)(const void *given, const float *x, float *y, int64_t rows, int threads) {
    const struct chain *chain = given;
    size_t size = (size_t)rows * (size_t)chain->widest;
    float *between = malloc((2 * size + 1) * sizeof(float));
    int failed = !between;
    for (int64_t i = 0; i < chain->count && !failed; i++) {
        const struct link *link = chain->links + i;
        float *to = i + 1 == chain->count ? y : between + (size_t)(i % 2) * size;
        failed = link->multiply(link->weight, x, to, rows, threads);
        x = to;
    }
    free(between);
    return failed;
}
