/* Exact moves on random induced trees, under the hard memory limit.
 *
 * The states of node v are [start[v], start[v + 1]); its neighbours are neighbour[at[v] .. at[v + 1]), each with a
 * matrix pool[matrix + k * states of v + i]: the cost of v in state i beside the neighbour in state k.  Node v holds
 * uses[held + i] bytes in rows [from, to) for every one of its terms.
 *
 * A move grows a tree from a random node by nodes with exactly one neighbour in it, fixes all others and minimises
 * unary + price + (temperature * Gumbel noise) over the tree by dynamic programming from the leaves:
 *
 *     score_v[i] = own_v[i] + sum over fixed neighbours w of cost_vw[i, x_w] + sum over children c of message_c[i]
 *     message_v[k] = min_i ( score_v[i] + cost_vp[i, k] )           for the parent p
 *
 * Levels (bytes above the limit) are kept in a tree of maxima over the rows, so that a node's change costs O(log rows).
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "vector.h"

typedef struct {
    int64_t nodes, rows;
    const int64_t *start;
    const int64_t *at, *neighbour, *matrix, *twin; /* twin[q]: the same edge seen from the neighbour */
    const double *pool;
    const int64_t *term_at, *from, *to, *held;
    const double *uses;
} Graph;

typedef struct {
    int64_t leaves;       /* a power of two, at least `rows` */
    double *most, *extra; /* most[k] = extra[k] + max of the children */
} Levels;

static void add(const Levels *l, int64_t a, int64_t b, double amount) {
    if (a >= b || amount == 0) return;
    int64_t left = a + l->leaves, right = b + l->leaves, low = left, high = right - 1;
    for (; left < right; left >>= 1, right >>= 1) {
        if (left & 1) { l->most[left] += amount; l->extra[left] += amount; left++; }
        if (right & 1) { right--; l->most[right] += amount; l->extra[right] += amount; }
    }
    for (int64_t k = low >> 1; k >= 1; k >>= 1) {
        double x = l->most[2 * k], y = l->most[2 * k + 1];
        l->most[k] = (x > y ? x : y) + l->extra[k];
    }
    for (int64_t k = high >> 1; k >= 1; k >>= 1) {
        double x = l->most[2 * k], y = l->most[2 * k + 1];
        l->most[k] = (x > y ? x : y) + l->extra[k];
    }
}

/* Bytes in use in every row. */
void forest_levels(const Graph *g, const int64_t *x, double *level) {
    for (int64_t r = 0; r <= g->rows; r++) level[r] = 0;
    for (int64_t v = 0; v < g->nodes; v++)
        for (int64_t t = g->term_at[v]; t < g->term_at[v + 1]; t++) {
            double u = g->uses[g->held[t] + x[v]];
            level[g->from[t]] += u;
            level[g->to[t]] -= u;
        }
    for (int64_t r = 1; r < g->rows; r++) level[r] += level[r - 1];
}

/* What the prices of the rows make of every state: until[r] is the sum of the prices of the rows before r. */
void forest_price(const Graph *g, const double *until, double *price) {
    for (int64_t v = 0; v < g->nodes; v++) {
        int64_t d = g->start[v + 1] - g->start[v];
        double *p = price + g->start[v];
        for (int64_t i = 0; i < d; i++) p[i] = 0;
        for (int64_t t = g->term_at[v]; t < g->term_at[v + 1]; t++) {
            double w = until[g->to[t]] - until[g->from[t]];
            if (w == 0) continue;
            const double *u = g->uses + g->held[t];
            for (int64_t i = 0; i < d; i++) p[i] += w * u[i];
        }
    }
}

/* Cost of a choice. */
double forest_cost(const Graph *g, const double *unary, const int64_t *x) {
    double total = 0;
    for (int64_t v = 0; v < g->nodes; v++) {
        int64_t d = g->start[v + 1] - g->start[v];
        total += unary[g->start[v] + x[v]];
        for (int64_t q = g->at[v]; q < g->at[v + 1]; q++)
            if (g->neighbour[q] < v) total += g->pool[g->matrix[q] + x[g->neighbour[q]] * d + x[v]];
    }
    return total;
}

