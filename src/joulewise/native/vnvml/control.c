/* Setters, and the getters of what they set. As in life there is no getter for locked clocks.
 *
 * A setter checks: GPU there, feature there, right to write, range; in this order. It then stores one word and wakes
 * the simulator. Clocks between two steps are stored as asked; the simulator rounds, as the hardware does. With
 * persistence mode off, the simulator clears limits and locks when nobody is left who uses the GPU. */
#include "answer.h"
#include "connection.h"

#define SETTER_CALL(group)                                              \
    GPU_CALL(device, group);                                            \
    if (!call_may_write(&call)) return NVML_ERROR_NO_PERMISSION

static nvmlReturn_t store(struct call *call, uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    call_wrote(call);
    return NVML_SUCCESS;
}

/* Power limit */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *limit_mw) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(limit_mw);
    uint64_t limit = __atomic_load_n(&call.gpu->control.power_limit_mw, __ATOMIC_ACQUIRE);
    return answer_32(limit_mw, limit ? (uint32_t)limit : VNVML_NONE_32);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *limit_mw) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(limit_mw);
    return answer_32(limit_mw, call_enforced_mw(&call));
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned limit_mw) {
    SETTER_CALL(VNVML_LIMIT_SET);
    const struct vnvml_identity *identity = &call.gpu->identity;
    if (!identity->limit_max_mw) return NVML_ERROR_NOT_SUPPORTED;
    REQUIRE(limit_mw >= identity->limit_min_mw && limit_mw <= identity->limit_max_mw);
    return store(&call, &call.gpu->control.power_limit_mw, limit_mw);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t *value) {
    REQUIRE(value);
    if (value->version != STRUCT_VERSION(nvmlPowerValue_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (value->powerScope == 0) return nvmlDeviceSetPowerManagementLimit(device, value->powerValueMw);
    GPU_CALL(device, VNVML_LIMIT_SET);
    return NVML_ERROR_NOT_SUPPORTED; /* no module or memory of its own to limit */
}

/* Locked clocks */

static nvmlReturn_t lock_clocks(struct call *call, uint64_t *word, unsigned low, unsigned high, unsigned lowest,
                                unsigned highest) {
    if (low == NVML_CLOCK_LIMIT_TDP || high == NVML_CLOCK_LIMIT_TDP) return NVML_ERROR_NOT_SUPPORTED;
    if (high == NVML_CLOCK_LIMIT_UNLIMITED) high = highest;
    REQUIRE(low <= high && low >= lowest && high <= highest);
    return store(call, word, (uint64_t)low << 32 | high);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned low_mhz, unsigned high_mhz) {
    SETTER_CALL(VNVML_SM_CLOCK_SET);
    const struct vnvml_identity *identity = &call.gpu->identity;
    return lock_clocks(&call, &call.gpu->control.sm_lock, low_mhz, high_mhz,
                       identity->sm_clocks_mhz[identity->sm_clock_count - 1], identity->sm_clocks_mhz[0]);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device) {
    SETTER_CALL(VNVML_SM_CLOCK_SET);
    return store(&call, &call.gpu->control.sm_lock, 0);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned low_mhz, unsigned high_mhz) {
    SETTER_CALL(VNVML_MEMORY_CLOCK_SET);
    const struct vnvml_identity *identity = &call.gpu->identity;
    return lock_clocks(&call, &call.gpu->control.memory_lock, low_mhz, high_mhz,
                       identity->memory_clocks_mhz[identity->memory_clock_count - 1], identity->memory_clocks_mhz[0]);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device) {
    SETTER_CALL(VNVML_MEMORY_CLOCK_SET);
    return store(&call, &call.gpu->control.memory_lock, 0);
}

/* Persistence */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *mode) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(mode);
    *mode = __atomic_load_n(&call.gpu->control.persistence, __ATOMIC_ACQUIRE) != 0;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned mode) {
    SETTER_CALL(VNVML_OTHER);
    REQUIRE(mode <= 1);
    return store(&call, &call.gpu->control.persistence, mode);
}
