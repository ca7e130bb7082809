#pragma once

#include <cstdint>

#include "flow.h"

namespace joulewise {

int fit(const jw_options &options, const jw_dag &dag, const int64_t *end, int32_t *choice);
int repair(const jw_options &options, const jw_dag &dag, const jw_switch *switching, int64_t deadline, int32_t *choice);

}  // namespace joulewise
