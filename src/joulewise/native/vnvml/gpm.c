/* GPM, the activity counters of Hopper and newer: two samples, and the mean of each metric between them.
 *
 * The simulator publishes each metric's integral over simulated time; a sample is a copy of the integrals. */
#include <math.h>
#include <stdlib.h>

#include "answer.h"
#include "connection.h"

#define GPM_VERSION 1u

struct nvmlGpmSample_st {
    bool taken;
    unsigned gpu_index;
    uint64_t time_ns;
    uint64_t slots;
    double integral[VNVML_GPM_SLOTS];
};

/* Slot i of the published integrals. */
static const struct metric {
    unsigned id;
    const char *name, *unit;
} metrics[] = {
    {1, "graphics activity", "%"}, {2, "SM activity", "%"},   {3, "SM occupancy", "%"},
    {4, "integer activity", "%"},  {5, "tensor activity", "%"}, {6, "DFMA activity", "%"},
    {7, "HMMA activity", "%"},     {8, "DMMA activity", "%"}, {9, "IMMA activity", "%"},
    {10, "DRAM bandwidth", "%"},   {11, "FP64 activity", "%"}, {12, "FP32 activity", "%"},
    {13, "FP16 activity", "%"},    {20, "PCIe TX", "MiB/s"},  {21, "PCIe RX", "MiB/s"},
    {60, "NVLink RX", "MiB/s"},    {61, "NVLink TX", "MiB/s"},
};
_Static_assert(sizeof metrics / sizeof metrics[0] <= VNVML_GPM_SLOTS, "a slot for each metric");

NVML_EXPORT nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(support);
    if (support->version != GPM_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    uint32_t unsupported = __atomic_load_n(&call.gpu->faults.unsupported, __ATOMIC_ACQUIRE);
    support->isSupportedDevice = call.gpu->identity.gpm_supported && !(unsupported & 1u << VNVML_GPM);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    SYSTEM_CALL();
    REQUIRE(sample);
    *sample = calloc(1, sizeof **sample);
    return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

/* Works after the simulator's death and after shutdown too, so that a client can clean up. */
NVML_EXPORT nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    REQUIRE(sample);
    free(sample);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    GPU_CALL(device, VNVML_GPM);
    REQUIRE(sample);
    if (!call.gpu->identity.gpm_supported) return NVML_ERROR_NOT_SUPPORTED;
    struct vnvml_published now;
    nvmlReturn_t failed = call_published(&call, &now);
    if (failed != NVML_SUCCESS) return failed;
    *sample = (struct nvmlGpmSample_st){true, call.index, now.gpm_ns, now.gpm_slots, {0}};
    memcpy(sample->integral, now.gpm_integral, sizeof sample->integral);
    return NVML_SUCCESS;
}

/* Two samples of the same instant have no mean between them: NaN, as an H200 answers for samples too close. */
static nvmlReturn_t mean_between(const struct nvmlGpmSample_st *first, const struct nvmlGpmSample_st *second,
                                 nvmlGpmMetric_t *metric) {
    for (unsigned slot = 0; slot < sizeof metrics / sizeof metrics[0]; slot++) {
        if (metrics[slot].id != metric->metricId) continue;
        if (!(first->slots & second->slots & 1ull << slot)) return NVML_ERROR_NOT_SUPPORTED;
        metric->metricInfo.shortName = metric->metricInfo.longName = metrics[slot].name;
        metric->metricInfo.unit = metrics[slot].unit;
        double seconds = ((double)second->time_ns - (double)first->time_ns) * 1e-9;
        metric->value = seconds > 0 ? (second->integral[slot] - first->integral[slot]) / seconds : (double)NAN;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML_EXPORT nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get) {
    SYSTEM_CALL();
    REQUIRE(get);
    if (get->version != GPM_VERSION) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(get->sample1 && get->sample2 && get->sample1->taken && get->sample2->taken);
    REQUIRE(get->sample1->gpu_index == get->sample2->gpu_index && get->numMetrics > 0);
    for (unsigned i = 0; i < get->numMetrics; i++)
        get->metrics[i].nvmlReturn = mean_between(get->sample1, get->sample2, &get->metrics[i]);
    return NVML_SUCCESS;
}
