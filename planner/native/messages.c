/* Sequential tree-reweighted message passing (TRW-S) over edges whose equal rows and columns are merged.
 *
 * Node v has states [start[v], start[v + 1]); edge e joins u < v, the positions in the order of the sweeps.  State i
 * of u belongs to class maps[map_u[e] + i] of the edge, state j of v to class maps[map_v[e] + j]; the classes' costs
 * are the rows of a small matrix at `matrix[e]`, held once as it is (`costs`) and once transposed (`flipped`).
 *
 * At node v with score s = unary + incoming messages and share = 1 / max(edges to earlier, edges to later), a sweep
 * sends along every edge ahead
 *
 *     message[h] = min_g ( share * min_{i in g} s[i] - back[g] + cost[g, h] ) - least
 *
 * and adds `least` and what is left on the node, (1 - share * edges ahead) * min s, to the bound.
 */
#include <stdint.h>
#include <string.h>

#include "vector.h"

typedef struct {
    int64_t nodes;
    const int64_t *start;
    const int64_t *map_u, *map_v, *rows, *columns, *matrix;
    const int32_t *maps;
    const int64_t *to_v_at, *to_u_at;                      /* where each edge's messages start */
    const int64_t *later_at, *later, *earlier_at, *earlier; /* edges of each node, by direction */
} Layout;

#define VERY_LARGE 1e300
#define MOST (INT64_MAX / 4)

/* The two loops differ in their number type alone. */
#define MIN_SUM(T, row_value, row, out, n)             \
    for (int64_t b = 0; b < (n); b++) {                \
        T t = (row_value) + (row)[b];                  \
        (out)[b] = t < (out)[b] ? t : (out)[b];        \
    }

static void gather(const Layout *l, int64_t v, const double *unary, const double *to_v, const double *to_u, double *s) {
    int64_t d = l->start[v + 1] - l->start[v];
    memcpy(s, unary + l->start[v], d * sizeof(double));
    for (int64_t q = l->earlier_at[v]; q < l->earlier_at[v + 1]; q++) {
        int64_t e = l->earlier[q];
        const int32_t *c = l->maps + l->map_v[e];
        const double *m = to_v + l->to_v_at[e];
        for (int64_t i = 0; i < d; i++) s[i] += m[c[i]];
    }
    for (int64_t q = l->later_at[v]; q < l->later_at[v + 1]; q++) {
        int64_t e = l->later[q];
        const int32_t *c = l->maps + l->map_u[e];
        const double *m = to_u + l->to_u_at[e];
        for (int64_t i = 0; i < d; i++) s[i] += m[c[i]];
    }
}

/* One sweep, forward or back; returns the bound that holds after it.  `work` holds two rows of the widest edge. */
VECTOR
double messages_sweep(const Layout *l, int32_t forward, const double *unary, const double *costs,
                      const double *flipped, double *to_v, double *to_u, double *scores, double *work) {
    double bound = 0;
    for (int64_t k = 0; k < l->nodes; k++) {
        int64_t v = forward ? k : l->nodes - 1 - k, d = l->start[v + 1] - l->start[v];
        double *s = scores + l->start[v];
        gather(l, v, unary, to_v, to_u, s);
        int64_t before = l->earlier_at[v + 1] - l->earlier_at[v], after = l->later_at[v + 1] - l->later_at[v];
        int64_t ahead = forward ? after : before, most = before > after ? before : after;
        double share = 1.0 / (most > 1 ? most : 1), least = VERY_LARGE;
        for (int64_t i = 0; i < d; i++) least = s[i] < least ? s[i] : least;
        bound += (1.0 - share * ahead) * least;
        const int64_t *edges = forward ? l->later + l->later_at[v] : l->earlier + l->earlier_at[v];
        for (int64_t q = 0; q < ahead; q++) {
            int64_t e = edges[q], g = forward ? l->rows[e] : l->columns[e], h = forward ? l->columns[e] : l->rows[e];
            const int32_t *c = l->maps + (forward ? l->map_u[e] : l->map_v[e]);
            const double *matrix = (forward ? costs : flipped) + l->matrix[e];
            const double *back = forward ? to_u + l->to_u_at[e] : to_v + l->to_v_at[e];
            double *restrict message = forward ? to_v + l->to_v_at[e] : to_u + l->to_u_at[e]; /* of this direction alone */
            for (int64_t a = 0; a < g; a++) work[a] = VERY_LARGE;
            for (int64_t i = 0; i < d; i++) work[c[i]] = s[i] < work[c[i]] ? s[i] : work[c[i]];
            for (int64_t b = 0; b < h; b++) message[b] = VERY_LARGE;
            for (int64_t a = 0; a < g; a++) {
                const double *row = matrix + a * h;
                double value = share * work[a] - back[a];
                MIN_SUM(double, value, row, message, h)
            }
            double low = VERY_LARGE;
            for (int64_t b = 0; b < h; b++) low = message[b] < low ? message[b] : low;
            for (int64_t b = 0; b < h; b++) message[b] -= low;
            bound += low;
        }
    }
    return bound;
}

/* A choice: forward, every node takes the state that is best beside the earlier nodes' states and the later nodes'
 * messages (Kolmogorov 2006, section 5).  `ends[e]` is the earlier node of edge e;
 * `work` holds the widest node. */
