#!/usr/bin/env bash
# Build the kernel library with the address and undefined-behaviour sanitizers, and run its tests.
#
#   tools/sanitize_kernels.sh [--build-only]
#
# If SANITIZED_KERNELS is set, the build is kept in that folder and reused by the next call.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${SANITIZED_KERNELS:-}
if [ -z "$build" ]; then
  build=$(mktemp -d)
  trap 'rm -rf "$build"' EXIT
fi
mkdir -p "$build"
{ cmake -S . -B "$build" -DOCTAVO_SANITIZE=ON && cmake --build "$build" -j "$(nproc)"; } > "$build/log" 2>&1 || {
  cat "$build/log"
  exit 1
}
if [ "${1:-}" = --build-only ]; then
  exit
fi
# Python itself is not instrumented: preload the sanitizer runtimes, and ignore Python's own leaks.
LD_PRELOAD="$(${CXX:-g++} -print-file-name=libasan.so) $(${CXX:-g++} -print-file-name=libubsan.so) $(${CXX:-g++} -print-file-name=libstdc++.so.6)"
export LD_PRELOAD ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
export OCTAVO_KERNEL_LIBRARY=$build/liboctavo_kernels.so
${PYTHON:-python} -m pytest -q -p no:cacheprovider --no-header tests/unit/kernels
