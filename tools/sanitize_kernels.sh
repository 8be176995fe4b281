#!/usr/bin/env bash
# Build the kernel library with the address and undefined-behaviour sanitizers, and run its tests on it.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
cmake -S . -B "$build" -DOCTAVO_SANITIZE=ON > "$build/log"
cmake --build "$build" -j >> "$build/log"
# Python itself is not instrumented: the runtime comes first by preloading, and its own leaks do not count.
export LD_PRELOAD="$(${CXX:-g++} -print-file-name=libasan.so) $(${CXX:-g++} -print-file-name=libubsan.so) $(${CXX:-g++} -print-file-name=libstdc++.so.6)"
export ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1
export OCTAVO_KERNEL_LIBRARY=$build/liboctavo_kernels.so
${PYTHON:-python} -m pytest -q -p no:cacheprovider --no-header tests/unit/kernels
