// From the slowest vertex of a frontier to the fastest: maximum flow on what has no slack, then a shift of potentials.
//
// A node's potential is the time of its event. Flow on an arc is what a unit of time on it is worth (in slope units); the
// flow from source to sink is what a unit of the deadline is worth, the slope of the frontier. Every residual keeps a slack
// of 0 or more, which is complementary slackness: the plan is always optimal for its own deadline. See Fulkerson and
// Kelley (1961) on the project time-cost curve.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "network.h"

namespace joulewise {

class Solver {
  public:
    int build(const jw_hulls &hulls, const jw_hulls *exact, const jw_dag &dag, int32_t snapshots);
    int advance(int64_t budget);
    int plan(int64_t at, int64_t *start, int64_t *end, int64_t *worth);
    int64_t bytes() const;

    std::vector<int64_t> time, energy, slope;  // of every vertex, slowest first

  private:
    struct Snapshot {
        int32_t vertex;
        int64_t slope, cost;
        std::vector<int64_t> flow, potential;
    };

    int64_t slack(int32_t end_name, int64_t span) const {
        const Arc &arc = network_.arcs[end_name >> 1];
        return (end_name & 1) ? arc.backward - span : span - arc.forward;
    }
    void start();
    int64_t now() const { return potential_[network_.sink()] - potential_[network_.source()]; }
    int step();
    int fill();
    bool search();
    void shift(int64_t by);
    int augment();
    int emit();
    int resum(int64_t *sum) const;
    void keep();
    void restore(const Snapshot &snapshot);

    Network network_;
    Hulls exact_;
    bool has_exact_ = false;
    bool done_ = false;
    bool fresh_ = false;  // the last search has not been used for flow yet

    std::vector<int64_t> potential_;
    int64_t slope_ = 0;  // flow from source to sink
    int64_t cost_ = 0;   // by the hulls that flow runs on
    int64_t shift_ = 0;  // how far the search found the sink
    int64_t scanned_ = 0;  // ends looked at, ever

    // One search: nodes in the order in which they were settled, and how far each is.
    std::vector<int32_t> settled_;
    std::vector<int32_t> rank_;  // position in settled_, or -1
    std::vector<int64_t> distance_;
    std::vector<std::pair<int64_t, int32_t>> heap_;
    std::vector<int32_t> tried_;  // per node: the next end to try
    std::vector<int32_t> path_;

    std::vector<Snapshot> kept_;
    int32_t keep_at_most_ = 0;
    int32_t keep_every_ = 1;
};

}  // namespace joulewise
