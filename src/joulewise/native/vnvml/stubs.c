/* Every name of the real library that is not written out elsewhere: present, and NOT_SUPPORTED.
 *
 * names.h lists all names, made by list_names.py. The definitions here are weak, so that one written out in another
 * file takes the place of its stub when the library is linked. A stub ignores its arguments, which C's calling
 * convention allows, but for the first: most functions begin with a device, and a lost GPU is lost for them too. */
#include "connection.h"

static nvmlReturn_t not_supported(nvmlDevice_t first) {
    if (is_device_handle(first)) {
        GPU_CALL(first, VNVML_OTHER);
        return NVML_ERROR_NOT_SUPPORTED;
    }
    SYSTEM_CALL();
    return NVML_ERROR_NOT_SUPPORTED;
}

#define NAME(name)                                                  \
    NVML_EXPORT nvmlReturn_t name(nvmlDevice_t first);              \
    __attribute__((weak)) nvmlReturn_t name(nvmlDevice_t first) {   \
        return not_supported(first);                                \
    }
#include "names.h"
