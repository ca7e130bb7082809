// The arcs that flow runs on: one for every operation (start -> end) and one for every edge, with a source and a sink.
//
// An operation's arc stands for parallel arcs, one a hull point k: length d[k], capacity s[k] - s[k-1], the last without
// limit. Because slopes rise, they fill in order, so one number (the flow) says which are full. Seen from the residual
// graph an arc then has one forward length (its first point with room) and one backward length (its last with flow).
#pragma once

#include <cstdint>
#include <vector>

#include "flow.h"

namespace joulewise {

constexpr int64_t UNLIMITED = INT64_C(1) << 62;

struct Arc {
    int32_t tail, head;
    int64_t forward;   // length of the forward residual
    int64_t backward;  // length of the backward residual; UNLIMITED where no flow could be taken back
};

// One end of an arc, in the list of the node that it leaves or enters.
struct End {
    int32_t other;  // the node at the other end
    int32_t arc;    // arc index * 2 + (1 where the arc enters this node)
};

struct Hulls {
    std::vector<int32_t> start;
    std::vector<int64_t> duration, slope, energy;

    // 0 or the error.
    int read(const jw_hulls &given);
    int64_t longest(int32_t hull) const { return duration[start[hull]]; }
    // What an operation costs that lasts `time`, by the line between the points beside it.
    int64_t cost(int32_t hull, int64_t time) const;
};

class Network {
  public:
    int build(const jw_hulls &hulls, const jw_dag &dag);

    int32_t nodes() const { return static_cast<int32_t>(first.size()) - 1; }
    int32_t source() const { return nodes() - 2; }
    int32_t sink() const { return nodes() - 1; }

    // How much more can run forward, or be taken back, at the present residual length.
    int64_t room(int32_t arc) const {
        return arc < operations ? upper(arc) - flow[arc] : UNLIMITED;
    }
    int64_t held(int32_t arc) const;
    // Adds flow, at most room(); or takes it back (negative), at most held().
    void push(int32_t arc, int64_t amount);
    // Sets everything from `flow` again, after flow has been replaced.
    void refresh();

    Hulls hulls;
    int32_t operations = 0;
    std::vector<int32_t> hull;   // of every operation
    std::vector<Arc> arcs;       // operations first
    std::vector<int64_t> flow;   // on every arc
    std::vector<int32_t> first;  // nodes + 1, into ends
    std::vector<End> ends;
    std::vector<int32_t> order;  // nodes, each after all that lead to it

  private:
    // Full at: the flow at which a point's arc and all before it are full.
    int64_t full_at(int32_t arc, int32_t point) const {
        return point + 1 == hulls.start[hull[arc] + 1] ? UNLIMITED : hulls.slope[point];
    }
    int64_t upper(int32_t arc) const { return full_at(arc, point[arc]); }
    void measure(int32_t arc);
    void list_ends();
    int sort();

    std::vector<int32_t> point;  // of every operation: the first hull point with room, as an index into hulls
};

}  // namespace joulewise
