/* Calls about the library and the node: initialisation, versions, errors, counting and finding GPUs. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <strings.h>
#include <unistd.h>

#include "answer.h"
#include "connection.h"

/* PyTorch asks NVML, in nvmlInit and nvmlDeviceGetCount_v2, how many GPUs CUDA has: so it can tell without starting
 * CUDA. No CUDA can open a virtual GPU, so the answer for PyTorch is none, or where there is a real CUDA driver an error,
 * upon which it asks CUDA itself. It is known by the first name of nvmlInit, which headers have replaced by _v2 and
 * nvidia-ml-py by nvmlInitWithFlags: other readers of NVML in the same process count the virtual GPUs as ever. */
static _Thread_local bool counts_for_cuda;

static bool can_load(const char *library, int mode) {
    void *handle = dlopen(library, RTLD_LAZY | mode);
    if (handle) dlclose(handle);
    return handle != NULL;
}

NVML_EXPORT nvmlReturn_t nvmlInit(void) {
    nvmlReturn_t result = connection_open();
    counts_for_cuda = result == NVML_SUCCESS && can_load("libc10.so", RTLD_NOLOAD); /* PyTorch's core, if loaded */
    return result;
}

NVML_EXPORT nvmlReturn_t nvmlInit_v2(void) { return connection_open(); }

NVML_EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags) {
    (void)flags; /* they ask to tolerate missing or unattached GPUs; here there are none such */
    return connection_open();
}

NVML_EXPORT nvmlReturn_t nvmlShutdown(void) { return connection_close(); }

NVML_EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
        case NVML_SUCCESS: return "Success";
        case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
        case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
        case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
        case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
        case NVML_ERROR_NOT_FOUND: return "Not Found";
        case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
        case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
        case NVML_ERROR_TIMEOUT: return "Timeout";
        case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
        case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
        case NVML_ERROR_MEMORY: return "Insufficient Memory";
        case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
        default: return "Unknown Error";
    }
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
    SYSTEM_CALL();
    return answer_text(version, length, call.state->header.driver_version);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    SYSTEM_CALL();
    return answer_text(version, length, call.state->header.nvml_version);
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    SYSTEM_CALL();
    REQUIRE(version);
    *version = call.state->header.cuda_version;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return nvmlSystemGetCudaDriverVersion(version);
}

static ssize_t read_proc(unsigned pid, const char *file, char *text, size_t size) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/%s", pid, file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t count = read(fd, text, size - 1);
    close(fd);
    if (count >= 0) text[count] = '\0';
    return count;
}

/* The program as it was called; the kernel's short name for a process that has no command line (a zombie). */
NVML_EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
    SYSTEM_CALL();
    REQUIRE(name && length > 0);
    char text[1024];
    if (read_proc(pid, "cmdline", text, sizeof text) <= 0 || !*text) {
        if (read_proc(pid, "comm", text, sizeof text) <= 0) return NVML_ERROR_NOT_FOUND;
        text[strcspn(text, "\n")] = '\0';
    }
    snprintf(name, length, "%s", text); /* a long name is cut, not refused */
    return NVML_SUCCESS;
}

static nvmlReturn_t answer_zero(unsigned *count) {
    SYSTEM_CALL();
    REQUIRE(count);
    *count = 0;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned *count) { return answer_zero(count); }

NVML_EXPORT nvmlReturn_t nvmlGetExcludedDeviceCount(unsigned *count) { return answer_zero(count); }

NVML_EXPORT nvmlReturn_t nvmlSystemGetHicVersion(unsigned *count, void *entries) {
    (void)entries;
    return answer_zero(count);
}

/* Finding GPUs. A lost GPU is counted but cannot be had. */

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
    SYSTEM_CALL();
    REQUIRE(count);
    if (counts_for_cuda) {
        counts_for_cuda = false;
        if (can_load("libcuda.so.1", 0)) return NVML_ERROR_UNKNOWN;
        *count = 0;
        return NVML_SUCCESS;
    }
    *count = call.state->header.gpu_count;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

static nvmlReturn_t hand_out(unsigned index, nvmlDevice_t *device) {
    nvmlDevice_t handle = device_handle(index);
    GPU_CALL(handle, VNVML_OTHER);
    *device = handle;
    return NVML_SUCCESS;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
    SYSTEM_CALL();
    REQUIRE(device && index < call.state->header.gpu_count);
    return hand_out(index, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    SYSTEM_CALL();
    REQUIRE(uuid && device);
    for (unsigned i = 0; i < call.state->header.gpu_count; i++)
        if (strcasecmp(uuid, call.state->gpus[i].identity.uuid) == 0) return hand_out(i, device);
    return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
    SYSTEM_CALL();
    REQUIRE(uuid && device);
    if (uuid->version != STRUCT_VERSION(nvmlUUID_t, 1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    char text[sizeof uuid->value.str + 1] = "GPU-";
    if (uuid->type == NVML_UUID_ASCII) {
        memcpy(text, uuid->value.str, sizeof uuid->value.str);
        text[sizeof uuid->value.str] = '\0';
    } else if (uuid->type == NVML_UUID_BINARY) {
        char *end = text + 4;
        for (unsigned i = 0; i < 16; i++)
            end += sprintf(end, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid->value.bytes[i]);
    } else {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return nvmlDeviceGetHandleByUUID(text, device);
}

/* Accepts "domain:bus:device.function" with a domain of any length, and "bus:device.function" of domain 0. */
NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    SYSTEM_CALL();
    REQUIRE(bus_id && device);
    unsigned domain, bus, slot;
    if (sscanf(bus_id, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(bus_id, "%x:%x", &bus, &slot) != 2) return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < call.state->header.gpu_count; i++) {
        const struct vnvml_identity *gpu = &call.state->gpus[i].identity;
        if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot) return hand_out(i, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

NVML_EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    SYSTEM_CALL();
    REQUIRE(serial && *serial && device);
    for (unsigned i = 0; i < call.state->header.gpu_count; i++)
        if (strcmp(serial, call.state->gpus[i].identity.serial) == 0) return hand_out(i, device);
    return NVML_ERROR_NOT_FOUND;
}