static uint64_t next(uint64_t *s) { /* xorshift64* (Vigna 2016) */
    uint64_t z = *s;
    z ^= z >> 12;
    z ^= z << 25;
    z ^= z >> 27;
    *s = z;
    return z * 0x2545F4914F6CDD1DULL;
}
static double uniform(uint64_t *s) { return ((next(s) >> 11) + 0.5) * 0x1p-53; }
static int64_t below(uint64_t *s, int64_t n) {
    int64_t k = (int64_t)(uniform(s) * n); /* uniform may round up to 1 */
    return k < n ? k : n - 1;
}

typedef struct {
    int64_t *tree, *parent, *link, *count, *waiting, *seen; /* per node */
    int64_t *chosen;                                        /* new state of each tree node, by position in `tree` */
    double *score;                                          /* per state */
    double *message;                                        /* per state of the widest node */
    double *gumbel;                                         /* GUMBEL samples of the noise */
} Work;

#define GUMBEL 4096

VECTOR
static double run_move(const Graph *g, const double *unary, const double *price, double temperature, int64_t size,
                       int64_t seed, uint64_t *rng, const int64_t *x, Work *w, int64_t *grown) {
    int64_t n = 0, waiting = 0, touched = 0;
    int64_t *tree = w->tree;
    w->waiting[waiting++] = seed;
    w->parent[seed] = -1;
    /* count[v]: neighbours in the tree; -1 in the tree itself */
    int64_t *touch = w->seen;
    touch[touched++] = seed;
    while (waiting && n < size) {
        int64_t k = below(rng, waiting), v = w->waiting[k];
        w->waiting[k] = w->waiting[--waiting];
        if (w->count[v] > 1) continue;
        w->count[v] = -1;
        tree[n++] = v;
        for (int64_t q = g->at[v]; q < g->at[v + 1]; q++) {
            int64_t u = g->neighbour[q];
            if (w->count[u] < 0) continue;
            if (w->count[u]++ == 0) {
                w->parent[u] = v;
                w->waiting[waiting++] = u;
                touch[touched++] = u;
            }
        }
    }
    for (int64_t k = 0; k < n; k++) { /* own score and the fixed neighbours' */
        int64_t v = tree[k], d = g->start[v + 1] - g->start[v];
        double *s = w->score + g->start[v];
        const double *c = unary + g->start[v], *p = price + g->start[v];
        for (int64_t i = 0; i < d; i++) s[i] = c[i] + p[i];
        if (temperature > 0) {
            uint64_t z = next(rng);
            for (int64_t i = 0; i < d; i++) s[i] -= temperature * w->gumbel[(z + (uint64_t)i * 2654435761u) % GUMBEL];
        }
        for (int64_t q = g->at[v]; q < g->at[v + 1]; q++) {
            int64_t u = g->neighbour[q];
            if (w->count[u] < 0) {
                if (u == w->parent[v]) w->link[v] = q;
                continue;
            }
            const double *row = g->pool + g->matrix[q] + x[u] * d;
            for (int64_t i = 0; i < d; i++) s[i] += row[i];
        }
    }
    for (int64_t k = n - 1; k > 0; k--) { /* leaves first */
        int64_t v = tree[k], p = w->parent[v], d = g->start[v + 1] - g->start[v], e = g->start[p + 1] - g->start[p];
        const double *s = w->score + g->start[v];
        double *out = w->score + g->start[p];
        const double *m = g->pool + g->matrix[g->twin[w->link[v]]]; /* [state of v][state of p] */
        double *message = w->message;
        for (int64_t j = 0; j < e; j++) message[j] = s[0] + m[j];
        for (int64_t i = 1; i < d; i++) {
            const double *row = m + i * e;
            double base = s[i];
            for (int64_t j = 0; j < e; j++) {
                double t = base + row[j];
                message[j] = t < message[j] ? t : message[j];
            }
        }
        for (int64_t j = 0; j < e; j++) out[j] += message[j];
    }
    double delta = 0;
    for (int64_t k = 0; k < n; k++) { /* root first; count[v] becomes -2 - position */
        int64_t v = tree[k], d = g->start[v + 1] - g->start[v], best = x[v];
        const double *s = w->score + g->start[v], *row = NULL, *old = NULL;
        if (k > 0) {
            int64_t p = w->parent[v];
            const double *m = g->pool + g->matrix[w->link[v]];
            row = m + w->chosen[-2 - w->count[p]] * d;
            old = m + x[p] * d;
        }
        double low = s[best] + (row ? row[best] : 0);
        for (int64_t i = 0; i < d; i++) {
            double t = s[i] + (row ? row[i] : 0);
            if (t < low) { low = t; best = i; }
        }
        w->chosen[k] = best;
        w->count[v] = -2 - k;
        if (row) delta += row[best] - old[x[v]];
    }
    for (int64_t k = 0; k < n; k++) {
        int64_t v = tree[k], a = w->chosen[k], b = x[v], d = g->start[v + 1] - g->start[v];
        if (a == b) continue;
        delta += unary[g->start[v] + a] - unary[g->start[v] + b];
        for (int64_t q = g->at[v]; q < g->at[v + 1]; q++) {
            int64_t u = g->neighbour[q];
            if (w->count[u] < 0) continue;
            const double *row = g->pool + g->matrix[q] + x[u] * d;
            delta += row[a] - row[b];
        }
    }
    for (int64_t k = 0; k < touched; k++) w->count[touch[k]] = 0;
    *grown = n;
    return delta;
}

