/* How a value becomes an answer: into a buffer, or NOT_SUPPORTED where there is none. */
#ifndef JOULEWISE_VNVML_ANSWER_H
#define JOULEWISE_VNVML_ANSWER_H

#include <string.h>

#include "nvml_abi.h"
#include "state.h"

static inline nvmlReturn_t answer_text(char *to, unsigned length, const char *text) {
    if (!to) return NVML_ERROR_INVALID_ARGUMENT;
    size_t needed = strlen(text) + 1;
    if (length < needed) return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, text, needed);
    return NVML_SUCCESS;
}

static inline nvmlReturn_t answer_32(unsigned *to, uint32_t value) {
    if (value == VNVML_NONE_32) return NVML_ERROR_NOT_SUPPORTED;
    *to = value;
    return NVML_SUCCESS;
}

static inline nvmlReturn_t answer_64(unsigned long long *to, uint64_t value) {
    if (value == VNVML_NONE_64) return NVML_ERROR_NOT_SUPPORTED;
    *to = value;
    return NVML_SUCCESS;
}

/* The two-call protocol of lists: with too little room, say how much is needed; else fill and say how much. */
static inline nvmlReturn_t answer_count(unsigned *count, unsigned available, const void *room) {
    unsigned offered = room ? *count : 0;
    *count = available;
    return offered < available ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#endif
