#define _GNU_SOURCE
#include "connection.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000ull
#define ALIVE_CACHE_NS 5000000ull /* how old an answer about the simulator's life may be */
#define HANG_POLL_NS 2000000ull
#define SPIN_BELOW_US 100u /* a sleep overshoots by about 50 us of timer slack */
#define LONGEST_WELCOME_S 1 /* for the simulator to take notice of a client; it needs milliseconds */

struct connection {
    struct vnvml_state *state;
    int directory_fd;
    int lock_fd;
    int client_fd; /* open while this process counts as a client; -1: it does not */
    bool writable;
    _Atomic uint64_t alive_checked_ns;
    atomic_bool dead; /* for good: a new simulator makes a new lock file */
};

struct nvmlDevice_st {
    unsigned index;
};

/* Handles are addresses in this table: stable, comparable, the same for every caller in the process. */
static struct nvmlDevice_st devices[VNVML_MAX_GPUS];

nvmlDevice_t device_handle(unsigned index) { return &devices[index]; }

bool is_device_handle(const void *handle) {
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)devices;
    return offset < sizeof devices && offset % sizeof devices[0] == 0;
}

static pthread_mutex_t open_mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned open_count;
static _Atomic(struct connection *) current; /* NULL: not initialised */
static struct connection *parked;            /* left open by the last shutdown, for the next to initialise */
static atomic_uint in_flight;

/* Time */

static uint64_t clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t monotonic_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

uint64_t realtime_us(void) { return clock_ns(CLOCK_REALTIME) / 1000; }

void sleep_ns(uint64_t duration_ns) {
    struct timespec left = {(time_t)(duration_ns / NS_PER_S), (long)(duration_ns % NS_PER_S)};
    while (nanosleep(&left, &left) == -1 && errno == EINTR) {
    }
}

/* Opening and closing */

static void release(struct connection *connection) {
    if (connection->state) munmap(connection->state, sizeof *connection->state);
    if (connection->lock_fd >= 0) close(connection->lock_fd);
    if (connection->client_fd >= 0) close(connection->client_fd);
    if (connection->directory_fd >= 0) close(connection->directory_fd);
    free(connection);
}

static bool locked(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

/* Map the simulator that the environment names. A missing variable, directory, file or lock is a missing driver; a
 * state of another layout is a driver that does not fit the library, as after an upgrade without a restart. */
static nvmlReturn_t map_simulator(struct connection *connection) {
    const char *directory = getenv("JOULEWISE_VNVML");
    if (!directory || !*directory) return NVML_ERROR_DRIVER_NOT_LOADED;
    connection->directory_fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (connection->directory_fd < 0) return NVML_ERROR_DRIVER_NOT_LOADED;

    connection->writable = true;
    int state_fd = openat(connection->directory_fd, "state", O_RDWR | O_CLOEXEC);
    if (state_fd < 0 && (errno == EACCES || errno == EROFS || errno == EPERM)) {
        connection->writable = false;
        state_fd = openat(connection->directory_fd, "state", O_RDONLY | O_CLOEXEC);
    }
    if (state_fd < 0) return NVML_ERROR_DRIVER_NOT_LOADED;
    struct stat file;
    void *mapped = MAP_FAILED;
    bool fits = fstat(state_fd, &file) == 0 && file.st_size == (off_t)sizeof(struct vnvml_state);
    if (fits) {
        int access = connection->writable ? PROT_READ | PROT_WRITE : PROT_READ;
        mapped = mmap(NULL, sizeof(struct vnvml_state), access, MAP_SHARED, state_fd, 0);
    }
    close(state_fd);
    if (!fits) return NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    if (mapped == MAP_FAILED) return NVML_ERROR_MEMORY;
    connection->state = mapped;
    const struct vnvml_header *header = &connection->state->header;
    if (header->magic != VNVML_MAGIC || header->layout_version != VNVML_LAYOUT_VERSION ||
        header->state_size != sizeof(struct vnvml_state) || header->gpu_count > VNVML_MAX_GPUS)
        return NVML_ERROR_LIB_RM_VERSION_MISMATCH;

    connection->lock_fd = openat(connection->directory_fd, "lock", O_RDONLY | O_CLOEXEC);
    if (connection->lock_fd < 0 || fstat(connection->lock_fd, &file) != 0) return NVML_ERROR_DRIVER_NOT_LOADED;
    if (file.st_ino != header->lock_inode || !locked(connection->lock_fd)) return NVML_ERROR_DRIVER_NOT_LOADED;
    return NVML_SUCCESS;
}

/* Let the simulator know that a client is here, by a connection that stays open from now on: the kernel closes it when
 * the process dies, however it dies. As with the device files of the real driver, a forked child shares it, and a
 * program started by exec does not. The simulator answers once its driver is loaded; one that is stopped, or a state
 * without a simulator's socket, is gone on with all the same. */
static void announce(struct connection *connection) {
    static const char hello[] = "{\"op\": \"nvml\"}\n";
    if (connection->client_fd >= 0) return;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    struct timeval longest = {.tv_sec = LONGEST_WELCOME_S};
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &longest, sizeof longest);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/work.sock", connection->directory_fd);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        send(fd, hello, sizeof hello - 1, MSG_NOSIGNAL) != sizeof hello - 1) {
        close(fd);
        return;
    }
    char welcome[64];
    ssize_t count;
    do {
        count = recv(fd, welcome, sizeof welcome, 0);
    } while ((count > 0 && !memchr(welcome, '\n', (size_t)count)) || (count < 0 && errno == EINTR));
    connection->client_fd = fd;
}

