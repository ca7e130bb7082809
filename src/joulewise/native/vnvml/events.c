/* Events. The one that the virtual GPUs raise is Xid 79, when a GPU falls off the bus. */
#include <stdlib.h>

#include "answer.h"
#include "connection.h"

#define POLL_NS 10000000ull

struct nvmlEventSet_st {
    uint64_t watched;  /* bit i: GPU i was registered for Xid events */
    uint64_t reported; /* and its loss was told */
};

NVML_EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    SYSTEM_CALL();
    REQUIRE(set);
    *set = calloc(1, sizeof **set);
    return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

/* Works after the simulator's death and after shutdown too, so that a client can clean up. */
NVML_EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    REQUIRE(set);
    free(set);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(types);
    *types = NVML_EVENT_XID;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(set && types);
    if (types & ~NVML_EVENT_XID) return NVML_ERROR_NOT_SUPPORTED;
    set->watched |= 1ull << call.index;
    return NVML_SUCCESS;
}

static bool find_lost(struct call *call, struct nvmlEventSet_st *set, nvmlEventData_t *data) {
    for (unsigned i = 0; i < call->state->header.gpu_count; i++) {
        if (!(set->watched & ~set->reported & 1ull << i)) continue;
        uint32_t flags = __atomic_load_n(&call->state->gpus[i].faults.flags, __ATOMIC_ACQUIRE);
        if (!(flags & VNVML_FAULT_LOST)) continue;
        set->reported |= 1ull << i;
        *data = (nvmlEventData_t){device_handle(i), NVML_EVENT_XID, NVML_XID_FALLEN_OFF_BUS, 0xffffffffu, 0xffffffffu};
        return true;
    }
    return false;
}

/* Blocks, as clients rely on: a wait that returned at once would make them spin. */
NVML_EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms) {
    SYSTEM_CALL();
    REQUIRE(set && data);
    uint64_t end_ns = monotonic_ns() + timeout_ms * 1000000ull;
    for (;;) {
        if (!call_alive(&call)) return NVML_ERROR_DRIVER_NOT_LOADED;
        if (find_lost(&call, set, data)) return NVML_SUCCESS;
        uint64_t now_ns = monotonic_ns();
        if (now_ns >= end_ns) return NVML_ERROR_TIMEOUT;
        sleep_ns(end_ns - now_ns < POLL_NS ? end_ns - now_ns : POLL_NS);
    }
}

NVML_EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, unsigned timeout_ms) {
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}
