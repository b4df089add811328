#!/bin/sh
# Shows that the fuzzer finds a real bug: in a copy of the sources, the check that a tensor's data lies in the file is
# taken out (planted.patch), and the gguf target must fail within two minutes, starting from the seeds alone.
set -eu
cd "$(dirname "$0")"
here=$PWD
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/crates" "$copy/seeds"
cp -r ../crates/format "$copy/crates/format"
cp ../Cargo.toml ../Cargo.lock "$copy/"
# The copy is a workspace of one crate.
sed -i 's|^members = .*|members = ["crates/format"]|; /^default-members/d' "$copy/Cargo.toml"
mkdir "$copy/fuzz"
cp -r Cargo.toml Cargo.lock fuzz_targets "$copy/fuzz/"
cp corpus/gguf/seed-* "$copy/seeds/"
patch -d "$copy" -p1 < planted.patch
cd "$copy/fuzz"
export RUSTC_BOOTSTRAP=1
cargo fuzz build -s none --target-dir "${FUZZ_TARGET_DIR:-$here/target}" gguf
binary=${FUZZ_TARGET_DIR:-$here/target}/x86_64-unknown-linux-gnu/release/gguf
if nice -n 19 "$binary" -seed=1 -max_total_time=120 -max_len=4096 "-artifact_prefix=$copy/" "$copy/seeds" > "$copy/log" 2>&1; then
    echo "the planted bug was NOT found" >&2
    exit 1
fi
grep -q 'a range of the table lies in the file' "$copy/log" || { tail -20 "$copy/log" >&2; exit 1; }
echo "the planted bug was found: $(grep -c '^#' "$copy/log") log lines, $(grep -m1 'panicked' "$copy/log")"
