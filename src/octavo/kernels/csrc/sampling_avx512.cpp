// Sampling: AVX512.
#include "sampling_blocks.h"

namespace octavo {

const SamplingKernel sampling_avx512 = SAMPLING;

}  // namespace octavo
