#!/usr/bin/env bash
# Both wheels and the source archive into a folder (dist), and checks of what came out: `make wheels`.
#
#   tools/build_wheels.sh [--pure] [FOLDER]
#
# The native wheel is for systems like this one. A release takes those of all platforms from cibuildwheel instead, which
# builds them for old systems and names what they fit; `--pure` adds the rest to them.
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
# Where there is no wheel for a platform, pip takes this one: no compiler needed, and everything runs on torch.
"$python" -m build --wheel -C wheel.cmake=false --outdir "$folder" .
"$python" -m build --sdist --outdir "$folder" .
"$python" tools/check_wheels.py "${check[@]}" "$folder"
"$python" -m twine check --strict "$folder"/octavo-*
