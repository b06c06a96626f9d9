/* A sparse matrix cut into panels of rows and blocks of columns, and its product with a block of packed activations. */

#ifndef COLUMNS_H
#define COLUMNS_H

#include <stdlib.h>

#include "secateur.h"

/* Activations are packed as [column][position], some units of 16 positions wide: what a column's entry multiplies is
 * then contiguous, and the sums of one row fill `WIDEST / LANES` registers. */
enum { UNIT = 16, WIDEST = VECTOR_BYTES > 16 ? 64 : 32 };

/* The matrix as `secateur._native.columns.Matrix` writes it. Cell (p, b) holds what is in panel p (rows p * panel and on)
 * and block b (columns b * width and on). Its entries are the rows that are not empty there, those with many values
 * first, so that lengths that are alike follow each other and the processor foresees the end of each loop.
 *
 *     starts[2 * cell]      first entry of the cell, into `rows` (in the panel) and `counts` (of values)
 *     starts[2 * cell + 1]  its first value, into `values` and `columns` (in the block)
 */
struct columns {
    int64_t outputs, inputs, panel, width;
    int64_t is_half; /* values are bfloat16, not float32 */
    int64_t relu;
    const float *bias;
    const void *values;
    const uint16_t *columns;
    const uint8_t *rows;
    const uint16_t *counts;
    const int64_t *starts;
};

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t parts_of(int64_t count, int64_t size) { return (count + size - 1) / size; }
static inline int64_t whole(int64_t count, int64_t size) { return parts_of(count, size) * size; }

/* Floats that begin at a line of the cache; NULL if there is no memory. */
static inline float *lines(int64_t count) { return aligned_alloc(64, (size_t)whole(count + 1, 16) * sizeof(float)); }

/* Into how many parts to divide the panels of each of `tiles` tiles, so that all threads have as much to do. */
static inline int64_t divisions(int64_t tiles, int64_t panels, int threads) {
    return tiles % threads == 0 ? 1 : least(panels, threads);
}

/* Sums of a panel, [row][position], begin with the bias. */
void NAME(begin_panel)(const struct columns *matrix, int64_t panel, int64_t positions, float *sums);

/* sums += (what the cell holds) x, with x packed as [column of the block][position]. */
void NAME(add_cell)(const struct columns *matrix, int64_t panel, int64_t block, int64_t positions, const float *x,
                    float *sums);

#endif
