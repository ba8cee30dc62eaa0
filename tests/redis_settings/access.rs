//! How servers are reached: TLS, users, databases, sockets, sentinels.

use std::fs;

use crate::redis_settings::certificates::Certificates;
use crate::redis_settings::program::{Program, refusal};
use crate::redis_settings::servers::{RedisServer, Sentinels, available};
use common::ports::free_port;

/// What the user of a service needs, and no more.
pub const RIGHTS: &[&str] = &[
    "~fencepost:*",
    "&fencepost:*",
    "-@all",
    "+@read",
    "+@write",
    "+@pubsub",
    "+@scripting",
    "+@connection",
    "+time",
    "-@dangerous",
    "+info",
];

pub fn with_user(server: &RedisServer, user: &str, password: &str, rights: &[&str]) {
    let password = format!(">{password}");
    let mut rule = vec!["ACL", "SETUSER", user, "on", &password];
    rule.extend(rights);
    assert_eq!(server.cli(&rule), "OK");
}

/// A server that speaks TLS to whom it pleases.
fn encrypted(clients: &str) -> (RedisServer, u16, Certificates, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let (certificates, port) = (Certificates::write(folder.path()), free_port());
    let mut options = certificates.options(port);
    options.extend(["--tls-auth-clients".to_owned(), clients.to_owned()]);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    (RedisServer::start(&options), port, certificates, folder)
}

#[tokio::test]
async fn an_encrypted_server_is_trusted_by_its_authority_alone() {
    common::skip_unless!(available());
    let (_server, port, files, _folder) = encrypted("no");
    let url = format!("urls = ['rediss://127.0.0.1:{port}']");
    let with_ca = format!("{url}\nca_file = {:?}", files.ca);
    Program::start(&with_ca, &[]).serves().await;
    Program::start(&url, &[]).refuses("certificate").await;
    let other = tempfile::tempdir().unwrap();
    let stranger = format!("{url}\nca_file = {:?}", Certificates::write(other.path()).ca);
    Program::start(&stranger, &[]).refuses("certificate").await;
}

#[tokio::test]
async fn a_certificate_is_shown_to_a_server_that_asks() {
    common::skip_unless!(available());
    let (_server, port, files, _folder) = encrypted("yes");
    let bare = format!("urls = ['rediss://127.0.0.1:{port}']\nca_file = {:?}", files.ca);
    let shown = format!(
        "{bare}\ncert_file = {:?}\nkey_file = {:?}",
        files.certificate, files.key
    );
    Program::start(&shown, &[]).serves().await;
    Program::start(&bare, &[]).refuses("ertificate").await;
}

#[tokio::test]
async fn a_user_logs_in_with_a_password_from_a_file_or_the_environment() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let told = include_str!("../../docs/redis.md");
    assert!(told.contains(&RIGHTS.join(" ")), "docs/redis.md lists other rights");
    with_user(&server, "locks", "right", RIGHTS);
    assert_eq!(server.cli(&["ACL", "SETUSER", "default", "off"]), "OK");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let (right, wrong) = (file("right", "right\n"), file("wrong", "wrong\n"));
    let user = format!("urls = ['{}']\nuser = 'locks'", server.url());
    Program::start(&format!("{user}\npassword_file = {right:?}"), &[])
        .serves()
        .await;
    let refused = Program::start(&format!("{user}\npassword_file = {wrong:?}"), &[]);
    refused.refuses("WRONGPASS").await;
    let by_variable = format!("{user}\npassword_env = 'REDIS_PASSWORD'");
    let variable = |value| [("REDIS_PASSWORD", value)];
    Program::start(&by_variable, &variable("wrong"))
        .refuses("WRONGPASS")
        .await;
    Program::start(&by_variable, &variable("right")).serves().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_channels_makes_no_storm_of_connections() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    let rights: Vec<&str> = RIGHTS.iter().copied().filter(|right| !right.starts_with('&')).collect();
    with_user(&server, "locks", "right", &rights);
    let url = server.url().replace("redis://", "redis://locks:right@");
    let _store = fencepost::backend::redis::Store::open(crate::redis_settings::harness::standalone(&url)).unwrap();
    let connections = || server.info("stats", "total_connections_received");
    let (before, began) = (connections(), std::time::Instant::now());
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    // Ours asks over one of its own; the rest are handshakes, one to four a second in the end.
    let (made, seconds) = (connections() - before, began.elapsed().as_secs() + 1);
    assert!(made <= 8 + 6 * seconds, "{made} in {seconds} s");
}

#[tokio::test]
async fn all_keys_lie_in_the_database_that_is_named() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    Program::start(&format!("urls = ['{}']\ndatabase = 3", server.url()), &[])
        .serves()
        .await;
    assert_eq!(server.cli(&["-n", "0", "DBSIZE"]), "0");
    assert_eq!(server.cli(&["-n", "3", "EXISTS", "fencepost:default:l:a"]), "1");
}

#[tokio::test]
async fn a_server_is_reached_through_a_socket() {
    common::skip_unless!(available());
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let server = RedisServer::start(&["--unixsocket", socket.to_str().unwrap()]);
    Program::start(&format!("urls = ['unix://{}']", socket.display()), &[])
        .serves()
        .await;
    assert_eq!(server.cli(&["EXISTS", "fencepost:default:l:a"]), "1");
}

#[tokio::test]
async fn sentinels_have_a_login_of_their_own() {
    common::skip_unless!(available());
    let servers = Sentinels::start();
    for server in &servers.servers {
        with_user(server, "locks", "one", RIGHTS);
    }
    let mut urls = Vec::new();
    for address in servers.addresses() {
        let port = address.rsplit_once(':').unwrap().1;
        let rule = ["-p", port, "ACL", "SETUSER", "watcher", "on", ">two", "&*", "+@all"];
        let set = std::process::Command::new("redis-cli").args(rule).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&set.stdout).trim(), "OK");
        urls.push(format!("'redis://{address}'"));
    }
    let keys = |passwords: [&str; 2]| {
        let keys = format!(
            "urls = [{}]\nmode = 'sentinel'\nmaster = 'mymaster'\nuser = 'locks'\npassword_env = 'ONE'\n\
             sentinel_user = 'watcher'\nsentinel_password_env = 'TWO'",
            urls.join(", ")
        );
        Program::start(&keys, &[("ONE", passwords[0]), ("TWO", passwords[1])])
    };
    keys(["one", "two"]).serves().await;
    keys(["one", "wrong"]).refuses("WRONGPASS").await;
    keys(["wrong", "two"]).refuses("WRONGPASS").await;
    let clients = servers.servers[0].cli(&["CLIENT", "LIST"]);
    assert!(!clients.contains("user=watcher"), "{clients}");
}

#[test]
fn a_missing_file_or_variable_is_named_with_its_key() {
    let file = refusal("password_file = '/nowhere/password'");
    assert!(
        file.contains("password_file: cannot read \"/nowhere/password\": No such file"),
        "{file}"
    );
    let variable = refusal("password_env = 'NOT_SET'");
    assert!(
        variable.contains("password_env: the variable \"NOT_SET\": "),
        "{variable}"
    );
    let url = "urls = ['rediss://127.0.0.1:1']";
    let ca = refusal(&format!("{url}\nca_file = '/nowhere/ca'"));
    assert!(
        ca.contains("ca_file: cannot read \"/nowhere/ca\": No such file"),
        "{ca}"
    );
}
