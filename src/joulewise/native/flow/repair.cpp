// Slack repair: choices that meet a deadline are changed, one operation at a time, to what saves the most energy for the
// time that it takes, until nothing more fits; then two at a time, where one follows the other: one faster, one slower.
// Earliest starts and latest ends are kept up to date after every change.
#include <algorithm>
#include <cmath>
#include <queue>
#include <vector>

#include "flow.h"
#include "repair.h"

namespace joulewise {

namespace {

struct Link {
    int32_t other;
    int64_t lag;
};

struct Lists {
    std::vector<int32_t> first;
    std::vector<Link> links;

    void make(const jw_dag &dag, const int32_t *from, const int32_t *to) {
        first.assign(dag.operations + 1, 0);
        links.resize(dag.edges);
        for (int32_t e = 0; e < dag.edges; ++e) ++first[from[e] + 1];
        for (int32_t i = 0; i < dag.operations; ++i) first[i + 1] += first[i];
        std::vector<int32_t> next(first.begin(), first.end() - 1);
        for (int32_t e = 0; e < dag.edges; ++e) links[next[from[e]]++] = {to[e], dag.lag[e]};
    }
};

struct Change {
    double worth;  // joules saved for a unit of time
    int32_t operation;
    int32_t option;  // or -1
    bool operator<(const Change &other) const { return worth < other.worth; }
};

class Repair {
  public:
    int check(const jw_options &options, const jw_dag &dag, const jw_switch *switching, const int32_t *choice);
    int fit(const int64_t *end, int32_t *choice);
    int run(int64_t deadline, int32_t *choice);

  private:
    int32_t option(int32_t i, int32_t choice) const { return options_.start[dag_.hull[i]] + choice; }
    bool differ(int32_t chosen, int32_t before) const {
        return before >= 0 && options_.setting[chosen] != options_.setting[option(before, choice_[before])];
    }
    int64_t lasts(int32_t i) const {
        const int32_t chosen = option(i, choice_[i]);
        return options_.duration[chosen] + (differ(chosen, previous_[i]) ? switch_.duration : 0);
    }
    int64_t slack(int32_t i) const { return latest_[i] - earliest_[i] - duration_[i]; }
    int64_t earliest(int32_t i) const;
    int64_t latest(int32_t i) const;
    Change best(int32_t i) const;
    void singles();
    bool pair(int32_t i, int32_t j, int64_t lag);
    void set(int32_t i, int64_t duration);
    void settle();

