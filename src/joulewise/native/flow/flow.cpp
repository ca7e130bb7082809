// The C face of the solver: no exception leaves it.
#include "flow.h"

#include <new>

#include "repair.h"
#include "solver.h"

struct jw_flow {
    joulewise::Solver solver;
};

namespace {

template <typename Call>
int guarded(Call call) {
    try {
        return call();
    } catch (const std::bad_alloc &) {
        return JW_FLOW_NO_MEMORY;
    } catch (...) {
        return JW_FLOW_BROKEN;
    }
}

}  // namespace

int jw_flow_new(const jw_hulls *hulls, const jw_hulls *exact, const jw_dag *dag, int32_t snapshots, jw_flow **made) {
    if (!hulls || !dag || !made) return JW_FLOW_BAD_INDEX;
    *made = nullptr;
    return guarded([&] {
        auto *flow = new jw_flow;
        const int error = flow->solver.build(*hulls, exact, *dag, snapshots);
        if (error) {
            delete flow;
            return error;
        }
        *made = flow;
        return static_cast<int>(JW_FLOW_DONE);
    });
}

void jw_flow_free(jw_flow *flow) { delete flow; }

int jw_flow_advance(jw_flow *flow, int64_t budget) {
    if (!flow) return JW_FLOW_BAD_INDEX;
    return guarded([&] { return flow->solver.advance(budget); });
}

int jw_flow_vertices(const jw_flow *flow, jw_vertices *view) {
    if (!flow || !view) return JW_FLOW_BAD_INDEX;
    const joulewise::Solver &solver = flow->solver;
    *view = {static_cast<int32_t>(solver.time.size()), solver.time.data(), solver.energy.data(), solver.slope.data()};
    return JW_FLOW_DONE;
}

int jw_flow_plan(jw_flow *flow, int64_t time, int64_t *start, int64_t *end, int64_t *worth) {
    if (!flow || !start || !end || !worth) return JW_FLOW_BAD_INDEX;
    return guarded([&] { return flow->solver.plan(time, start, end, worth); });
}

int64_t jw_flow_bytes(const jw_flow *flow) { return flow ? flow->solver.bytes() : 0; }

int jw_flow_repair(const jw_options *options, const jw_dag *dag, const jw_switch *switching, int64_t deadline,
                   int32_t *choice) {
    if (!options || !dag || !choice) return JW_FLOW_BAD_INDEX;
    return guarded([&] { return joulewise::repair(*options, *dag, switching, deadline, choice); });
}

int jw_flow_fit(const jw_options *options, const jw_dag *dag, const int64_t *end, int32_t *choice) {
    if (!options || !dag || !end || !choice) return JW_FLOW_BAD_INDEX;
    return guarded([&] { return joulewise::fit(*options, *dag, end, choice); });
}
