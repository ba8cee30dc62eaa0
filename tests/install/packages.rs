//! The packages of Debian and Red Hat, in a fresh root directory: this machine's, under a layer that takes all writes.

use std::path::Path;
use std::process::Command;

use crate::dist::{dist, has, root, succeeds, text};

/// Installs a package there, takes a first lock with its program, and removes it again.
const SCRIPT: &str = r#"
set -eu
layer=$(mktemp -d)
mount -t tmpfs tmpfs "$layer"
root=$layer/root
mkdir "$layer/upper" "$layer/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$layer/upper,workdir=$layer/work" overlay "$root"
for folder in dev proc tmp; do mount --rbind "/$folder" "$root/$folder"; done
test ! -e "$root/usr/bin/fencepost"
cp "$1" "$root/package"
chroot "$root" sh -c "$2"
"$4" chroot "$root" /usr/bin/fencepost
chroot "$root" fencepost config check --config /etc/fencepost/fencepost.toml
test "$(stat -c %a "$root/etc/fencepost/credentials")" = 700
chroot "$root" systemd-analyze verify --man=no fencepost.service 2>&1
chroot "$root" systemd-analyze security --offline=true --threshold=15 fencepost.service
chroot "$root" sh -c "$3"
test ! -e "$root/usr/bin/fencepost"
test ! -e "$root/usr/lib/systemd/system/fencepost.service"
"#;

fn installs(package: &Path, install: &str, remove: &str) {
    let is_root = succeeds(Command::new("id").arg("-u")).trim() == "0";
    assert!(is_root || std::env::var_os("CI").is_none(), "a fresh root needs root");
    if !is_root {
        eprintln!("passed without a run: only root can make a fresh root directory");
        return;
    }
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "sh", "-c", SCRIPT, "sh", text(package), install, remove]);
    let said = succeeds(inside.arg(root().join("scripts/first-lock")));
    assert!(said.contains("\"owner\":\"me\"") && said.contains("released"), "{said}");
}

#[test]
fn the_deb_installs_in_a_fresh_root_and_its_program_takes_a_lock() {
    let (Some(dist), true) = (dist(), has("systemd-analyze")) else {
        return;
    };
    installs(
        &dist.file("fencepost_", ".deb"),
        "dpkg --no-triggers --install /package && dpkg --verify fencepost",
        "dpkg --no-triggers --purge fencepost",
    );
}

#[test]
fn the_rpm_installs_in_a_fresh_root_and_its_program_takes_a_lock() {
    let (Some(dist), true) = (dist(), has("systemd-analyze") && has("rpm")) else {
        return;
    };
    // Debian's rpm knows none of the files that Debian's packages installed, such as the shell.
    installs(
        &dist.file("fencepost-", ".rpm"),
        "rpm --install --nodeps /package && rpm --verify --nodeps fencepost",
        "rpm --erase --nodeps fencepost",
    );
}
