#include "network.h"

#include <algorithm>

namespace joulewise {

int Hulls::read(const jw_hulls &given) {
    if (given.count < 1 || !given.start || !given.duration || !given.slope || given.start[0] != 0) return JW_FLOW_BAD_HULL;
    for (int32_t h = 0; h < given.count; ++h) {
        const int32_t begin = given.start[h], end = given.start[h + 1];
        if (begin >= end) return JW_FLOW_BAD_HULL;
        for (int32_t p = begin; p < end; ++p) {
            if (given.duration[p] < 0) return JW_FLOW_BAD_HULL;
            if (given.duration[p] >= UNLIMITED) return JW_FLOW_RANGE;
            if (p + 1 == end) break;
            if (given.duration[p] <= given.duration[p + 1]) return JW_FLOW_BAD_HULL;
            if (given.slope[p] <= (p > begin ? given.slope[p - 1] : 0)) return JW_FLOW_BAD_HULL;
            if (given.slope[p] >= UNLIMITED) return JW_FLOW_RANGE;
        }
    }
    const int32_t points = given.start[given.count];
    start.assign(given.start, given.start + given.count + 1);
    duration.assign(given.duration, given.duration + points);
    slope.assign(given.slope, given.slope + points);
    if (given.energy) energy.assign(given.energy, given.energy + points);
    return JW_FLOW_DONE;
}

int64_t Hulls::cost(int32_t h, int64_t time) const {
    const int32_t begin = start[h], end = start[h + 1];
    if (time >= duration[begin]) return energy[begin];
    // The slower of the two points around `time`.
    const auto after = std::lower_bound(duration.begin() + begin, duration.begin() + end, time, std::greater<int64_t>());
    if (after == duration.begin() + end) return energy[end - 1];
    const auto slower = static_cast<size_t>(after - duration.begin()) - 1;
    return energy[slower] + slope[slower] * (duration[slower] - time);
}

int Network::build(const jw_hulls &given, const jw_dag &dag) {
    if (const int error = hulls.read(given)) return error;
    if (dag.operations < 1 || !dag.hull || dag.edges < 0) return JW_FLOW_BAD_INDEX;
    if (dag.edges > 0 && !(dag.before && dag.after && dag.lag)) return JW_FLOW_BAD_INDEX;
    // Two nodes an operation, and up to two more arcs for it: their numbers, doubled, must fit 32 bits.
    if (dag.operations > (1 << 27) || dag.edges > (1 << 28)) return JW_FLOW_RANGE;
    operations = dag.operations;
    hull.assign(dag.hull, dag.hull + operations);
    const int32_t source_node = 2 * operations, sink_node = source_node + 1;
    std::vector<char> waits(operations), awaited(operations);
    __int128 longest = 0, steepest = 0;  // no sum of lengths or of flows will be larger
    for (int32_t i = 0; i < operations; ++i) {
        if (hull[i] < 0 || hull[i] >= given.count) return JW_FLOW_BAD_INDEX;
        longest += hulls.longest(hull[i]);
        const int32_t begin = hulls.start[hull[i]], end = hulls.start[hull[i] + 1];
        steepest += end - begin > 1 ? hulls.slope[end - 2] : 0;
        arcs.push_back({2 * i, 2 * i + 1, 0, 0});
    }
    for (int32_t e = 0; e < dag.edges; ++e) {
        const int32_t before = dag.before[e], after = dag.after[e];
        if (before < 0 || after < 0 || before >= operations || after >= operations) return JW_FLOW_BAD_INDEX;
        if (dag.lag[e] < 0) return JW_FLOW_BAD_HULL;
        longest += dag.lag[e];
        awaited[before] = waits[after] = 1;
        arcs.push_back({2 * before + 1, 2 * after, dag.lag[e], UNLIMITED});
    }
    if (longest >= UNLIMITED / 4 || steepest >= UNLIMITED / 4) return JW_FLOW_RANGE;
    for (int32_t i = 0; i < operations; ++i) {
        if (!waits[i]) arcs.push_back({source_node, 2 * i, 0, UNLIMITED});
        if (!awaited[i]) arcs.push_back({2 * i + 1, sink_node, 0, UNLIMITED});
    }
    flow.assign(arcs.size(), 0);
    first.assign(sink_node + 2, 0);
    refresh();
    list_ends();
    return sort();
}

void Network::list_ends() {
    for (const Arc &arc : arcs) ++first[arc.tail + 1], ++first[arc.head + 1];
    for (int32_t v = 0; v < nodes(); ++v) first[v + 1] += first[v];
    ends.resize(2 * arcs.size());
    std::vector<int32_t> next(first.begin(), first.end() - 1);
    for (size_t a = 0; a < arcs.size(); ++a) {
        const auto name = static_cast<int32_t>(2 * a);
        ends[next[arcs[a].tail]++] = {arcs[a].head, name};
        ends[next[arcs[a].head]++] = {arcs[a].tail, name + 1};
    }
}

int Network::sort() {
    std::vector<int32_t> waits(nodes());
    for (const Arc &arc : arcs) ++waits[arc.head];
    order.assign(1, source());
    for (size_t i = 0; i < order.size(); ++i) {
        for (int32_t e = first[order[i]]; e < first[order[i] + 1]; ++e) {
            if (!(ends[e].arc & 1) && --waits[ends[e].other] == 0) order.push_back(ends[e].other);
        }
    }
    return order.size() == static_cast<size_t>(nodes()) ? JW_FLOW_DONE : JW_FLOW_CYCLE;
}

int64_t Network::held(int32_t arc) const {
    if (arc >= operations) return flow[arc];
    const int32_t begin = hulls.start[hull[arc]];
    int32_t last = point[arc];  // the last point that holds flow
    if (last > begin && flow[arc] == hulls.slope[last - 1]) --last;
    return flow[arc] - (last > begin ? hulls.slope[last - 1] : 0);
}

void Network::push(int32_t arc, int64_t amount) {
    flow[arc] += amount;
    if (arc >= operations) {
        arcs[arc].backward = flow[arc] > 0 ? arcs[arc].forward : UNLIMITED;
        return;
    }
    const int32_t begin = hulls.start[hull[arc]];
    int32_t &at = point[arc];
    while (flow[arc] >= full_at(arc, at)) ++at;
    while (at > begin && flow[arc] < hulls.slope[at - 1]) --at;
    measure(arc);
}

void Network::measure(int32_t arc) {
    const int32_t begin = hulls.start[hull[arc]], at = point[arc];
    const bool at_the_corner = at > begin && flow[arc] == hulls.slope[at - 1];
    arcs[arc].forward = hulls.duration[at];
    arcs[arc].backward = flow[arc] == 0 ? UNLIMITED : hulls.duration[at_the_corner ? at - 1 : at];
}

void Network::refresh() {
    point.resize(operations);
    for (int32_t i = 0; i < operations; ++i) point[i] = hulls.start[hull[i]];
    for (size_t a = 0; a < arcs.size(); ++a) push(static_cast<int32_t>(a), 0);
}

}  // namespace joulewise
