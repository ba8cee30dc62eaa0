#!/bin/sh
# Installs the program fencepost on Linux or macOS: fetches the archive of a release, checks it against the release's
# SHA256SUMS, and copies the program, its manual pages and completions.
#
#   sh install.sh [VERSION]
#
# FENCEPOST_INSTALL_DIR   the folder that gets bin and share; default: /usr/local for root, else ~/.local
# FENCEPOST_RELEASES      where the releases are: a mirror's address
#
# Nothing is published before the first release; the script then says that there is no such release.
set -eu
version=${1:-0.1.0}
releases=${FENCEPOST_RELEASES:-https://github.com/fencepost/fencepost/releases/download}

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

case $(uname -s) in
    Linux) system=unknown-linux-musl ;;
    Darwin) system=apple-darwin ;;
    *) fail "there is no program for $(uname -s): build it from the source" ;;
esac
case $(uname -m) in
    x86_64 | amd64) machine=x86_64 ;;
    aarch64 | arm64) machine=aarch64 ;;
    *) fail "there is no program for $(uname -m): build it from the source" ;;
esac
name=fencepost-$version-$machine-$system
if [ "$(id -u)" = 0 ]; then default=/usr/local; else default=$HOME/.local; fi
folder=${FENCEPOST_INSTALL_DIR:-$default}

if command -v curl >/dev/null; then
    fetch() { curl --fail --silent --show-error --location --retry 3 --output "$2" "$1"; }
elif command -v wget >/dev/null; then
    fetch() { wget --quiet --output-document="$2" "$1"; }
else
    fail "curl or wget is needed"
fi
if command -v sha256sum >/dev/null; then
    check() { sha256sum --check --status; }
elif command -v shasum >/dev/null; then
    check() { shasum --algorithm 256 --check --status; }
else
    fail "sha256sum or shasum is needed"
fi

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
trap 'exit 1' HUP INT TERM
cd "$temporary"
for file in SHA256SUMS "$name.tar.gz"; do
    fetch "$releases/v$version/$file" "$file" || fail "$releases/v$version/$file cannot be fetched: is there a release $version?"
done
# The line of this archive alone: the other files are not here.
grep "^[0-9a-f]\{64\}  $name\.tar\.gz\$" SHA256SUMS >sum || fail "SHA256SUMS has no checksum of $name.tar.gz"
check <sum || fail "the checksum of $name.tar.gz is not that of SHA256SUMS: nothing is installed"

tar -xzf "$name.tar.gz"
"$name/fencepost" --version >/dev/null || fail "the program does not run here"
mkdir -p "$folder/bin" "$folder/share/man/man1" "$folder/share/bash-completion/completions" \
    "$folder/share/zsh/site-functions" "$folder/share/fish/vendor_completions.d"
# A program that runs keeps its file, because the new one gets its name in one step.
cp "$name/fencepost" "$folder/bin/.fencepost.new"
mv "$folder/bin/.fencepost.new" "$folder/bin/fencepost"
cp "$name"/man1/*.1 "$folder/share/man/man1"
cp "$name/completions/fencepost.bash" "$folder/share/bash-completion/completions/fencepost"
cp "$name/completions/fencepost.zsh" "$folder/share/zsh/site-functions/_fencepost"
cp "$name/completions/fencepost.fish" "$folder/share/fish/vendor_completions.d/fencepost.fish"
echo "installed $("$folder/bin/fencepost" --version) as $folder/bin/fencepost"
case :$PATH: in
    *":$folder/bin:"*) ;;
    *) echo "$folder/bin is not on the PATH" ;;
esac
