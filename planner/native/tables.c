/* Min-plus algebra on dense tables. */
#include <stdint.h>

#include "vector.h"

#define VERY_LARGE (1.0 / 0.0)

/* out[i1..] = min over i0 of the sum of operands at (i0, i1..), all in C order; `strides[k * axes + a]` is operand
 * k's stride along axis a, 0 where it does not depend on it.  `work` holds one row of the last axis. */
void tables_min_sum(int64_t axes, const int64_t *shape, int64_t operands, const double *const *data,
                    const int64_t *strides, double *out, double *work) {
    int64_t n = axes > 1 ? shape[axes - 1] : 1, rows = 1;
    for (int64_t a = 1; a < axes - 1; a++) rows *= shape[a];
    int64_t at[32] = {0};
    for (int64_t row = 0; row < rows; row++, out += n) {
        for (int64_t j = 0; j < n; j++) out[j] = VERY_LARGE;
        for (int64_t x = 0; x < shape[0]; x++) {
            double constant = 0;
            int64_t summed = 0;
            const double *first = 0;
            for (int64_t k = 0; k < operands; k++) {
                const int64_t *s = strides + k * axes;
                const double *p = data[k] + x * s[0];
                for (int64_t a = 1; a < axes - 1; a++) p += at[a] * s[a];
                if (axes < 2 || s[axes - 1] == 0) {
                    constant += *p;
                } else if (summed == 0) {
                    first = p;
                    summed = 1;
                } else {
                    if (summed == 1) {
                        for (int64_t j = 0; j < n; j++) work[j] = first[j] + p[j];
                        first = work;
                    } else {
                        for (int64_t j = 0; j < n; j++) work[j] += p[j];
                    }
                    summed++;
                }
            }
            if (!summed) {
                for (int64_t j = 0; j < n; j++) out[j] = constant < out[j] ? constant : out[j];
            } else {
                for (int64_t j = 0; j < n; j++) {
                    double t = constant + first[j];
                    out[j] = t < out[j] ? t : out[j];
                }
            }
        }
        for (int64_t a = axes - 2; a >= 1; a--) {
            if (++at[a] < shape[a]) break;
            at[a] = 0;
        }
    }
}

/* out[j * rows + i] = max over k of values[j, k] - values[i, k].  Where values[i, k] is infinite, k does not raise it
 * (the difference is -infinity, or no number and above none); where none does, it is 0. */
VECTOR
void tables_row_difference(int64_t rows, int64_t columns, const double *values, double *out) {
    for (int64_t j = 0; j < rows; j++) {
        for (int64_t i = 0; i < rows; i++) {
            const double *a = values + j * columns, *b = values + i * columns;
            double most[4] = {-VERY_LARGE, -VERY_LARGE, -VERY_LARGE, -VERY_LARGE};
            int64_t k = 0;
            for (; k + 4 <= columns; k += 4) {
                for (int64_t m = 0; m < 4; m++) {
                    double t = a[k + m] - b[k + m];
                    most[m] = t > most[m] ? t : most[m];
                }
            }
            for (; k < columns; k++) {
                double t = a[k] - b[k];
                most[0] = t > most[0] ? t : most[0];
            }
            for (int64_t m = 1; m < 4; m++) most[0] = most[m] > most[0] ? most[m] : most[0];
            out[j * rows + i] = most[0] == -VERY_LARGE ? 0 : most[0];
        }
    }
}

/* The class of every row among equal ones, numbered as they come, and the first row of every class; how many. */
int64_t tables_row_classes(int64_t rows, int64_t columns, const double *values, int64_t *classes, int64_t *first) {
    int64_t found = 0;
    for (int64_t i = 0; i < rows; i++) {
        const double *a = values + i * columns;
        int64_t c = 0;
        for (; c < found; c++) {
            const double *b = values + first[c] * columns;
            int64_t k = 0;
            while (k < columns && a[k] == b[k]) k++;
            if (k == columns) break;
        }
        if (c == found) first[found++] = i;
        classes[i] = c;
    }
    return found;
}
