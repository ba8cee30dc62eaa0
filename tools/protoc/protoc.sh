#!/bin/sh
# Stands in for protoc in the build scripts of dependencies: builds itself on its first use, in a
# target directory of its own, for that of the calling cargo is locked meanwhile.
set -eu
here=$(dirname "$0")
# What the calling cargo has set for its own build is not meant for this one.
unset CARGO_ENCODED_RUSTFLAGS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER CARGO_BUILD_TARGET CARGO_TARGET_DIR
exec "${CARGO:-cargo}" run --quiet --locked --manifest-path "$here/Cargo.toml" \
    --target-dir "$here/../../target/protoc" -- "$@"
