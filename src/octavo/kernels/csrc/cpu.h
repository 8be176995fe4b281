// What the processor can do, and what the operating system lets us use of it.
#pragma once

#include "octavo_kernels.h"

namespace octavo {

bool has_isa(ov_isa isa);  // of any number, also of those that name no ISA
ov_isa best_isa();

// Linux grants the AMX tile registers on request, once per process and before threads use them. False if refused, and
// on other systems.
bool request_amx();

}  // namespace octavo
