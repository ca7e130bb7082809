/* The shared memory between the simulator and every process that loaded the virtual NVML.
 *
 * One file, mapped by all. `src/joulewise/device/vnvml_structs.py` mirrors these structs field by field; a test compares
 * every offset. Change both, and raise VNVML_LAYOUT_VERSION.
 *
 * Who writes what:
 *   header, identity   the simulator, once, before the file gets its final name
 *   clock, published   the simulator, each under its sequence lock (odd while a write is under way)
 *   faults             the simulator (or a test), one word at a time
 *   samples            the simulator; an entry first, then `head`
 *   control            any client that may, one 64-bit word a knob, so that a writer killed at any instruction leaves
 *                      every knob whole and no lock behind; the simulator too, when it plays a driver that was reloaded,
 *                      or unloaded because nobody used it
 *
 * A published value that the simulator does not have is all ones; the library answers NOT_SUPPORTED for it. */
#ifndef JOULEWISE_VNVML_STATE_H
#define JOULEWISE_VNVML_STATE_H

#include <stdint.h>

#define VNVML_MAGIC 0x4c4d564e564a5731ULL
#define VNVML_LAYOUT_VERSION 2u

#define VNVML_MAX_GPUS 64
#define VNVML_MAX_MEMORY_CLOCKS 8
#define VNVML_MAX_SM_CLOCKS 512
#define VNVML_MAX_PROCESSES 16
#define VNVML_MAX_GROUPS 16
#define VNVML_GPM_SLOTS 24
#define VNVML_SAMPLES 128

#define VNVML_NONE_32 UINT32_MAX
#define VNVML_NONE_64 UINT64_MAX

/* header.flags: setters are for root alone, as in life, unless this is set. Root of another user namespace than the
 * simulator's is not root, as in life. */
#define VNVML_EVERYONE_MAY_WRITE 1u

/* faults.flags */
#define VNVML_FAULT_LOST 1u          /* every call on the GPU answers GPU_IS_LOST */
#define VNVML_FAULT_NO_PERMISSION 2u /* setters answer NO_PERMISSION, to root too */
#define VNVML_FAULT_HANG 4u          /* calls block until this is cleared or the simulator dies */
#define VNVML_FAULT_MIG 8u           /* MIG mode is on; there are no instances */

/* What a fault or a call cost can be given for; bit (1 << group) in faults.unsupported. */
enum vnvml_group {
    VNVML_ENERGY_COUNTER = 0,
    VNVML_POWER = 1,
    VNVML_LIMIT_SET = 2,
    VNVML_SM_CLOCK_SET = 3,
    VNVML_MEMORY_CLOCK_SET = 4,
    VNVML_GPM = 5,
    VNVML_FIELD_VALUES = 6,
    VNVML_PROCESSES = 7,
    VNVML_OTHER = 8,
};

struct vnvml_header {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t state_size;
    uint32_t gpu_count;
    uint32_t flags;
    uint32_t simulator_pid;
    uint32_t driver_generation; /* raised by each simulated driver reload */
    uint64_t lock_inode;        /* of the `lock` file that goes with this state */
    uint64_t origin_ns;         /* CLOCK_MONOTONIC when the simulator started */
    uint64_t user_namespace;    /* inode of the simulator's; 0: not known */
    int32_t cuda_version;
    uint32_t reserved;
    char driver_version[80];
    char nvml_version[80];
};

/* Simulated time: simulated_ns was true at monotonic_ns, and since then it runs `speed` times as fast. */
struct vnvml_clock {
    uint32_t sequence;
    uint32_t reserved;
    uint64_t simulated_ns;
    uint64_t monotonic_ns;
    double speed;
};

