/* Calls about what a GPU is: nothing here changes while the simulator runs. */
#include <stdio.h>

#include "answer.h"
#include "connection.h"

#define IDENTITY_CALL()              \
    GPU_CALL(device, VNVML_OTHER);   \
    const struct vnvml_identity *identity = &call.gpu->identity

/* A plain number that every virtual GPU gives alike. */
#define CONSTANT(name, constant)                                                \
    NVML_EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *value) {       \
        GPU_CALL(device, VNVML_OTHER);                                          \
        REQUIRE(value);                                                         \
        *value = (constant);                                                    \
        return NVML_SUCCESS;                                                    \
    }

CONSTANT(nvmlDeviceGetComputeMode, 0)         /* shared by all */
CONSTANT(nvmlDeviceGetDisplayMode, 0)         /* no display */
CONSTANT(nvmlDeviceGetDisplayActive, 0)
CONSTANT(nvmlDeviceGetMultiGpuBoard, 0)
CONSTANT(nvmlDeviceGetPowerManagementMode, 1) /* on */
CONSTANT(nvmlDeviceGetPowerSource, 0)         /* mains */
CONSTANT(nvmlDeviceGetVirtualizationMode, 0)  /* bare metal */
CONSTANT(nvmlDeviceIsMigDeviceHandle, 0)
CONSTANT(nvmlDeviceGetMaxMigDeviceCount, 0)
CONSTANT(nvmlDeviceGetBusType, 2)             /* PCI Express */

/* Chips x.0 since Ampere (A100, H100, B200) can be cut into instances; others do not know the word. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending) {
    IDENTITY_CALL();
    REQUIRE(current && pending);
    unsigned on = (__atomic_load_n(&call.gpu->faults.flags, __ATOMIC_ACQUIRE) & VNVML_FAULT_MIG) != 0;
    if (!on && (identity->compute_major < 8 || identity->compute_minor != 0)) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = on;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(index);
    *index = call.index;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
    return nvmlDeviceGetIndex(device, minor);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
    IDENTITY_CALL();
    return answer_text(name, length, identity->name);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
    IDENTITY_CALL();
    return answer_text(uuid, length, identity->uuid);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length) {
    IDENTITY_CALL();
    return *identity->serial ? answer_text(serial, length, identity->serial) : NVML_ERROR_NOT_SUPPORTED;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned *brand) {
    IDENTITY_CALL();
    REQUIRE(brand);
    *brand = identity->brand;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned *board) {
    IDENTITY_CALL();
    REQUIRE(board);
    *board = identity->pci_domain << 16 | identity->pci_bus << 8 | identity->pci_device;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *architecture) {
    IDENTITY_CALL();
    REQUIRE(architecture);
    *architecture = identity->architecture; /* all ones is NVML's own "unknown" */
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    IDENTITY_CALL();
    REQUIRE(major && minor);
    *major = (int)identity->compute_major;
    *minor = (int)identity->compute_minor;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned *cores) {
    IDENTITY_CALL();
    REQUIRE(cores);
    return answer_32(cores, identity->cores ? identity->cores : VNVML_NONE_32);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned *bits) {
    IDENTITY_CALL();
    REQUIRE(bits);
    return answer_32(bits, identity->memory_bus_bits ? identity->memory_bus_bits : VNVML_NONE_32);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t other, int *same) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(other && same);
    *same = device == other;
    return NVML_SUCCESS;
}

/* PCI: the old struct holds a four-digit domain, the new one has room for eight digits beside it. */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info) {
    IDENTITY_CALL();
    REQUIRE(info);
    unsigned domain = identity->pci_domain, bus = identity->pci_bus & 0xff, slot = identity->pci_device & 0xff;
    *info = (nvmlPciInfo_t){.domain = domain, .bus = bus, .device = slot};
    info->pciDeviceId = identity->pci_device_id;
    info->pciSubSystemId = identity->pci_subsystem_id;
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0", domain & 0xffff, bus, slot);
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", domain, bus, slot);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *info) {
    REQUIRE(info);
    nvmlPciInfo_t now;
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &now);
    if (result != NVML_SUCCESS) return result;
    *info = (nvmlPciInfo_v2_t){.domain = now.domain, .bus = now.bus, .device = now.device};
    info->pciDeviceId = now.pciDeviceId;
    info->pciSubSystemId = now.pciSubSystemId;
    memcpy(info->busId, now.busIdLegacy, sizeof info->busId);
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *info) {
    return nvmlDeviceGetPciInfo_v2(device, info);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t *info) {
    REQUIRE(info);
    nvmlPciInfo_t now;
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &now);
    if (result != NVML_SUCCESS) return result;
    if (info->version != STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *info = (nvmlPciInfoExt_v1_t){info->version, now.domain, now.bus, now.device, now.pciDeviceId, now.pciSubSystemId,
                                  .baseClass = 3, .subClass = 2}; /* display controller, 3D */
    memcpy(info->busId, now.busId, sizeof info->busId);
    return NVML_SUCCESS;
}

