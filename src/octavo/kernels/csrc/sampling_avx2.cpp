// Sampling: AVX2 and FMA.
#include "sampling_blocks.h"

namespace octavo {

const SamplingKernel sampling_avx2 = SAMPLING;

}  // namespace octavo