/* Unmap a connection that `current` no longer points to. A call counts itself in before it looks at `current`, so
 * whoever is not counted here cannot have it. With calls in flight (hung, perhaps) the mapping stays, instead of a
 * crash. */
static void discard(struct connection *connection) {
    if (connection && atomic_load(&in_flight) == 0) release(connection);
}

/* Whether a connection left open by the last shutdown is still of the simulator that the environment names. */
static bool still_named(const struct connection *connection) {
    const char *directory = getenv("JOULEWISE_VNVML");
    if (!directory || !locked(connection->lock_fd)) return false;
    struct stat named, ours;
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/lock", directory) >= (int)sizeof path) return false;
    if (stat(path, &named) != 0 || fstat(connection->lock_fd, &ours) != 0) return false;
    return named.st_ino == ours.st_ino && named.st_dev == ours.st_dev;
}

/* For the first to open, and for the first after the simulator's death: then the one that took its place is found, as
 * after a driver reload. */
static nvmlReturn_t connect_simulator(void) {
    if (parked && still_named(parked)) {
        atomic_store(&current, parked);
        parked = NULL;
        return NVML_SUCCESS;
    }
    struct connection *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return NVML_ERROR_MEMORY;
    fresh->directory_fd = fresh->lock_fd = fresh->client_fd = -1;
    nvmlReturn_t result = map_simulator(fresh);
    if (result != NVML_SUCCESS) {
        release(fresh);
        return result;
    }
    discard(atomic_exchange(&current, fresh));
    discard(parked);
    parked = NULL;
    return NVML_SUCCESS;
}

nvmlReturn_t connection_open(void) {
    pthread_mutex_lock(&open_mutex);
    struct connection *connection = atomic_load(&current);
    bool alive = connection && !atomic_load(&connection->dead) && locked(connection->lock_fd);
    nvmlReturn_t result = alive ? NVML_SUCCESS : connect_simulator();
    if (result == NVML_SUCCESS) {
        announce(atomic_load(&current));
        open_count++;
    }
    pthread_mutex_unlock(&open_mutex);
    return result;
}

nvmlReturn_t connection_close(void) {
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&open_mutex);
    if (open_count == 0)
        result = NVML_ERROR_UNINITIALIZED;
    else if (--open_count == 0) {
        parked = atomic_exchange(&current, NULL);
        if (parked->client_fd >= 0) close(parked->client_fd);
        parked->client_fd = -1;
    }
    pthread_mutex_unlock(&open_mutex);
    return result;
}

/* A forked child has the mapping and one thread: no other call is in flight there, and the mutex must be free. */
static void before_fork(void) { pthread_mutex_lock(&open_mutex); }

static void after_fork_parent(void) { pthread_mutex_unlock(&open_mutex); }

static void after_fork_child(void) {
    atomic_store(&in_flight, 0);
    pthread_mutex_unlock(&open_mutex);
}

__attribute__((constructor)) static void prepare(void) {
    for (unsigned i = 0; i < VNVML_MAX_GPUS; i++) devices[i].index = i;
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}

/* Calls */

bool call_alive(struct call *call) {
    struct connection *connection = call->connection;
    if (atomic_load(&connection->dead)) return false;
    if (monotonic_ns() - atomic_load(&connection->alive_checked_ns) < ALIVE_CACHE_NS) return true;
    if (!locked(connection->lock_fd)) {
        atomic_store(&connection->dead, true);
        return false;
    }
    atomic_store(&connection->alive_checked_ns, monotonic_ns());
    return true;
}

void call_end(struct call *call) {
    if (call->connection) atomic_fetch_sub(&in_flight, 1);
}

nvmlReturn_t call_begin(struct call *call) {
    atomic_fetch_add(&in_flight, 1);
    call->connection = atomic_load(&current);
    if (!call->connection) {
        atomic_fetch_sub(&in_flight, 1);
        return NVML_ERROR_UNINITIALIZED;
    }
    call->state = call->connection->state;
    return call_alive(call) ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
}

