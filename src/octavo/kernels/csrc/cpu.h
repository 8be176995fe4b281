// The instruction sets that the processor has and the operating system supports.
#pragma once

#include "octavo_kernels.h"

namespace octavo {

bool has_isa(ov_isa isa);  // accepts any number; false if it is not an ISA
ov_isa best_isa();

// Requests the AMX tile registers from Linux, which grants them per process, before threads use them. Returns false if
// the request is denied, and on other systems.
bool request_amx();

}  // namespace octavo