/* `moves` moves from x, whose cost is *cost.  In hard mode a move that would lift the highest level above `ceiling`
 * (or above what it is, where that is more) is undone.  Every choice within the limit that is better than *best_cost
 * goes to `best`.  Returns the moves that changed something. */
int64_t forest_search(const Graph *g, const Levels *l, const double *unary, const double *price, double temperature,
                      int64_t largest, int64_t moves, int32_t hard, uint64_t *rng, int64_t *x, double *cost,
                      int64_t *best, double *best_cost, int64_t *integers, double *score, double *message,
                      double *gumbel, const volatile int32_t *stop) {
    int64_t N = g->nodes, changed = 0;
    Work w = {integers,         integers + N,     integers + 2 * N, integers + 3 * N, integers + 4 * N, integers + 5 * N,
              integers + 6 * N, score, message, gumbel};
    memset(w.count, 0, N * sizeof(int64_t));
    for (int64_t m = 0; m < moves && !*stop; m++) {
        int64_t size = (int64_t)exp(uniform(rng) * log((double)largest + 1)), n = 0;
        double before = l->most[1];
        double delta = run_move(g, unary, price, temperature, size < 1 ? 1 : size, below(rng, N), rng, x, &w, &n);
        int64_t moved = 0;
        for (int64_t k = 0; k < n; k++) {
            int64_t v = w.tree[k], a = w.chosen[k], b = x[v];
            if (a == b) continue;
            moved++;
            for (int64_t t = g->term_at[v]; t < g->term_at[v + 1]; t++)
                add(l, g->from[t], g->to[t], g->uses[g->held[t] + a] - g->uses[g->held[t] + b]);
        }
        if (!moved) continue;
        if (hard && l->most[1] > 0 && l->most[1] > before) {
            for (int64_t k = 0; k < n; k++) {
                int64_t v = w.tree[k], a = w.chosen[k], b = x[v];
                if (a == b) continue;
                for (int64_t t = g->term_at[v]; t < g->term_at[v + 1]; t++)
                    add(l, g->from[t], g->to[t], g->uses[g->held[t] + b] - g->uses[g->held[t] + a]);
            }
            continue;
        }
        changed++;
        *cost += delta;
        for (int64_t k = 0; k < n; k++) x[w.tree[k]] = w.chosen[k];
        if (*cost < *best_cost && l->most[1] <= 0) {
            *best_cost = *cost;
            memcpy(best, x, N * sizeof(int64_t));
        }
    }
    return changed;
}
