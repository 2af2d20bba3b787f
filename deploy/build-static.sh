#!/bin/sh
# Builds a static agent for one platform: deploy/build-static.sh amd64|arm64 FILE
# PROFILE=dev builds it for debugging. The eBPF object must be there: cargo xtask build-ebpf.
set -eu

[ $# -eq 2 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
case $1 in
amd64) machine=x86_64 ;;
arm64) machine=aarch64 ;;
*) echo "$0: no such platform: $1 (amd64 or arm64)" >&2; exit 2 ;;
esac
out=$2 target=$machine-unknown-linux-musl profile=${PROFILE:-release}
variable=$(echo "$target" | tr '-' '_')

# A C compiler for what is written in C, which is freestanding; musl's own where this is the machine.
if [ "$(uname -m)" = "$machine" ]; then
    compiler=musl-gcc
else
    compiler=$machine-linux-gnu-gcc
fi
command -v "$compiler" > /dev/null || { echo "$0: $compiler is missing" >&2; exit 1; }
export "CC_$variable=$compiler"
# Rust's own linker and C library are enough for either.
export "CARGO_TARGET_$(echo "$variable" | tr '[:lower:]' '[:upper:]')_LINKER=rust-lld"

cd "$(dirname "$0")/.."
if command -v rustup > /dev/null; then
    rustup target add "$target"
fi
cargo build --locked --package proxy-userspace --bin shunt --profile "$profile" --target "$target"
[ "$profile" = dev ] && folder=debug || folder=$profile
mkdir -p "$(dirname "$out")"
cp "${CARGO_TARGET_DIR:-target}/$target/$folder/shunt" "$out"
