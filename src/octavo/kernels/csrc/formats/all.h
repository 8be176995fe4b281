// All formats, in the order of ov_format from OV_Q4_K on.
#pragma once

#include "byte_groups.h"
#include "int4.h"
#include "iq4_nl.h"
#include "iq4_xs.h"
#include "mxfp4.h"
#include "q2_k.h"
#include "q3_k.h"
#include "q4_0.h"
#include "q4_1.h"
#include "q4_k.h"
#include "q5_0.h"
#include "q5_1.h"
#include "q5_k.h"
#include "q6_k.h"
#include "q8_0.h"

namespace octavo {
namespace {

template <class... Formats>
struct FormatList {
  static constexpr int64_t SIZE = sizeof...(Formats);
};

using AllFormats = FormatList<Q4K, Q5K, Q6K, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2K, Q3K, IQ4NL, IQ4XS, MXFP4, Int4<32>,
                              Int4<128>, Int8<32>, Int8<128>, Fp8<32>, Fp8<128>>;

}  // namespace
}  // namespace octavo
