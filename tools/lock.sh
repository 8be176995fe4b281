#!/usr/bin/env bash
# Rewrite deploy/*.lock: every package of the image, with version and hash, in the newest versions that fit.
# Requires `uv` (pip install uv).
set -euo pipefail
cd "$(dirname "$0")/.."
python_version=$(sed -n 's/^ARG PYTHON_VERSION=//p' deploy/Dockerfile)
torch_version=$(sed -n 's/^ARG TORCH_VERSION=//p' deploy/Dockerfile)

compile() {
  target=$1
  shift
  {
    echo "# Made by tools/lock.sh for Python $python_version on Linux; do not edit."
    uv pip compile --quiet --config-file deploy/uv.toml --no-header --no-emit-index-url --generate-hashes \
      --python-version "$python_version" --python-platform linux "$@"
  } > "$target.new"
  mv "$target.new" "$target"
}

compile deploy/requirements.lock --no-emit-package torch --constraint <(echo "torch==$torch_version") pyproject.toml
# Packages that build the wheel and are not part of the image.
python3 - << 'END' | compile deploy/build.lock --no-annotate -
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["build-system"]["requires"], "cmake>=3.18", "ninja", sep="\n")
END
