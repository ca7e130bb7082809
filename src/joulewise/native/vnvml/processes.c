/* The process lists. Every process on a virtual GPU is a compute process. */
#include "answer.h"
#include "connection.h"

#define NO_INSTANCE 0xffffffffu /* not in a MIG instance */

struct process_list {
    unsigned count;
    struct vnvml_process processes[VNVML_MAX_PROCESSES];
};

static nvmlReturn_t list_compute(nvmlDevice_t device, struct process_list *list) {
    GPU_CALL(device, VNVML_PROCESSES);
    struct vnvml_published now;
    nvmlReturn_t failed = call_published(&call, &now);
    if (failed != NVML_SUCCESS) return failed;
    list->count = now.process_count < VNVML_MAX_PROCESSES ? now.process_count : VNVML_MAX_PROCESSES;
    memcpy(list->processes, now.processes, sizeof list->processes);
    return NVML_SUCCESS;
}

static nvmlReturn_t list_none(nvmlDevice_t device, unsigned *count) {
    GPU_CALL(device, VNVML_PROCESSES);
    REQUIRE(count);
    *count = 0;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count,
                                                              nvmlProcessInfo_v1_t *infos) {
    REQUIRE(count);
    struct process_list list;
    nvmlReturn_t result = list_compute(device, &list);
    if (result == NVML_SUCCESS) result = answer_count(count, list.count, infos);
    for (unsigned i = 0; result == NVML_SUCCESS && i < list.count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){list.processes[i].pid, list.processes[i].memory_bytes};
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                                 nvmlProcessInfo_t *infos) {
    REQUIRE(count);
    struct process_list list;
    nvmlReturn_t result = list_compute(device, &list);
    if (result == NVML_SUCCESS) result = answer_count(count, list.count, infos);
    for (unsigned i = 0; result == NVML_SUCCESS && i < list.count; i++)
        infos[i] = (nvmlProcessInfo_t){list.processes[i].pid, list.processes[i].memory_bytes, NO_INSTANCE, NO_INSTANCE};
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count,
                                                                 nvmlProcessInfo_t *infos) {
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

#define EMPTY_LIST(name)                                                                    \
    NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *infos) {      \
        (void)infos;                                                                        \
        return list_none(device, count);                                                    \
    }

EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v2)
EMPTY_LIST(nvmlDeviceGetGraphicsRunningProcesses_v3)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2)
EMPTY_LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3)

NVML_EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                               nvmlProcessDetailList_v1_t *details) {
    REQUIRE(details);
    struct process_list list;
    nvmlReturn_t result = list_compute(device, &list);
    if (result != NVML_SUCCESS) return result;
    if (details->version != STRUCT_VERSION(nvmlProcessDetailList_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(details->mode <= NVML_PROCESS_MODE_ALL);
    if (details->mode == NVML_PROCESS_MODE_GRAPHICS || details->mode == NVML_PROCESS_MODE_MPS) list.count = 0;
    result = answer_count(&details->numProcArrayEntries, list.count, details->procArray);
    for (unsigned i = 0; result == NVML_SUCCESS && i < list.count; i++) {
        const struct vnvml_process *process = &list.processes[i];
        details->procArray[i] = (nvmlProcessDetail_v1_t){process->pid, process->memory_bytes, NO_INSTANCE, NO_INSTANCE,
                                                         .usedGpuCcProtectedMemory = 0};
    }
    return result;
}
