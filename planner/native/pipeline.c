/* The longest path through the passes of a pipeline, each of which begins when the pass before it on its device has
   ended and what it receives has arrived.  Index -1 is a pass that ends at 0. */

#include <stdint.h>

/* ends[k] of every pass, which stand behind what they wait for; ends[count] is set to 0. */
void pipeline_ends(int64_t count, const int32_t *previous, const int32_t *source, const double *lag,
                   const double *seconds, double *ends)
{
    ends[count] = 0.0;
    for (int64_t k = 0; k < count; k++) {
        double free_at = ends[previous[k] < 0 ? count : previous[k]];
        double arrival = ends[source[k] < 0 ? count : source[k]] + lag[k];
        ends[k] = (free_at > arrival ? free_at : arrival) + seconds[k];
    }
}

/* Adds to counts[place[k]] and crossed[boundary[k]] every pass of the path that leads to pass `at`, and every transfer;
   the last entry of `crossed` takes the transfers within a device. */
void pipeline_path(int64_t count, const int32_t *previous, const int32_t *source, const double *lag,
                   const double *ends, const int32_t *place, const int32_t *boundary, int64_t boundaries, int64_t at,
                   int64_t *counts, int64_t *crossed)
{
    while (at >= 0) {
        counts[place[at]]++;
        double free_at = ends[previous[at] < 0 ? count : previous[at]];
        double arrival = ends[source[at] < 0 ? count : source[at]] + lag[at];
        if (free_at >= arrival) {
            at = previous[at];
        } else {
            crossed[boundary[at] < 0 ? boundaries : boundary[at]]++;
            at = source[at];
        }
    }
}
