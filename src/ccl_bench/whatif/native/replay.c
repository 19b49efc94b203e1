/* The replay of an event graph: every event happens when all its causes have passed.
 * event_graph.py describes the graph; indices are those of its arrays, and in their bounds. */
#include <stdbool.h>
#include <stdint.h>

/* Puts every event behind its causes, and returns how many could be: fewer than all where events wait for each
 * other in a cycle [A. B. Kahn, Topological sorting of large networks, 1962]. `missing` counts the causes of
 * each event. Events of a chain follow each other as long as they can, because they lie side by side. */
int64_t replay_order(int64_t size, const bool *continues, const int64_t *begins, const int64_t *reached,
                     int64_t *missing, int64_t *order) {
    int64_t ordered = 0, waiting = size; /* the events that are ready wait at the end of `order` */
    for (int64_t event = size - 1; event >= 0; event--)
        if (!missing[event]) order[--waiting] = event;
    while (waiting < size) {
        int64_t event = order[waiting++];
        bool goes_on = true;
        while (goes_on) {
            order[ordered++] = event;
            for (int64_t edge = begins[event]; edge < begins[event + 1]; edge++)
                if (!--missing[reached[edge]]) order[--waiting] = reached[edge];
            event++;
            goes_on = event < size && continues[event] && !--missing[event];
        }
    }
    return ordered;
}

/* Sets the time of each event: `moments` holds the earliest possible one. */
void replay_times(int64_t size, const int64_t *order, const bool *continues, const int64_t *value,
                  const int64_t *begins, const int64_t *source, const int64_t *edge_value, const double *values,
                  double *moments) {
    for (int64_t place = 0; place < size; place++) {
        int64_t event = order[place];
        double moment = moments[event];
        if (continues[event]) {
            double passed = moments[event - 1] + values[value[event]];
            if (passed > moment) moment = passed;
        }
        for (int64_t edge = begins[event]; edge < begins[event + 1]; edge++) {
            double passed = moments[source[edge]] + values[edge_value[edge]];
            if (passed > moment) moment = passed;
        }
        moments[event] = moment;
    }
}
