# The formula for Homebrew; `scripts/release formula` fills in the version and the checksums.
class Fencepost < Formula
  desc "Lock service whose leases have fencing tokens"
  homepage "https://github.com/fencepost/fencepost"
  version "@VERSION@"
  license "Apache-2.0"

  on_macos do
    on_arm do
      url "https://github.com/fencepost/fencepost/releases/download/v@VERSION@/fencepost-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@aarch64-apple-darwin@"
    end
    on_intel do
      url "https://github.com/fencepost/fencepost/releases/download/v@VERSION@/fencepost-@VERSION@-x86_64-apple-darwin.tar.gz"
      sha256 "@x86_64-apple-darwin@"
    end
  end

  on_linux do
    on_arm do
      url "https://github.com/fencepost/fencepost/releases/download/v@VERSION@/fencepost-@VERSION@-aarch64-unknown-linux-musl.tar.gz"
      sha256 "@aarch64-unknown-linux-musl@"
    end
    on_intel do
      url "https://github.com/fencepost/fencepost/releases/download/v@VERSION@/fencepost-@VERSION@-x86_64-unknown-linux-musl.tar.gz"
      sha256 "@x86_64-unknown-linux-musl@"
    end
  end

  def install
    bin.install "fencepost"
    man1.install Dir["man1/*.1"]
    bash_completion.install "completions/fencepost.bash" => "fencepost"
    zsh_completion.install "completions/fencepost.zsh" => "_fencepost"
    fish_completion.install "completions/fencepost.fish"
  end

  service do
    run [opt_bin/"fencepost", "serve", "--data-dir", var/"fencepost"]
    keep_alive true
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/fencepost --version")
  end
end
