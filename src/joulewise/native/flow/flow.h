/* The frontier solver: what a caller of the library sees. Plain C, so that ctypes can call it.
 *
 * All numbers are integers in units that the caller chose: times in u seconds, slopes (watts) in w, so joules in u*w.
 * A convex curve ("hull") lists durations d[0] > d[1] > ... > d[K] and, for every step from d[k] to d[k+1], its slope
 * s[k] > 0: what a saved unit of time costs there, strictly rising. Several operations may share a hull.
 *
 * No call throws, prints or aborts; a negative result is one of the errors below and leaves the object fit to be freed.
 * An object serves one thread at a time; different objects may serve different threads.
 */
#ifndef JOULEWISE_FLOW_H
#define JOULEWISE_FLOW_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define JW_FLOW_EXPORT __attribute__((visibility("default")))

enum {
    JW_FLOW_DONE = 0,
    JW_FLOW_MORE = 1,       /* call again */
    JW_FLOW_BAD_INDEX = -1, /* an operation, hull, edge or vertex that does not exist */
    JW_FLOW_BAD_HULL = -2,  /* durations that do not fall, slopes that do not rise, a negative number */
    JW_FLOW_CYCLE = -3,     /* operations that wait for each other */
    JW_FLOW_RANGE = -4,     /* a sum would leave 62 bits: choose coarser units */
    JW_FLOW_NO_MEMORY = -5,
    JW_FLOW_BROKEN = -6,    /* an invariant does not hold: a bug */
    JW_FLOW_LATE = -7,      /* the durations do not meet the deadline */
};

struct jw_hulls {
    int32_t count;
    const int32_t *start;    /* count + 1: the points of hull h are start[h] .. start[h + 1] - 1 */
    const int64_t *duration; /* of every point */
    const int64_t *slope;    /* of the step after every point; the last of a hull is not read */
    const int64_t *energy;   /* of every point; may be NULL where no energy is asked for */
};

struct jw_dag {
    int32_t operations;
    const int32_t *hull; /* of every operation */
    int32_t edges;
    const int32_t *before;
    const int32_t *after;
    const int64_t *lag;
};

struct jw_vertices {
    int32_t count;
    const int64_t *time;
    const int64_t *energy;
    const int64_t *slope; /* of the frontier between this vertex and the one before it (slower); 0 at the first */
};

struct jw_flow;

/* Copies all that it is given. `exact` are the operations' true curves where `hulls` is a coarser picture of them (a
 * grid of slopes), else NULL: vertices then cost what their durations truly cost. At most `snapshots` states are kept. */
JW_FLOW_EXPORT int jw_flow_new(const struct jw_hulls *hulls, const struct jw_hulls *exact, const struct jw_dag *dag,
                               int32_t snapshots, struct jw_flow **made);
JW_FLOW_EXPORT void jw_flow_free(struct jw_flow *flow);

/* Finds further vertices, slowest first, until all are found (DONE) or about `budget` arcs have been looked at (MORE). */
JW_FLOW_EXPORT int jw_flow_advance(struct jw_flow *flow, int64_t budget);

/* All vertices found so far; the arrays are the object's own and stay until the next advance. */
JW_FLOW_EXPORT int jw_flow_vertices(const struct jw_flow *flow, struct jw_vertices *view);

/* When every operation may start and must have ended in a plan of least energy for an iteration time from the fastest
 * vertex to the slowest, by running again from the snapshot before it. It lasts as long as there is room, but no longer
 * than its hull's first duration. Few operations lie between two points of their hull: the plan is no mean of others.
 * `worth` is the slope at each operation: what the iteration would save if it were a unit of time shorter. */
JW_FLOW_EXPORT int jw_flow_plan(struct jw_flow *flow, int64_t time, int64_t *start, int64_t *end, int64_t *worth);

/* What operations may choose from, as measured; each list fastest first. */
struct jw_options {
    int32_t count;
    const int32_t *start;    /* count + 1 */
    const int64_t *duration; /* of every option */
    const double *energy;    /* of every option */
    const int32_t *setting;  /* of every option: equal numbers need no switch */
};

/* Two operations that follow each other in a lane (on a GPU) and have different settings cost the later one this. */
struct jw_switch {
    int64_t duration;
    double energy;
    const int32_t *previous; /* of every operation: the one before it in its lane, or -1; NULL: no switches */
};

/* First choices: operations in order, each the cheapest that ends by its planned end, given when those before it really
 * end. What one leaves over because no option fits exactly, the next may use. LATE where even the fastest does not fit. */
JW_FLOW_EXPORT int jw_flow_fit(const struct jw_options *options, const struct jw_dag *dag, const int64_t *end,
                               int32_t *choice);

/* Changes choices (an index into each operation's options) to what saves energy as long as all end by the deadline, most
 * energy a unit of time first. The dag's hulls are read as lists of options. LATE where the given choices are late. */
JW_FLOW_EXPORT int jw_flow_repair(const struct jw_options *options, const struct jw_dag *dag,
                                  const struct jw_switch *switching, int64_t deadline, int32_t *choice);

/* Bytes held. */
JW_FLOW_EXPORT int64_t jw_flow_bytes(const struct jw_flow *flow);

#ifdef __cplusplus
}
#endif
#endif
