#include "solver.h"

#include <algorithm>
#include <functional>

namespace joulewise {

int Solver::build(const jw_hulls &hulls, const jw_hulls *exact, const jw_dag &dag, int32_t snapshots) {
    if (const int error = network_.build(hulls, dag)) return error;
    has_exact_ = exact != nullptr;
    if (has_exact_) {
        if (exact->count != hulls.count) return JW_FLOW_BAD_HULL;
        if (const int error = exact_.read(*exact)) return error;
    }
    if ((has_exact_ ? exact_ : network_.hulls).energy.empty()) return JW_FLOW_BAD_HULL;
    keep_at_most_ = std::max(2, snapshots);
    const int32_t nodes = network_.nodes();
    potential_.assign(nodes, 0);
    distance_.assign(nodes, UNLIMITED);
    rank_.assign(nodes, -1);
    tried_.assign(nodes, 0);
    start();
    const int error = resum(&cost_);
    return error ? error : emit();
}

// All at their slowest: every event as early as can be.
void Solver::start() {
    for (const int32_t u : network_.order) {
        for (int32_t e = network_.first[u]; e < network_.first[u + 1]; ++e) {
            const End end = network_.ends[e];
            if (end.arc & 1) continue;
            potential_[end.other] = std::max(potential_[end.other], potential_[u] + network_.arcs[end.arc >> 1].forward);
        }
    }
}

int Solver::advance(int64_t budget) {
    const int64_t until = scanned_ + budget;
    while (!done_ && scanned_ < until) {
        if (const int error = step()) return error;
    }
    return done_ ? JW_FLOW_DONE : JW_FLOW_MORE;
}

// On to the next vertex: less time at the present slope.
int Solver::step() {
    if (const int error = fill()) return error;
    if (done_) return JW_FLOW_DONE;
    shift(shift_);
    int64_t dearer;
    if (__builtin_mul_overflow(slope_, shift_, &dearer) || __builtin_add_overflow(cost_, dearer, &cost_) ||
        cost_ >= UNLIMITED) {
        return JW_FLOW_RANGE;
    }
    return emit();
}

// As much flow as has no slack; then the search that says how far the next vertex is. Done where flow has no limit.
int Solver::fill() {
    for (;;) {
        // A search that ended in a shift still stands: what it went along has no slack now.
        if (!fresh_) {
            if (!search()) return JW_FLOW_BROKEN;
            if (shift_ > 0) {
                fresh_ = true;
                return JW_FLOW_DONE;
            }
        }
        fresh_ = false;
        const int ended = augment();
        done_ = ended == JW_FLOW_MORE;
        if (ended) return std::min(ended, 0);
    }
}

// Shortest ways from the source over residuals, by slack; false where the sink is out of reach, which cannot be.
bool Solver::search() {
    for (const int32_t v : settled_) rank_[v] = -1, distance_[v] = UNLIMITED;
    for (const auto &[far, v] : heap_) distance_[v] = UNLIMITED;
    settled_.clear();
    heap_.clear();
    const int32_t source = network_.source(), sink = network_.sink();
    distance_[source] = 0;
    rank_[source] = 0;
    settled_.push_back(source);
    size_t next = 0;
    for (;;) {
        while (next < settled_.size()) {
            const int32_t u = settled_[next++];
            const int64_t here = distance_[u], time = potential_[u];
            scanned_ += network_.first[u + 1] - network_.first[u];
            for (int32_t e = network_.first[u]; e < network_.first[u + 1]; ++e) {
                const End end = network_.ends[e];
                if (rank_[end.other] >= 0) continue;
                const int64_t span = (end.arc & 1) ? time - potential_[end.other] : potential_[end.other] - time;
                const int64_t far = here + slack(end.arc, span);
                if (far >= distance_[end.other]) continue;
                if (far >= distance_[sink]) continue;
                distance_[end.other] = far;
                if (far == here) {
                    rank_[end.other] = static_cast<int32_t>(settled_.size());
                    settled_.push_back(end.other);
                } else {
                    heap_.emplace_back(far, end.other);
                    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
                }
            }
        }
        if (rank_[sink] >= 0) break;
        for (;;) {
            if (heap_.empty()) return false;
            const auto [far, v] = heap_.front();
            std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
            heap_.pop_back();
            if (rank_[v] >= 0) continue;
            rank_[v] = static_cast<int32_t>(settled_.size());
            settled_.push_back(v);
            break;
        }
    }
    shift_ = distance_[sink];
    return true;
}

// Less time by so much, at most as far as the sink: what is nearer moves towards the sink, and the sink stays.
void Solver::shift(int64_t by) {
    for (const int32_t v : settled_) potential_[v] += std::max<int64_t>(0, by - distance_[v]);
}

// As much flow as fits on the zero-slack residuals that the search went along, found from the sink backwards: every node
// that the search settled has a way back to the source until that way is full. MORE: without limit, nothing is faster.
int Solver::augment() {
    const int32_t source = network_.source(), sink = network_.sink();
    for (const int32_t v : settled_) tried_[v] = network_.first[v];
    path_.clear();
    int32_t v = sink;
    for (;;) {
        if (v == source) {
            int64_t amount = UNLIMITED;
            for (const int32_t name : path_) {
                amount = std::min(amount, (name & 1) ? network_.held(name >> 1) : network_.room(name >> 1));
            }
            if (amount >= UNLIMITED / 2) return JW_FLOW_MORE;
            for (const int32_t name : path_) network_.push(name >> 1, (name & 1) ? -amount : amount);
            slope_ += amount;
            // Back to the full arc that is nearest to the sink.
            size_t cut = 0;
            while (cut < path_.size()) {
                const Arc &arc = network_.arcs[path_[cut] >> 1];
                const int64_t span = potential_[arc.head] - potential_[arc.tail];
                if (slack(path_[cut], span) != 0) break;
                ++cut;
            }
            if (cut == path_.size()) return JW_FLOW_BROKEN;
            const Arc &arc = network_.arcs[path_[cut] >> 1];
            v = (path_[cut] & 1) ? arc.tail : arc.head;
            path_.resize(cut);
            continue;
        }
        bool found = false;
        for (int32_t &e = tried_[v]; e < network_.first[v + 1]; ++e) {
            const End end = network_.ends[e];
            if (rank_[end.other] < 0 || rank_[end.other] >= rank_[v]) continue;
            // The residual from `other` to v: v's end of the arc, seen from the far side.
            const int32_t name = end.arc ^ 1;
            const Arc &arc = network_.arcs[name >> 1];
            if (slack(name, potential_[arc.head] - potential_[arc.tail]) != 0) continue;
            path_.push_back(name);
            v = end.other;
            found = true;
            break;
        }
        if (found) continue;
        if (path_.empty()) return JW_FLOW_DONE;
        // A dead end: the node is never entered again, because the way into it is passed over.
        const Arc &arc = network_.arcs[path_.back() >> 1];
        v = (path_.back() & 1) ? arc.tail : arc.head;
        path_.pop_back();
        ++tried_[v];
    }
}

int Solver::emit() {
    int64_t sum = cost_;
    if (has_exact_) {
        if (const int error = resum(&sum)) return error;
    }
    time.push_back(now());
    energy.push_back(sum);
    slope.push_back(slope_);
    keep();
    return JW_FLOW_DONE;
}

int Solver::resum(int64_t *sum) const {
    const Hulls &hulls = has_exact_ ? exact_ : network_.hulls;
    *sum = 0;
    for (int32_t i = 0; i < network_.operations; ++i) {
        const int64_t cost = hulls.cost(network_.hull[i], potential_[2 * i + 1] - potential_[2 * i]);
        if (__builtin_add_overflow(*sum, cost, sum) || *sum >= UNLIMITED || *sum <= -UNLIMITED) return JW_FLOW_RANGE;
    }
    return JW_FLOW_DONE;
}

// Every so many vertices; when there are too many, every other one goes and the distance doubles.
void Solver::keep() {
    const auto vertex = static_cast<int32_t>(time.size()) - 1;
    if (vertex % keep_every_ != 0) return;
    if (static_cast<int32_t>(kept_.size()) == keep_at_most_) {
        keep_every_ *= 2;
        size_t count = 0;
        for (size_t i = 0; i < kept_.size(); i += 2, ++count) {
            if (count != i) kept_[count] = std::move(kept_[i]);
        }
        kept_.resize(count);
        if (vertex % keep_every_ != 0) return;
    }
    kept_.push_back({vertex, slope_, cost_, network_.flow, potential_});
}

void Solver::restore(const Snapshot &snapshot) {
    network_.flow = snapshot.flow;
    network_.refresh();
    potential_ = snapshot.potential;
    slope_ = snapshot.slope;
    cost_ = snapshot.cost;
    fresh_ = false;
}

int Solver::plan(int64_t at, int64_t *start, int64_t *end, int64_t *worth) {
    if (at > time.front() || at < time.back()) return JW_FLOW_BAD_INDEX;
    const Snapshot present = {0, slope_, cost_, network_.flow, potential_};
    const bool was_done = done_;
    // The fastest snapshot that is no faster.
    size_t from = kept_.size() - 1;
    while (time[kept_[from].vertex] < at) --from;
    restore(kept_[from]);
    int error = JW_FLOW_DONE;
    while (!error && now() > at) {
        done_ = false;
        error = fill();
        if (!error && done_) error = JW_FLOW_BROKEN;
        if (!error) shift(std::min(shift_, now() - at));
    }
    for (int32_t i = 0; i < network_.operations && !error; ++i) {
        start[i] = potential_[2 * i] - potential_[network_.source()];
        end[i] = potential_[2 * i + 1] - potential_[network_.source()];
        worth[i] = network_.flow[i];
    }
    restore(present);
    done_ = was_done;
    return error;
}

int64_t Solver::bytes() const {
    const auto nodes = static_cast<int64_t>(potential_.size()), arcs = static_cast<int64_t>(network_.arcs.size());
    const auto vertices = static_cast<int64_t>(time.capacity()), states = static_cast<int64_t>(kept_.size()) + 1;
    return arcs * static_cast<int64_t>(sizeof(Arc) + 2 * sizeof(End)) + nodes * 40 + vertices * 24 + states * 8 * (nodes + arcs);
}

}  // namespace joulewise
