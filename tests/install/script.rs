//! `install.sh`, with a release that is served on this machine.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::dist::{TARGET, VERSION, dist, output, root, takes_a_lock, text};

/// Serves the files of a folder over HTTP, each connection one file, and returns the address.
fn serve(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
            let request: Vec<_> = lines
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let path = request.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("/");
            let body = fs::read(folder.join(path.trim_start_matches('/')));
            let status = if body.is_ok() { "200 OK" } else { "404 Not Found" };
            let body = body.unwrap_or_default();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            // A client that has gone gets nothing.
            drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)));
        }
    });
    format!("http://{address}")
}

fn install(address: &str, into: &Path, version: &[&str]) -> Output {
    let mut script = Command::new("sh");
    script
        .arg(root().join("install.sh"))
        .args(version)
        .env("FENCEPOST_RELEASES", address)
        .env("FENCEPOST_INSTALL_DIR", into);
    output(&mut script)
}

/// A release with an archive and its sums, in a folder.
fn release(archive: &[u8], sums: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let of_version = folder.path().join(format!("v{VERSION}"));
    fs::create_dir(&of_version).expect("a folder");
    fs::write(of_version.join(format!("fencepost-{VERSION}-{TARGET}.tar.gz")), archive).expect("a file");
    fs::write(of_version.join("SHA256SUMS"), sums).expect("a file");
    folder
}

#[test]
fn the_script_installs_what_the_sums_name_and_refuses_anything_else() {
    let Some(dist) = dist() else { return };
    let archive = fs::read(dist.folder.join(format!("fencepost-{VERSION}-{TARGET}.tar.gz"))).expect("the archive");
    let sums = fs::read_to_string(dist.folder.join("SHA256SUMS")).expect("the sums");
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("bin/fencepost");
    let refused = |ran: &Output, reason: &str| {
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.code() == Some(1) && said.contains(reason), "{said}");
    };

    let mut altered = archive.clone();
    altered[archive.len() / 2] ^= 1;
    let release_of = |archive: &[u8], sums: &str| {
        let release = release(archive, sums);
        (serve(release.path().to_owned()), release)
    };
    let (wrong, _kept) = release_of(&altered, &sums);
    refused(&install(&wrong, folder.path(), &[]), "nothing is installed");
    let other: String = sums
        .lines()
        .filter(|line| !line.contains(".tar.gz"))
        .map(|line| format!("{line}\n"))
        .collect();
    let (unnamed, _kept_too) = release_of(&archive, &other);
    refused(&install(&unnamed, folder.path(), &[]), "SHA256SUMS has no checksum");
    assert!(!program.exists());

    let (right, _kept_as_well) = release_of(&archive, &sums);
    refused(&install(&right, folder.path(), &["9.9.9"]), "is there a release 9.9.9?");
    assert!(!program.exists());
    let ran = install(&right, folder.path(), &[]);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(
        said.contains(&format!("installed fencepost {VERSION} as {}", program.display())),
        "{said}"
    );
    assert!(folder.path().join("share/man/man1/fencepost.1").exists());
    takes_a_lock(&[text(&program)]);

    // A program that is there stays if the new one is refused.
    refused(&install(&wrong, folder.path(), &[]), "nothing is installed");
    assert!(program.exists());
}
