// Sampling: NEON.
#include "sampling_blocks.h"

namespace octavo {

const SamplingKernel sampling_neon = SAMPLING;

}  // namespace octavo
