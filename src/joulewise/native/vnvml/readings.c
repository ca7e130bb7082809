/* Calls about what a GPU does now: one published value each. */
#include "answer.h"
#include "connection.h"

#define READING_CALL(group)                                     \
    GPU_CALL(device, group);                                    \
    struct vnvml_published now;                                 \
    do {                                                        \
        nvmlReturn_t failed = call_published(&call, &now);      \
        if (failed != NVML_SUCCESS) return failed;              \
    } while (0)

/* A function that hands out one published number. */
#define READING_32(name, group, member)                                     \
    NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *value) {   \
        READING_CALL(group);                                                \
        REQUIRE(value);                                                     \
        return answer_32(value, now.member);                                \
    }

#define READING_64(name, group, member)                                             \
    NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned long long *value) { \
        READING_CALL(group);                                                        \
        REQUIRE(value);                                                             \
        return answer_64(value, now.member);                                        \
    }

READING_32(nvmlDeviceGetPowerUsage, VNVML_POWER, power_mw)
READING_64(nvmlDeviceGetTotalEnergyConsumption, VNVML_ENERGY_COUNTER, energy_mj)
READING_32(nvmlDeviceGetPerformanceState, VNVML_OTHER, pstate)
READING_32(nvmlDeviceGetPowerState, VNVML_OTHER, pstate)
READING_64(nvmlDeviceGetCurrentClocksEventReasons, VNVML_OTHER, clocks_event_reasons)
READING_64(nvmlDeviceGetCurrentClocksThrottleReasons, VNVML_OTHER, clocks_event_reasons)

/* Idle, clocks set, power cap, hardware slowdown, sync boost, thermal (software, hardware), power brake, display. */
static const unsigned long long supported_reasons = 0x1ff;

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(reasons);
    *reasons = supported_reasons;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons) {
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    READING_CALL(VNVML_OTHER);
    REQUIRE(mhz);
    switch (type) {
        case NVML_CLOCK_GRAPHICS: return answer_32(mhz, now.graphics_mhz);
        case NVML_CLOCK_SM: return answer_32(mhz, now.sm_mhz);
        case NVML_CLOCK_MEM: return answer_32(mhz, now.memory_mhz);
        case NVML_CLOCK_VIDEO: return answer_32(mhz, now.video_mhz);
        default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned type, unsigned *mhz);

/* Application clocks are on their way out of NVML; the virtual GPUs have none. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned id, unsigned *mhz) {
    switch (id) {
        case NVML_CLOCK_ID_CURRENT: return nvmlDeviceGetClockInfo(device, type, mhz);
        case NVML_CLOCK_ID_BOOST_MAX: return nvmlDeviceGetMaxCustomerBoostClock(device, type, mhz);
        default: break;
    }
    GPU_CALL(device, VNVML_OTHER);
    bool known = id == NVML_CLOCK_ID_APP_TARGET || id == NVML_CLOCK_ID_APP_DEFAULT;
    return known ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    READING_CALL(VNVML_OTHER);
    REQUIRE(rates);
    nvmlReturn_t result = answer_32(&rates->gpu, now.utilisation_gpu_percent);
    return result != NVML_SUCCESS ? result : answer_32(&rates->memory, now.utilisation_memory_percent);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *degrees_c) {
    READING_CALL(VNVML_OTHER);
    REQUIRE(degrees_c && sensor == 0);
    return answer_32(degrees_c, now.temperature_c);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature) {
    READING_CALL(VNVML_OTHER);
    REQUIRE(temperature);
    if (temperature->version != STRUCT_VERSION(nvmlTemperature_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(temperature->sensorType == 0);
    if (now.temperature_c == VNVML_NONE_32) return NVML_ERROR_NOT_SUPPORTED;
    temperature->temperature = (int)now.temperature_c;
    return NVML_SUCCESS;
}

/* Memory. Version 1 counts what the driver keeps for itself as used; version 2 shows it apart. */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    READING_CALL(VNVML_OTHER);
    REQUIRE(memory);
    if (now.memory_used_bytes == VNVML_NONE_64) return NVML_ERROR_NOT_SUPPORTED;
    const struct vnvml_identity *identity = &call.gpu->identity;
    memory->total = identity->memory_total_bytes;
    memory->used = identity->memory_reserved_bytes + now.memory_used_bytes;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    READING_CALL(VNVML_OTHER);
    REQUIRE(memory);
    if (memory->version != STRUCT_VERSION(nvmlMemory_v2_t, 2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (now.memory_used_bytes == VNVML_NONE_64) return NVML_ERROR_NOT_SUPPORTED;
    const struct vnvml_identity *identity = &call.gpu->identity;
    memory->total = identity->memory_total_bytes;
    memory->reserved = identity->memory_reserved_bytes;
    memory->used = now.memory_used_bytes;
    memory->free = memory->total - memory->reserved - memory->used;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(memory);
    if (!call.gpu->identity.bar1_total_bytes) return NVML_ERROR_NOT_SUPPORTED;
    *memory = (nvmlBAR1Memory_t){.total = call.gpu->identity.bar1_total_bytes};
    memory->free = memory->total;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, nvmlViolationTime_t *time) {
    READING_CALL(VNVML_OTHER);
    REQUIRE(time);
    uint64_t violation_ns = VNVML_NONE_64;
    if (policy == NVML_PERF_POLICY_POWER) violation_ns = now.power_violation_ns;
    if (policy == NVML_PERF_POLICY_THERMAL) violation_ns = now.thermal_violation_ns;
    time->referenceTime = realtime_us();
    return answer_64(&time->violationTime, violation_ns);
}

/* Field values: one answer and one error each. */

static nvmlReturn_t field_value(struct call *call, const struct vnvml_published *now, nvmlFieldValue_t *field) {
    const struct vnvml_identity *identity = &call->gpu->identity;
    uint64_t limit_mw = __atomic_load_n(&call->gpu->control.power_limit_mw, __ATOMIC_ACQUIRE);
    uint32_t requested_mw = limit_mw ? (uint32_t)limit_mw : VNVML_NONE_32;
    uint32_t unsupported = __atomic_load_n(&call->gpu->faults.unsupported, __ATOMIC_ACQUIRE);
    uint32_t value = VNVML_NONE_32;
    field->valueType = NVML_VALUE_UNSIGNED_INT;
    switch (field->fieldId) {
        case NVML_FIELD_MEMORY_TEMPERATURE: return answer_32(&field->value.uiVal, now->memory_temperature_c);
        case NVML_FIELD_TOTAL_ENERGY:
        case NVML_FIELD_ENERGY:
            field->valueType = NVML_VALUE_UNSIGNED_LONG_LONG;
            if (field->scopeId != 0 || unsupported & 1u << VNVML_ENERGY_COUNTER) return NVML_ERROR_NOT_SUPPORTED;
            return answer_64(&field->value.ullVal, now->energy_mj);
        case NVML_FIELD_POWER_AVERAGE: value = now->power_average_mw; break;
        case NVML_FIELD_POWER_INSTANT: value = now->power_instant_mw; break;
        case NVML_FIELD_POWER_MIN_LIMIT: value = identity->limit_max_mw ? identity->limit_min_mw : VNVML_NONE_32; break;
        case NVML_FIELD_POWER_MAX_LIMIT: value = identity->limit_max_mw ? identity->limit_max_mw : VNVML_NONE_32; break;
        case NVML_FIELD_POWER_DEFAULT_LIMIT:
            value = identity->limit_default_mw ? identity->limit_default_mw : VNVML_NONE_32;
            break;
        case NVML_FIELD_POWER_CURRENT_LIMIT:
            value = call_enforced_mw(call);
            break;
        case NVML_FIELD_POWER_REQUESTED_LIMIT: value = requested_mw; break;
        default: return NVML_ERROR_NOT_SUPPORTED;
    }
    /* Only the GPU itself is metered, no module or memory around it. */
    if (field->scopeId != 0 || unsupported & 1u << VNVML_POWER) return NVML_ERROR_NOT_SUPPORTED;
    return answer_32(&field->value.uiVal, value);
}

static bool is_energy(unsigned field) { return field == NVML_FIELD_TOTAL_ENERGY || field == NVML_FIELD_ENERGY; }

NVML_EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields) {
    GPU_CALL(device, VNVML_FIELD_VALUES);
    REQUIRE(count > 0 && fields);
    for (int i = 0; i < count; i++) {
        if (!is_energy(fields[i].fieldId)) continue;
        call_wait(&call, VNVML_ENERGY_COUNTER); /* the counter costs the same through this door, once a call */
        break;
    }
    struct vnvml_published now;
    nvmlReturn_t failed = call_published(&call, &now);
    if (failed != NVML_SUCCESS) return failed;
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = (long long)realtime_us();
        fields[i].latencyUsec = 0;
        fields[i].nvmlReturn = field_value(&call, &now, &fields[i]);
    }
    return NVML_SUCCESS;
}