    jw_options options_{};
    jw_dag dag_{};
    jw_switch switch_{};
    int64_t deadline_ = 0;
    int32_t *choice_ = nullptr;
    std::vector<int32_t> previous_, next_;  // in the lane
    Lists after_, before_;
    std::vector<int32_t> order_, place_;
    std::vector<int64_t> duration_, earliest_, latest_;
    std::vector<int32_t> cheapest_;  // of every option: the cheapest of its list up to it
    std::vector<int32_t> moved_;     // whose duration changed since times were last settled
};

int Repair::check(const jw_options &options, const jw_dag &dag, const jw_switch *switching, const int32_t *choice) {
    if (options.count < 1 || !options.start || !options.duration || !options.energy || !options.setting) return JW_FLOW_BAD_HULL;
    if (dag.operations < 1 || dag.edges < 0 || !dag.hull || !choice) return JW_FLOW_BAD_INDEX;
    if (dag.edges > 0 && !(dag.before && dag.after && dag.lag)) return JW_FLOW_BAD_INDEX;
    options_ = options;
    dag_ = dag;
    const int32_t n = dag.operations;
    for (int32_t i = 0; i < n; ++i) {
        if (dag.hull[i] < 0 || dag.hull[i] >= options.count) return JW_FLOW_BAD_INDEX;
        const int32_t count = options.start[dag.hull[i] + 1] - options.start[dag.hull[i]];
        if (choice[i] < 0 || choice[i] >= count) return JW_FLOW_BAD_INDEX;
    }
    for (int32_t e = 0; e < dag.edges; ++e) {
        if (dag.before[e] < 0 || dag.after[e] < 0 || dag.before[e] >= n || dag.after[e] >= n) return JW_FLOW_BAD_INDEX;
    }
    previous_.assign(n, -1);
    next_.assign(n, -1);
    if (switching && switching->previous) {
        switch_ = *switching;
        for (int32_t i = 0; i < n; ++i) {
            const int32_t before = switching->previous[i];
            if (before < -1 || before >= n || before == i) return JW_FLOW_BAD_INDEX;
            previous_[i] = before;
            if (before >= 0) next_[before] = i;
        }
    }
    after_.make(dag, dag.before, dag.after);
    before_.make(dag, dag.after, dag.before);
    std::vector<int32_t> waits(n);
    for (int32_t e = 0; e < dag.edges; ++e) ++waits[dag.after[e]];
    for (int32_t i = 0; i < n; ++i) {
        if (!waits[i]) order_.push_back(i);
    }
    for (size_t at = 0; at < order_.size(); ++at) {
        for (int32_t l = after_.first[order_[at]]; l < after_.first[order_[at] + 1]; ++l) {
            if (--waits[after_.links[l].other] == 0) order_.push_back(after_.links[l].other);
        }
    }
    if (order_.size() != static_cast<size_t>(n)) return JW_FLOW_CYCLE;
    place_.resize(n);
    for (int32_t at = 0; at < n; ++at) place_[order_[at]] = at;
    return JW_FLOW_DONE;
}

int64_t Repair::earliest(int32_t i) const {
    int64_t time = 0;
    for (int32_t l = before_.first[i]; l < before_.first[i + 1]; ++l) {
        const Link link = before_.links[l];
        time = std::max(time, earliest_[link.other] + duration_[link.other] + link.lag);
    }
    return time;
}

int64_t Repair::latest(int32_t i) const {
    int64_t time = deadline_;
    for (int32_t l = after_.first[i]; l < after_.first[i + 1]; ++l) {
        const Link link = after_.links[l];
        time = std::min(time, latest_[link.other] - duration_[link.other] - link.lag);
    }
    return time;
}

// The change of one operation that saves most for its time, of those that fit. Its choice decides about two switches:
// its own and that of the operation after it in the lane.
Change Repair::best(int32_t i) const {
    const int32_t list = dag_.hull[i], now = option(i, choice_[i]), next = next_[i];
    const int64_t room = slack(i), next_room = next >= 0 ? slack(next) : 0;
    const bool next_differs = next >= 0 && differ(option(next, choice_[next]), i);
    const bool differs = differ(now, previous_[i]);
    Change found{0.0, i, -1};
    for (int32_t o = options_.start[list]; o < options_.start[list + 1]; ++o) {
        if (o == now) continue;
        const int own = static_cast<int>(differ(o, previous_[i])) - static_cast<int>(differs);
        const bool would = next >= 0 && options_.setting[o] != options_.setting[option(next, choice_[next])];
        const int others = static_cast<int>(would) - static_cast<int>(next_differs);
        const double saved = options_.energy[now] - options_.energy[o] - switch_.energy * (own + others);
        // Less than this is what sums of floats leave.
        if (!(saved > 1e-9 * (1.0 + std::fabs(options_.energy[now])))) continue;
        const int64_t longer = options_.duration[o] - options_.duration[now] + own * switch_.duration;
        const int64_t next_longer = others * switch_.duration;
        if (longer > room) continue;
        // A way through both gets the sum; one through the later alone gets its part.
        if (next_longer > 0 && std::max<int64_t>(longer, 0) + next_longer > next_room) continue;
        const int64_t taken = std::max<int64_t>(longer, 0) + std::max<int64_t>(next_longer, 0);
        const double worth = saved / static_cast<double>(taken + 1);
        if (worth > found.worth) found = {worth, i, o - options_.start[list]};
    }
    return found;
}

void Repair::set(int32_t i, int64_t duration) {
    if (duration_[i] == duration) return;
    duration_[i] = duration;
    moved_.push_back(i);
}

// Times of all that a change reaches, in order, stopping where nothing changes.
void Repair::settle() {
    std::priority_queue<int32_t, std::vector<int32_t>, std::greater<int32_t>> forward;
    std::priority_queue<int32_t> backward;
    for (const int32_t i : moved_) {
        for (int32_t l = after_.first[i]; l < after_.first[i + 1]; ++l) forward.push(place_[after_.links[l].other]);
        for (int32_t l = before_.first[i]; l < before_.first[i + 1]; ++l) backward.push(place_[before_.links[l].other]);
    }
    moved_.clear();
    while (!forward.empty()) {
        const int32_t i = order_[forward.top()];
        forward.pop();
        const int64_t time = earliest(i);
        if (time == earliest_[i]) continue;
        earliest_[i] = time;
        for (int32_t l = after_.first[i]; l < after_.first[i + 1]; ++l) forward.push(place_[after_.links[l].other]);
    }
    while (!backward.empty()) {
        const int32_t i = order_[backward.top()];
        backward.pop();
        const int64_t time = latest(i);
        if (time == latest_[i]) continue;
        latest_[i] = time;
        for (int32_t l = before_.first[i]; l < before_.first[i + 1]; ++l) backward.push(place_[before_.links[l].other]);
    }
}

int Repair::fit(const int64_t *end, int32_t *choice) {
    duration_.assign(dag_.operations, 0);
    earliest_.assign(dag_.operations, 0);
    for (const int32_t i : order_) {
        earliest_[i] = earliest(i);
        const int32_t list = dag_.hull[i], first = options_.start[list];
        int32_t found = -1;
        for (int32_t o = first; o < options_.start[list + 1]; ++o) {
            const bool fits = options_.duration[o] <= end[i] - earliest_[i];
            if (fits && (found < 0 || options_.energy[o] < options_.energy[found])) found = o;
        }
        if (found < 0) return JW_FLOW_LATE;
        choice[i] = found - first;
        duration_[i] = options_.duration[found];
    }
    return JW_FLOW_DONE;
}

int Repair::run(int64_t deadline, int32_t *choice) {
    const int32_t n = dag_.operations;
    choice_ = choice;
    deadline_ = deadline;
    duration_.resize(n);
    earliest_.assign(n, 0);
    latest_.assign(n, deadline);
    for (int32_t i = 0; i < n; ++i) duration_[i] = lasts(i);
    for (int32_t at = 0; at < n; ++at) earliest_[order_[at]] = earliest(order_[at]);
    for (int32_t at = n - 1; at >= 0; --at) latest_[order_[at]] = latest(order_[at]);
    for (int32_t i = 0; i < n; ++i) {
        if (slack(i) < 0) return JW_FLOW_LATE;
    }
    singles();
    // Pairs know nothing of switches.
    if (switch_.previous) return JW_FLOW_DONE;
    cheapest_.resize(options_.start[options_.count]);
    for (int32_t list = 0; list < options_.count; ++list) {
        int32_t least = options_.start[list];
        for (int32_t o = least; o < options_.start[list + 1]; ++o) {
            if (options_.energy[o] < options_.energy[least]) least = o;
            cheapest_[o] = least;
        }
    }
    // A pass changes what the next one sees. Most end after two or three; a bound keeps the time in bounds.
    bool changed = true;
    for (int pass = 0; changed && pass < 16; ++pass) {
        changed = false;
        for (const int32_t i : order_) {
            for (int32_t l = after_.first[i]; l < after_.first[i + 1]; ++l) {
                changed |= pair(i, after_.links[l].other, after_.links[l].lag);
            }
        }
        if (changed) singles();
    }
    return JW_FLOW_DONE;
}

// Two operations of which the second waits for the first, chosen together within the time that both have.
bool Repair::pair(int32_t i, int32_t j, int64_t lag) {
    int64_t first_ends = deadline_, second_starts = 0;  // as far as others are concerned
    for (int32_t l = after_.first[i]; l < after_.first[i + 1]; ++l) {
        const Link link = after_.links[l];
        if (link.other != j) first_ends = std::min(first_ends, latest_[link.other] - duration_[link.other] - link.lag);
    }
    for (int32_t l = before_.first[j]; l < before_.first[j + 1]; ++l) {
        const Link link = before_.links[l];
        if (link.other != i) second_starts = std::max(second_starts, earliest_[link.other] + duration_[link.other] + link.lag);
    }
    const int32_t mine = dag_.hull[i], others = dag_.hull[j];
    const int32_t begin = options_.start[others], end = options_.start[others + 1];
    const double now = options_.energy[option(i, choice_[i])] + options_.energy[option(j, choice_[j])];
    double least = now - 1e-9 * (1.0 + std::fabs(now));
    int32_t first = -1, second = -1;
    for (int32_t o = options_.start[mine]; o < options_.start[mine + 1]; ++o) {
        const int64_t ends = earliest_[i] + options_.duration[o];
        if (ends > first_ends) break;
        const int64_t room = latest_[j] - std::max(ends + lag, second_starts);
        const int64_t *fits = std::upper_bound(options_.duration + begin, options_.duration + end, room);
        if (fits == options_.duration + begin) break;
        const int32_t best = cheapest_[fits - options_.duration - 1];
        if (options_.energy[o] + options_.energy[best] >= least) continue;
        least = options_.energy[o] + options_.energy[best];
        first = o - options_.start[mine];
        second = best - begin;
    }
    if (first < 0) return false;
    choice_[i] = first;
    choice_[j] = second;
    set(i, lasts(i));
    set(j, lasts(j));
    settle();
    return true;
}

void Repair::singles() {
    const int32_t n = dag_.operations;
    std::priority_queue<Change> changes;
    for (int32_t i = 0; i < n; ++i) {
        if (const Change change = best(i); change.option >= 0) changes.push(change);
    }
    // Room only shrinks, except where a change saves time; then the loop below starts again.
    for (bool shorter = true; shorter;) {
        shorter = false;
        while (!changes.empty()) {
            const int32_t i = changes.top().operation;
            const double promised = changes.top().worth;
            changes.pop();
            const Change change = best(i);
            if (change.option < 0) continue;
            if (change.worth < promised) {
                changes.push(change);
                continue;
            }
            const int32_t next = next_[i];
            const int64_t before = duration_[i] + (next >= 0 ? duration_[next] : 0);
            choice_[i] = change.option;
            set(i, lasts(i));
            if (next >= 0) set(next, lasts(next));
            shorter |= duration_[i] + (next >= 0 ? duration_[next] : 0) < before;
            settle();
            for (const int32_t again : {i, next, previous_[i]}) {
                if (again < 0) continue;
                if (const Change more = best(again); more.option >= 0) changes.push(more);
            }
        }
        for (int32_t i = 0; shorter && i < n; ++i) {
            if (const Change change = best(i); change.option >= 0) changes.push(change);
        }
    }
}

}  // namespace

int fit(const jw_options &options, const jw_dag &dag, const int64_t *end, int32_t *choice) {
    Repair work;
    std::fill_n(choice, std::max(dag.operations, 0), 0);
    const int error = work.check(options, dag, nullptr, choice);
    return error ? error : work.fit(end, choice);
}

int repair(const jw_options &options, const jw_dag &dag, const jw_switch *switching, int64_t deadline, int32_t *choice) {
    Repair work;
    const int error = work.check(options, dag, switching, choice);
    return error ? error : work.run(deadline, choice);
}

}  // namespace joulewise
