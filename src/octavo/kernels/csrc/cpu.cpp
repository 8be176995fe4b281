#include "cpu.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace octavo {

#if defined(__x86_64__)
namespace {

// XCR0: the register states that the operating system saves. The CPUID bits alone are not enough: a virtual machine may
// report an instruction set whose registers the operating system does not save.
constexpr uint64_t XCR0_AVX = 0x6;
constexpr uint64_t XCR0_AVX512 = 0xe6;
constexpr uint64_t XCR0_AMX = 0x60000;

struct Registers {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx);
  return r;
}

uint64_t saved_states() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t(high) << 32) | low;
}

bool bit(unsigned value, int position) { return (value >> position) & 1; }

}  // namespace

#if defined(__linux__)
bool request_amx() {
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023;
  constexpr long XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#else
bool request_amx() { return false; }
#endif

// On x86-64, each ISA implies all those with smaller numbers.
bool has_isa(ov_isa isa) { return isa >= OV_PORTABLE && isa <= best_isa(); }

ov_isa best_isa() {
  const Registers basic = cpuid(1, 0);
  const bool has_xgetbv = bit(basic.ecx, 27);
  if (!has_xgetbv) return OV_PORTABLE;
  const uint64_t saved = saved_states();
  const Registers extended = cpuid(7, 0);
  const Registers extended1 = cpuid(7, 1);
  const bool avx2 = bit(extended.ebx, 5) && bit(basic.ecx, 12) /* FMA */ && bit(basic.ecx, 29) /* F16C */;
  if (!avx2 || (saved & XCR0_AVX) != XCR0_AVX) return OV_PORTABLE;
  const bool avx512 = bit(extended.ebx, 16) /* F */ && bit(extended.ebx, 17) /* DQ */ &&
                      bit(extended.ebx, 30) /* BW */ && bit(extended.ebx, 31) /* VL */;
  if (!avx512 || (saved & XCR0_AVX512) != XCR0_AVX512) return OV_AVX2;
  const bool amx = bit(extended.edx, 22) /* BF16 */ && bit(extended.edx, 24) /* TILE */ &&
                   bit(extended1.eax, 5) /* AVX512_BF16 */ && bit(extended.ecx, 1) /* AVX512_VBMI */;
  if (!amx || (saved & XCR0_AMX) != XCR0_AMX || !request_amx()) return OV_AVX512;
  return OV_AMX;
}

#elif defined(__aarch64__)

// Every aarch64 processor has NEON.
bool request_amx() { return false; }
bool has_isa(ov_isa isa) { return isa == OV_PORTABLE || isa == OV_NEON; }
ov_isa best_isa() { return OV_NEON; }

#else

bool request_amx() { return false; }
bool has_isa(ov_isa isa) { return isa == OV_PORTABLE; }
ov_isa best_isa() { return OV_PORTABLE; }

#endif

}  // namespace octavo
