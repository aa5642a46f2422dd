#!/bin/bash
# The CPU engine's kernels on a 64-bit Arm processor that qemu pretends to be: correctness, never speed.
#
#     bash tests/engine/cpu/on_arm.sh FOLDER [cortex-a76|cortex-a72|...] [i8mm|dotprod|neon|generic] [TYPE ...]
#
# By default `max`, which has all that qemu knows, the fastest instructions that the processor has, and all types of
# blocks; compiling each takes a minute. For Debian, with qemu-user-static installed and Python 3.11's pip as $PYTHON.
# Python and its libraries for Arm come from Debian into FOLDER, numba and what else the kernels need from the package
# index; nothing on this system changes. The first run downloads 100 MB.
set -euo pipefail
root=$(cd "$(dirname "$0")/../../.." && pwd)
folder=$(mkdir -p "$1" && cd "$1" && pwd)
python=${PYTHON:-python3}

if [ ! -x "$folder/root/usr/bin/python3.11" ]; then
    mkdir -p "$folder"/{state/lists/partial,cache/archives/partial,root}
    : > "$folder/status"
    apt=(apt-get -q -y -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$folder/state"
        -o Dir::State::status="$folder/status" -o Dir::Cache="$folder/cache" -o Debug::NoLocking=1)
    "${apt[@]}" update
    "${apt[@]}" --no-install-recommends --download-only install python3.11 libstdc++6 libgomp1
    for package in "$folder"/cache/archives/*.deb; do dpkg -x "$package" "$folder/root"; done
fi
if [ ! -d "$folder/site/numba" ]; then
    "$python" -m pip install -q --only-binary=:all: --python-version 3.11 --implementation cp \
        --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
        --platform manylinux2014_aarch64 --target "$folder/site" \
        numba==0.68.1 numpy filelock gguf platformdirs psutil pydantic pyyaml llguidance pytest hypothesis
fi
cd "$root"
exec qemu-aarch64-static -cpu "${2:-max}" -L "$folder/root" -E PYTHONHOME="$folder/root/usr" \
    -E PYTHONPATH="$folder/site:$root" -E HIERCHAT_CACHE="$folder/hierchat" \
    "$folder/root/usr/bin/python3.11" tests/engine/cpu/on_arm.py "${@:3}"