void messages_decode(const Layout *l, const double *unary, const double *costs, const double *to_u, const int64_t *ends,
                     int64_t *x, double *work) {
    for (int64_t v = 0; v < l->nodes; v++) {
        int64_t d = l->start[v + 1] - l->start[v], best = 0;
        memcpy(work, unary + l->start[v], d * sizeof(double));
        for (int64_t q = l->earlier_at[v]; q < l->earlier_at[v + 1]; q++) {
            int64_t e = l->earlier[q], u = ends[e];
            const int32_t *c = l->maps + l->map_v[e];
            const double *row = costs + l->matrix[e] + l->maps[l->map_u[e] + x[u]] * l->columns[e];
            for (int64_t i = 0; i < d; i++) work[i] += row[c[i]];
        }
        for (int64_t q = l->later_at[v]; q < l->later_at[v + 1]; q++) {
            int64_t e = l->later[q];
            const int32_t *c = l->maps + l->map_u[e];
            const double *m = to_u + l->to_u_at[e];
            for (int64_t i = 0; i < d; i++) work[i] += m[c[i]];
        }
        for (int64_t i = 1; i < d; i++) best = work[i] < work[best] ? i : best;
        x[v] = best;
    }
}

/* The backward sweep once more in integers, where no rounding can break the bound.
 *
 * With any integer messages A = `to_v` to begin with, node v (last first) of score S = unary + sum of A + sum of B
 * gives each earlier edge, class by class, gift = floor(S / most), and the edge hands
 * B[h] = min_g ( cost[g, h] - A[g] + gift[g] ) on to u.  No edge is then negative, so that the sum over the nodes of
 * kept = min ( unary + sum of (A - gift) + sum of B ) bounds every choice from below, exactly.  On return `to_v` holds
 * A - gift and `to_u` holds B: a reparametrisation of the problem, and the certificate of the bound.  `above[i]` is by
 * how much the bound rises when its node takes state i.  `work` holds two rows of the widest edge and one node. */
static void gather_exact(const Layout *l, int64_t v, const int64_t *unary, const int64_t *to_v, const int64_t *to_u,
                         int64_t *s) {
    int64_t d = l->start[v + 1] - l->start[v];
    memcpy(s, unary + l->start[v], d * sizeof(int64_t));
    for (int64_t q = l->earlier_at[v]; q < l->earlier_at[v + 1]; q++) {
        int64_t e = l->earlier[q];
        for (int64_t i = 0; i < d; i++) s[i] += to_v[l->to_v_at[e] + l->maps[l->map_v[e] + i]];
    }
    for (int64_t q = l->later_at[v]; q < l->later_at[v + 1]; q++) {
        int64_t e = l->later[q];
        for (int64_t i = 0; i < d; i++) s[i] += to_u[l->to_u_at[e] + l->maps[l->map_u[e] + i]];
    }
}

static int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && a < 0); }

void messages_certify(const Layout *l, const int64_t *unary, const int64_t *flipped, int64_t *to_v, int64_t *to_u,
                      int64_t *kept, int64_t *above, int64_t *work, int64_t widest) {
    int64_t *gift = work, *slack = work + widest, *s = work + 2 * widest;
    for (int64_t v = l->nodes - 1; v >= 0; v--) {
        int64_t d = l->start[v + 1] - l->start[v], *rise = above + l->start[v];
        gather_exact(l, v, unary, to_v, to_u, s);
        int64_t before = l->earlier_at[v + 1] - l->earlier_at[v], after = l->later_at[v + 1] - l->later_at[v];
        int64_t most = before > after ? before : after;
        for (int64_t i = 0; i < d; i++) rise[i] = 0;
        for (int64_t q = l->earlier_at[v]; q < l->earlier_at[v + 1]; q++) {
            int64_t e = l->earlier[q], g = l->columns[e], h = l->rows[e];
            const int32_t *c = l->maps + l->map_v[e];
            const int64_t *matrix = flipped + l->matrix[e];
            int64_t *got = to_v + l->to_v_at[e], *message = to_u + l->to_u_at[e];
            for (int64_t a = 0; a < g; a++) gift[a] = MOST;
            for (int64_t i = 0; i < d; i++) gift[c[i]] = s[i] < gift[c[i]] ? s[i] : gift[c[i]];
            for (int64_t a = 0; a < g; a++) gift[a] = floor_divide(gift[a], most);
            for (int64_t b = 0; b < h; b++) message[b] = MOST;
            for (int64_t a = 0; a < g; a++) {
                int64_t value = gift[a] - got[a];
                const int64_t *row = matrix + a * h;
                MIN_SUM(int64_t, value, row, message, h)
            }
            for (int64_t a = 0; a < g; a++) {
                const int64_t *row = matrix + a * h;
                int64_t low = MOST;
                for (int64_t b = 0; b < h; b++) {
                    int64_t t = row[b] - message[b];
                    low = t < low ? t : low;
                }
                slack[a] = gift[a] - got[a] + low;
                got[a] -= gift[a];
            }
            for (int64_t i = 0; i < d; i++) rise[i] += slack[c[i]];
        }
        gather_exact(l, v, unary, to_v, to_u, s);
        int64_t least = MOST;
        for (int64_t i = 0; i < d; i++) least = s[i] < least ? s[i] : least;
        for (int64_t i = 0; i < d; i++) rise[i] += s[i] - least;
        kept[v] = least;
    }
}