static uint32_t load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/* A call that costs milliseconds waits without using the processor; whether the real driver spins is not known. */
void call_wait(const struct call *call, enum vnvml_group group) {
    uint32_t latency_us = load(&call->gpu->faults.latency_us[group]);
    if (latency_us >= SPIN_BELOW_US) {
        sleep_ns(latency_us * 1000ull);
    } else if (latency_us > 0) {
        uint64_t end_ns = monotonic_ns() + latency_us * 1000ull;
        while (monotonic_ns() < end_ns) {
        }
    }
}

nvmlReturn_t call_begin_gpu(struct call *call, nvmlDevice_t device, enum vnvml_group group) {
    nvmlReturn_t refused = call_begin(call);
    if (refused != NVML_SUCCESS) return refused;
    if (!is_device_handle(device)) return NVML_ERROR_INVALID_ARGUMENT;
    call->index = device->index;
    if (call->index >= call->state->header.gpu_count) return NVML_ERROR_INVALID_ARGUMENT;
    call->gpu = &call->state->gpus[call->index];

    const struct vnvml_faults *faults = &call->gpu->faults;
    while (load(&faults->flags) & VNVML_FAULT_HANG) {
        sleep_ns(HANG_POLL_NS);
        if (!call_alive(call)) return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    if (load(&faults->flags) & VNVML_FAULT_LOST) return NVML_ERROR_GPU_IS_LOST;
    if (load(&faults->unsupported) & (1u << group)) return NVML_ERROR_NOT_SUPPORTED;
    call_wait(call, group);
    return NVML_SUCCESS;
}

nvmlReturn_t call_published(struct call *call, struct vnvml_published *copy) {
    _Static_assert(sizeof *copy % sizeof(uint64_t) == 0, "copied by words");
    const uint64_t *from = (const uint64_t *)(const void *)&call->gpu->published;
    uint64_t *to = (uint64_t *)(void *)copy;
    for (;;) {
        uint64_t before = __atomic_load_n(&call->gpu->published_sequence, __ATOMIC_ACQUIRE);
        if (before % 2 == 0) {
            for (size_t i = 0; i < sizeof *copy / sizeof(uint64_t); i++)
                to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
            atomic_thread_fence(memory_order_acquire);
            if (__atomic_load_n(&call->gpu->published_sequence, __ATOMIC_RELAXED) == before) return NVML_SUCCESS;
        }
        /* The writer is in the middle: a microsecond, unless it was descheduled, stopped or killed there. */
        sleep_ns(20000);
        if (!call_alive(call)) return NVML_ERROR_DRIVER_NOT_LOADED;
    }
}

uint32_t call_enforced_mw(const struct call *call) {
    uint64_t requested_mw = __atomic_load_n(&call->gpu->control.power_limit_mw, __ATOMIC_ACQUIRE);
    uint32_t bmc_mw = load(&call->gpu->faults.bmc_limit_mw);
    if (!requested_mw) return VNVML_NONE_32;
    return bmc_mw && bmc_mw < requested_mw ? bmc_mw : (uint32_t)requested_mw;
}

/* The real driver asks for a capability in the machine's own user namespace, which root of another one does not have.
 * Where /proc does not tell, the mode of the file has the last word. */
static bool at_home(const struct vnvml_header *header) {
    struct stat space;
    return !header->user_namespace || stat("/proc/self/ns/user", &space) != 0 || space.st_ino == header->user_namespace;
}

bool call_may_write(const struct call *call) {
    if (load(&call->gpu->faults.flags) & VNVML_FAULT_NO_PERMISSION) return false;
    if (!call->connection->writable) return false;
    const struct vnvml_header *header = &call->state->header;
    return (header->flags & VNVML_EVERYONE_MAY_WRITE) || (geteuid() == 0 && at_home(header));
}

void call_wrote(struct call *call) {
    struct vnvml_control *control = &call->gpu->control;
    __atomic_store_n(&control->writer_pid, (uint64_t)getpid(), __ATOMIC_RELAXED);
    __atomic_store_n(&control->written_ns, monotonic_ns(), __ATOMIC_RELAXED);
    __atomic_fetch_add(&control->sequence, 1, __ATOMIC_SEQ_CST);
    /* Wake the simulator; it looks by itself soon enough if this fails. Through /proc, because a socket's own path may
     * have no more than 107 bytes. */
    int poke = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (poke < 0) return;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/wake", call->connection->directory_fd);
    sendto(poke, "w", 1, MSG_NOSIGNAL, (struct sockaddr *)&address, sizeof address);
    close(poke);
}
