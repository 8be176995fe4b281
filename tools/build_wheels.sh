#!/usr/bin/env bash
# Build both wheels and the source archive in a folder (default: dist) and check them: `make wheels`.
#
#   tools/build_wheels.sh [--pure] [FOLDER]
#
# The native wheel is for systems like this one. For a release, cibuildwheel builds the native wheels of all platforms, for
# old systems; `--pure` adds the pure wheel and the source archive to them.
set -euo pipefail
cd "$(dirname "$0")/.."
native=yes
check=()
if [ "${1:-}" = --pure ]; then
  native=
  check=(--release)
  shift
fi
folder=${1:-dist}
python=${PYTHON:-python}
if [ -n "$native" ]; then
  rm -f "$folder"/octavo-*.whl "$folder"/octavo-*.tar.gz
  "$python" -m build --wheel --outdir "$folder" .
fi
# pip installs this wheel on platforms without a native one: it needs no compiler, and everything runs on torch.
"$python" -m build --wheel -C wheel.cmake=false --outdir "$folder" .
"$python" -m build --sdist --outdir "$folder" .
"$python" tools/check_wheels.py "${check[@]}" "$folder"
"$python" -m twine check --strict "$folder"/octavo-*
