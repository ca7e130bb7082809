/* The part of NVML's C ABI that the virtual library answers for: types, numbers and struct layouts.
 *
 * Written from the layouts that client bindings use (nvidia-ml-py's ctypes structs), which a test compares by size.
 * Names in nvml* case are the interface's; everything of our own is in snake_case. */
#ifndef JOULEWISE_NVML_ABI_H
#define JOULEWISE_NVML_ABI_H

#include <stdint.h>

#define NVML_EXPORT __attribute__((visibility("default")))

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;
typedef struct nvmlGpmSample_st *nvmlGpmSample_t;

/* A versioned struct carries its own size and its version's number in one word. */
#define STRUCT_VERSION(type, number) ((unsigned)sizeof(type) | ((unsigned)(number) << 24))

enum { NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_CLOCK_VIDEO };
enum { NVML_CLOCK_ID_CURRENT, NVML_CLOCK_ID_APP_TARGET, NVML_CLOCK_ID_APP_DEFAULT, NVML_CLOCK_ID_BOOST_MAX };
#define NVML_CLOCK_LIMIT_TDP 0xffffff01u
#define NVML_CLOCK_LIMIT_UNLIMITED 0xffffff02u

enum {
    NVML_THRESHOLD_SHUTDOWN = 0,
    NVML_THRESHOLD_SLOWDOWN = 1,
    NVML_THRESHOLD_GPU_MAX = 3,
};

enum {
    NVML_VALUE_UNSIGNED_INT = 1,
    NVML_VALUE_UNSIGNED_LONG_LONG = 3,
};

enum {
    NVML_SAMPLES_POWER = 0,
    NVML_SAMPLES_GPU_UTILIZATION = 1,
    NVML_SAMPLES_MEMORY_UTILIZATION = 2,
    NVML_SAMPLES_SM_CLOCK = 5,
    NVML_SAMPLES_MEMORY_CLOCK = 6,
};

enum {
    NVML_FIELD_MEMORY_TEMPERATURE = 82,
    NVML_FIELD_TOTAL_ENERGY = 83,
    NVML_FIELD_POWER_AVERAGE = 185,
    NVML_FIELD_POWER_INSTANT = 186,
    NVML_FIELD_POWER_MIN_LIMIT = 187,
    NVML_FIELD_POWER_MAX_LIMIT = 188,
    NVML_FIELD_POWER_DEFAULT_LIMIT = 189,
    NVML_FIELD_POWER_CURRENT_LIMIT = 190,
    NVML_FIELD_ENERGY = 191,
    NVML_FIELD_POWER_REQUESTED_LIMIT = 192,
};

#define NVML_EVENT_XID 0x8ull
#define NVML_XID_FALLEN_OFF_BUS 79ull

enum { NVML_UUID_ASCII = 1, NVML_UUID_BINARY = 2 };
enum { NVML_PERF_POLICY_POWER = 0, NVML_PERF_POLICY_THERMAL = 1 };
enum { NVML_PROCESS_MODE_COMPUTE, NVML_PROCESS_MODE_GRAPHICS, NVML_PROCESS_MODE_MPS, NVML_PROCESS_MODE_ALL };

typedef struct {
    char busId[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId, reserved[4];
} nvmlPciInfo_v2_t;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_v1_t;

typedef struct {
    unsigned version, type;
    union {
        char str[41];
        unsigned char bytes[16];
    } value;
} nvmlUUID_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef nvmlMemory_t nvmlBAR1Memory_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned version, sensorType;
    int temperature;
} nvmlTemperature_v1_t;

typedef struct {
    unsigned version, powerScope, powerValueMw;
} nvmlPowerValue_v2_t;

typedef union {
    double dVal;
    unsigned uiVal;
    unsigned long ulVal;
    unsigned long long ullVal;
    long long sllVal;
    int siVal;
    unsigned short usVal;
} nvmlValue_t;

typedef struct {
    unsigned long long timeStamp;
    nvmlValue_t sampleValue;
} nvmlSample_t;

typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct {
    unsigned long long referenceTime, violationTime;
} nvmlViolationTime_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t; /* versions 2 and 3 */

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_v1_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    unsigned metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    struct {
        const char *shortName, *longName, *unit;
    } metricInfo;
} nvmlGpmMetric_t;

/* The caller's array is as long as its own NVML version knows metrics; only numMetrics entries are touched. */
typedef struct {
    unsigned version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[];
} nvmlGpmMetricsGet_t;

typedef struct {
    unsigned version, isSupportedDevice;
} nvmlGpmSupport_t;

#endif