struct vnvml_identity {
    char uuid[96];
    char name[96];
    char serial[32]; /* empty: none */
    uint64_t memory_total_bytes;
    uint64_t memory_reserved_bytes;
    uint64_t bar1_total_bytes; /* 0: not known */
    uint32_t pci_domain;
    uint32_t pci_bus;
    uint32_t pci_device;
    uint32_t pci_device_id;
    uint32_t pci_subsystem_id;
    uint32_t brand;
    uint32_t architecture;
    uint32_t compute_major;
    uint32_t compute_minor;
    uint32_t cores;           /* 0: not known */
    uint32_t memory_bus_bits; /* 0: not known */
    uint32_t gpm_supported;
    uint32_t limit_min_mw; /* 0: no power limit on this GPU */
    uint32_t limit_max_mw;
    uint32_t limit_default_mw;
    uint32_t shutdown_c;
    uint32_t slowdown_c;
    uint32_t max_operating_c;
    uint32_t memory_clock_count;
    uint32_t sm_clock_count;
    uint32_t memory_clocks_mhz[VNVML_MAX_MEMORY_CLOCKS]; /* both lists highest first */
    uint16_t sm_clocks_mhz[VNVML_MAX_SM_CLOCKS];
};

struct vnvml_process {
    uint32_t pid;
    uint32_t reserved;
    uint64_t memory_bytes;
};

struct vnvml_published {
    uint64_t simulated_ns; /* when these values were true */
    uint64_t energy_mj;    /* as of the counter's last tick */
    uint64_t memory_used_bytes;
    uint64_t clocks_event_reasons;
    uint64_t power_violation_ns;
    uint64_t thermal_violation_ns;
    uint32_t power_mw; /* nvmlDeviceGetPowerUsage: a 1 s mean or an instant, as the GPU has it */
    uint32_t power_instant_mw;
    uint32_t power_average_mw;
    uint32_t sm_mhz;
    uint32_t graphics_mhz;
    uint32_t memory_mhz;
    uint32_t video_mhz;
    uint32_t utilisation_gpu_percent;
    uint32_t utilisation_memory_percent;
    uint32_t temperature_c;
    uint32_t memory_temperature_c;
    uint32_t pstate;
    uint32_t process_count;
    uint32_t reserved;
    struct vnvml_process processes[VNVML_MAX_PROCESSES];
    uint64_t gpm_ns;                      /* simulated time of the integrals */
    double gpm_integral[VNVML_GPM_SLOTS]; /* metric × seconds since start, slots as in gpm.c */
    uint64_t gpm_slots;                   /* bit i: slot i is fed */
};

struct vnvml_control {
    uint64_t power_limit_mw; /* 0: no power limit on this GPU */
    uint64_t sm_lock;        /* lowest MHz << 32 | highest MHz; 0: not locked */
    uint64_t memory_lock;
    uint64_t persistence;
    uint64_t sequence;   /* raised after every write */
    uint64_t written_ns; /* CLOCK_MONOTONIC of the last write */
    uint64_t writer_pid;
    uint64_t reserved;
};

struct vnvml_faults {
    uint32_t flags;
    uint32_t unsupported;
    uint32_t latency_us[VNVML_MAX_GROUPS];
    uint32_t bmc_limit_mw; /* the board controller holds power below this, whatever clients ask; 0: it does not */
    uint32_t reserved;
};

struct vnvml_sample {
    uint64_t timestamp_us; /* CLOCK_REALTIME, as NVML stamps samples */
    uint32_t power_mw;
    uint32_t utilisation_gpu_percent;
    uint32_t utilisation_memory_percent;
    uint32_t sm_mhz;
    uint32_t memory_mhz;
    uint32_t reserved;
};

struct vnvml_gpu {
    struct vnvml_identity identity;
    uint64_t published_sequence;
    struct vnvml_published published;
    struct vnvml_control control;
    struct vnvml_faults faults;
    uint64_t samples_head; /* samples ever appended; entry i lives at i % VNVML_SAMPLES */
    struct vnvml_sample samples[VNVML_SAMPLES];
};

struct vnvml_state {
    struct vnvml_header header;
    struct vnvml_clock clock;
    struct vnvml_gpu gpus[VNVML_MAX_GPUS];
};

#endif
