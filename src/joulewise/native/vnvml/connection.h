/* A client's connection to the simulator, and the frame of every call: initialised? alive? which GPU? any fault? */
#ifndef JOULEWISE_VNVML_CONNECTION_H
#define JOULEWISE_VNVML_CONNECTION_H

#include <stdbool.h>

#include "nvml_abi.h"
#include "state.h"

struct connection; /* one mapped simulator */

/* One call in flight. The connection cannot be unmapped between call_begin* and call_end. */
struct call {
    struct connection *connection;
    struct vnvml_state *state;
    struct vnvml_gpu *gpu; /* NULL in a call about no GPU */
    unsigned index;
};

/* Frames: declare `call` and return early with what NVML answers, or go on with `call.state` (and `call.gpu`) valid.
 * A GPU frame also waits out the call cost or hang given for `group` and refuses lost GPUs and unsupported groups. */
#define SYSTEM_CALL()                                                       \
    __attribute__((cleanup(call_end))) struct call call = {0};              \
    do {                                                                    \
        nvmlReturn_t refused = call_begin(&call);                           \
        if (refused != NVML_SUCCESS) return refused;                        \
    } while (0)

#define GPU_CALL(device, group)                                             \
    __attribute__((cleanup(call_end))) struct call call = {0};              \
    do {                                                                    \
        nvmlReturn_t refused = call_begin_gpu(&call, (device), (group));    \
        if (refused != NVML_SUCCESS) return refused;                        \
    } while (0)

#define REQUIRE(argument)                                                   \
    do {                                                                    \
        if (!(argument)) return NVML_ERROR_INVALID_ARGUMENT;                \
    } while (0)

nvmlReturn_t connection_open(void);  /* counts; maps the simulator where there is none, or a dead one */
nvmlReturn_t connection_close(void); /* counts; after the last, calls are refused */

nvmlReturn_t call_begin(struct call *call);
nvmlReturn_t call_begin_gpu(struct call *call, nvmlDevice_t device, enum vnvml_group group);
void call_end(struct call *call);

/* Wait out the call cost given for one more group. */
void call_wait(const struct call *call, enum vnvml_group group);

/* Whether the simulator lives, asked of the kernel at most every 5 ms. A dead one answers DRIVER_NOT_LOADED to every
 * call, the first and all later: the error that clients already know as "there is no driver". */
bool call_alive(struct call *call);

/* A consistent copy of the published values; fails only when the simulator dies meanwhile. */
nvmlReturn_t call_published(struct call *call, struct vnvml_published *copy);

/* The power limit in force: what was asked for, or what the board controller holds it to; all ones: there is none. */
uint32_t call_enforced_mw(const struct call *call);

/* Whether this process may set, and the note to the simulator that it did. */
bool call_may_write(const struct call *call);
void call_wrote(struct call *call);

nvmlDevice_t device_handle(unsigned index);
bool is_device_handle(const void *handle); /* without looking at what it points to */

uint64_t monotonic_ns(void);
uint64_t realtime_us(void);
void sleep_ns(uint64_t duration_ns);

#endif