/* Clocks that can be had */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    IDENTITY_CALL();
    REQUIRE(mhz);
    switch (type) {
        case NVML_CLOCK_GRAPHICS:
        case NVML_CLOCK_SM: *mhz = identity->sm_clocks_mhz[0]; return NVML_SUCCESS;
        case NVML_CLOCK_MEM: *mhz = identity->memory_clocks_mhz[0]; return NVML_SUCCESS;
        case NVML_CLOCK_VIDEO: return NVML_ERROR_NOT_SUPPORTED;
        default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned type, unsigned *mhz) {
    return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetMinMaxClockOfPState(nvmlDevice_t device, unsigned type, unsigned pstate,
                                                          unsigned *low, unsigned *high) {
    IDENTITY_CALL();
    REQUIRE(low && high && type <= NVML_CLOCK_VIDEO);
    if (pstate != 0 || type == NVML_CLOCK_VIDEO) return NVML_ERROR_NOT_SUPPORTED;
    if (type == NVML_CLOCK_MEM) {
        *low = identity->memory_clocks_mhz[identity->memory_clock_count - 1];
        *high = identity->memory_clocks_mhz[0];
    } else {
        *low = identity->sm_clocks_mhz[identity->sm_clock_count - 1];
        *high = identity->sm_clocks_mhz[0];
    }
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedPerformanceStates(nvmlDevice_t device, unsigned *pstates,
                                                                 unsigned bytes) {
    GPU_CALL(device, VNVML_OTHER);
    REQUIRE(pstates && bytes >= sizeof *pstates);
    pstates[0] = 0;
    for (unsigned i = 1; i < bytes / sizeof *pstates; i++) pstates[i] = 32; /* no such state */
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *mhz) {
    IDENTITY_CALL();
    REQUIRE(count);
    nvmlReturn_t result = answer_count(count, identity->memory_clock_count, mhz);
    for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++) mhz[i] = identity->memory_clocks_mhz[i];
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory_mhz, unsigned *count,
                                                              unsigned *mhz) {
    IDENTITY_CALL();
    REQUIRE(count);
    bool known = false;
    for (unsigned i = 0; i < identity->memory_clock_count; i++) known |= identity->memory_clocks_mhz[i] == memory_mhz;
    if (!known) return NVML_ERROR_NOT_FOUND;
    nvmlReturn_t result = answer_count(count, identity->sm_clock_count, mhz);
    for (unsigned i = 0; result == NVML_SUCCESS && i < *count; i++) mhz[i] = identity->sm_clocks_mhz[i];
    return result;
}

/* Limits that do not move */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *limit_mw) {
    IDENTITY_CALL();
    REQUIRE(limit_mw);
    return answer_32(limit_mw, identity->limit_default_mw ? identity->limit_default_mw : VNVML_NONE_32);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *low_mw,
                                                                      unsigned *high_mw) {
    IDENTITY_CALL();
    REQUIRE(low_mw && high_mw);
    if (!identity->limit_max_mw) return NVML_ERROR_NOT_SUPPORTED;
    *low_mw = identity->limit_min_mw;
    *high_mw = identity->limit_max_mw;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold,
                                                           unsigned *degrees_c) {
    IDENTITY_CALL();
    REQUIRE(degrees_c);
    switch (threshold) {
        case NVML_THRESHOLD_SHUTDOWN: return answer_32(degrees_c, identity->shutdown_c);
        case NVML_THRESHOLD_SLOWDOWN: return answer_32(degrees_c, identity->slowdown_c);
        case NVML_THRESHOLD_GPU_MAX: return answer_32(degrees_c, identity->max_operating_c);
        default: return NVML_ERROR_NOT_SUPPORTED;
    }
}
