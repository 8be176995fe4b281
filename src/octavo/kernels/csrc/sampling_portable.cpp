// Sampling: plain C++, on any processor.
#include "sampling_blocks.h"

namespace octavo {

const SamplingKernel sampling_portable = SAMPLING;

}  // namespace octavo