/* The driver's ring of recent samples, oldest first. With no room given, says how many there are. */

static bool sample_value(const struct vnvml_sample *sample, unsigned type, unsigned *value) {
    switch (type) {
        case NVML_SAMPLES_POWER: *value = sample->power_mw; return true;
        case NVML_SAMPLES_GPU_UTILIZATION: *value = sample->utilisation_gpu_percent; return true;
        case NVML_SAMPLES_MEMORY_UTILIZATION: *value = sample->utilisation_memory_percent; return true;
        case NVML_SAMPLES_SM_CLOCK: *value = sample->sm_mhz; return true;
        case NVML_SAMPLES_MEMORY_CLOCK: *value = sample->memory_mhz; return true;
        default: return false;
    }
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, unsigned type, unsigned long long seen_us,
                                              unsigned *value_type, unsigned *count, nvmlSample_t *samples) {
    GPU_CALL(device, type == NVML_SAMPLES_POWER ? VNVML_POWER : VNVML_OTHER);
    REQUIRE(value_type && count);
    unsigned value;
    if (!sample_value(&call.gpu->samples[0], type, &value)) return NVML_ERROR_NOT_SUPPORTED;
    *value_type = NVML_VALUE_UNSIGNED_INT;
    /* The slot after the newest may be under the writer's pen, so one entry fewer than the ring holds can be had; what
     * the writer overtook while we copied is dropped. */
    struct vnvml_sample copy[VNVML_SAMPLES];
    uint64_t head = __atomic_load_n(&call.gpu->samples_head, __ATOMIC_ACQUIRE);
    memcpy(copy, call.gpu->samples, sizeof copy);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    uint64_t head_after = __atomic_load_n(&call.gpu->samples_head, __ATOMIC_RELAXED);
    uint64_t first = head_after >= VNVML_SAMPLES ? head_after - VNVML_SAMPLES + 1 : 0;
    unsigned found = 0, room = samples ? *count : VNVML_SAMPLES;
    for (uint64_t i = first; i < head && found < room; i++) {
        const struct vnvml_sample *sample = &copy[i % VNVML_SAMPLES];
        if (sample->timestamp_us <= seen_us || !sample_value(sample, type, &value)) continue;
        if (samples) {
            samples[found].timeStamp = sample->timestamp_us;
            samples[found].sampleValue.ullVal = value;
        }
        found++;
    }
    *count = found;
    return found ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
