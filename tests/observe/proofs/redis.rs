//! A Redis whose users and certificates change.

use common::ports::free_port;

use super::{APPLIED, FAILED, Kept, fails, file, grants, replace, served, serves};
use crate::observe::certificates::Certificates;
use crate::observe::fixture::eventually;
use crate::observe::redis_servers::{RedisServer, Sentinels, available};

/// Lets a user log in with one more password.
pub fn admit(server: &RedisServer, password: &str) {
    let password = format!(">{password}");
    let rule = ["ACL", "SETUSER", "locks", "on", &password, "~*", "&*", "+@all"];
    assert_eq!(server.cli(&rule), "OK");
}

/// Lets nobody log in with a password any more.
pub fn bar(server: &RedisServer, password: &str) {
    let rule = ["ACL", "SETUSER", "locks", &format!("<{password}")];
    assert_eq!(server.cli(&rule), "OK");
}

/// Cuts all connections of the user, at least one.
pub fn cut(server: &RedisServer) {
    let killed: u32 = server
        .cli(&["CLIENT", "KILL", "USER", "locks"])
        .parse()
        .expect("a count");
    assert!(killed > 0);
}

/// How often somebody was refused at the login.
pub fn refused(server: &RedisServer) -> u64 {
    let log = server.cli(&["ACL", "LOG", "128"]);
    log.lines().filter(|line| line.trim() == "auth").count() as u64
}

/// Cuts all connections, at least one.
fn cut_all(server: &RedisServer) {
    let killed = server.cli(&["CLIENT", "KILL", "SKIPME", "yes"]);
    assert!(killed.parse::<u32>().expect("a count") > 0);
}

fn by_password(server: &RedisServer, password: &std::path::Path) -> String {
    let url = server.url();
    format!(
        "backend = 'redis'\nredis.urls = ['{url}']\nredis.on_empty_store = 'admit'\nredis.user = 'locks'\n\
         redis.password_file = {password:?}\n"
    )
}

// G64a
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_is_used_for_each_new_connection_and_no_lease_is_lost() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    admit(&server, "first");
    let folder = tempfile::tempdir().expect("a directory");
    let password = file(&folder, "password", "first\n");
    let fixture = served(&by_password(&server, &password)).await;
    let kept = Kept::begin(&fixture).await;

    admit(&server, "second");
    replace(&password, "second\n");
    fixture.shows(APPLIED, &[], 1.0).await;
    bar(&server, "first");
    kept.goes_on().await;
    assert_eq!(kept.failed(), 0, "open connections go on");

    cut(&server);
    serves(&fixture).await;
    kept.goes_on().await;
    assert_eq!(refused(&server), 0, "the old password is not tried");
    kept.end().await;
    assert!(!fixture.server.said("second"), "the log tells a password");
}

// G64c
#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_cannot_be_read_leaves_the_one_before_in_use_and_shows() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    admit(&server, "first");
    let folder = tempfile::tempdir().expect("a directory");
    let password = file(&folder, "password", "first\n");
    let mut fixture = served(&by_password(&server, &password)).await;
    let kept = Kept::begin(&fixture).await;
    for bad in [None, Some("\n")] {
        match bad {
            None => std::fs::remove_file(&password).expect("it is there"),
            Some(text) => replace(&password, text),
        }
        fixture.shows(FAILED, &[], 1.0).await;
        cut(&server);
        serves(&fixture).await;
        kept.goes_on().await;
        replace(&password, "first\n");
        fixture.shows(FAILED, &[], 0.0).await;
    }
    let told = "namespace far: its Redis: password_file";
    assert!(fixture.server.said(told), "the log does not tell of the file");
    kept.end().await;

    // It keeps nobody from taking the namespace out.
    std::fs::remove_file(&password).expect("it is there");
    fixture.shows(FAILED, &[], 1.0).await;
    fixture.configure("[namespaces.near]\nembedded.path = ':memory:'\n");
    fixture.shows(FAILED, &[], 0.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_is_used_also_while_the_configuration_is_refused() {
    common::skip_unless!(available());
    let server = RedisServer::start(&[]);
    admit(&server, "first");
    let folder = tempfile::tempdir().expect("a directory");
    let password = file(&folder, "password", "first\n");
    let mut fixture = served(&by_password(&server, &password)).await;
    fixture.configure("no toml");
    fixture.shows(FAILED, &[], 1.0).await;

    admit(&server, "second");
    replace(&password, "second\n");
    bar(&server, "first");
    cut(&server);
    grants(&fixture).await;
    fixture.shows(FAILED, &[], 1.0).await;
}

// G64a
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_for_the_sentinels_is_used_to_follow_a_failover() {
    common::skip_unless!(available());
    let servers = Sentinels::start();
    servers.servers.iter().for_each(|server| admit(server, "one"));
    let sentinels = servers.addresses();
    let at_all = |rule: &[&str]| {
        for address in &sentinels {
            let port = address.rsplit_once(':').expect("a port").1;
            let set = std::process::Command::new("redis-cli")
                .args(["-p", port])
                .args(rule)
                .output();
            let set = set.expect("redis-cli runs");
            assert_eq!(String::from_utf8_lossy(&set.stdout).trim(), "OK");
        }
    };
    at_all(&["ACL", "SETUSER", "watcher", "on", ">first", "&*", "+@all"]);
    let folder = tempfile::tempdir().expect("a directory");
    let (password, own) = (file(&folder, "sentinels", "first"), file(&folder, "password", "one"));
    let urls: Vec<String> = sentinels.iter().map(|address| format!("'redis://{address}'")).collect();
    let store = format!(
        "backend = 'redis'\nredis.urls = [{}]\nredis.mode = 'sentinel'\nredis.master = 'mymaster'\n\
         redis.on_empty_store = 'admit'\nredis.user = 'locks'\nredis.password_file = {own:?}\n\
         redis.sentinel_user = 'watcher'\nredis.sentinel_password_file = {password:?}\n",
        urls.join(", ")
    );
    let fixture = served(&store).await;

    at_all(&["ACL", "SETUSER", "watcher", ">second"]);
    replace(&password, "second");
    fixture.shows(APPLIED, &[], 1.0).await;
    at_all(&["ACL", "SETUSER", "watcher", "<first"]);
    let successor = servers.fail_over();
    let successor = servers.servers.iter().find(|server| server.port() == successor);
    let successor = successor.expect("one of the two");
    eventually("it follows", || {
        successor.cli(&["CLIENT", "LIST"]).contains("user=locks")
    })
    .await;
    grants(&fixture).await;
}

/// A server that keeps what it was told, and asks for certificates, over a restart.
fn encrypted(folder: &tempfile::TempDir) -> (RedisServer, Certificates, String) {
    let (files, port) = (Certificates::write(folder.path()), free_port());
    let mut options = files.options(port);
    let more = [
        "--tls-auth-clients",
        "yes",
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
    ];
    options.extend(more.map(str::to_owned));
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let server = RedisServer::start(&options);
    let store = format!(
        "backend = 'redis'\nredis.urls = ['rediss://127.0.0.1:{port}']\nredis.on_empty_store = 'admit'\n\
         redis.ca_file = {:?}\nredis.cert_file = {:?}\nredis.key_file = {:?}\n",
        files.ca, files.certificate, files.key
    );
    (server, files, store)
}

// G64b
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_back_under_another_authority_is_reached_with_the_new_certificates() {
    common::skip_unless!(available());
    let folder = tempfile::tempdir().expect("a directory");
    let (mut server, _, store) = encrypted(&folder);
    let fixture = served(&store).await;
    let kept = Kept::begin(&fixture).await;

    server.kill9();
    fails(&fixture).await;
    // The authority, the certificate and the key, one after another.
    Certificates::write(folder.path());
    server.restart();
    serves(&fixture).await;
    kept.goes_on().await;
    kept.end().await;
    fixture.shows(FAILED, &[], 0.0).await;
}

// G64c
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_without_its_key_leaves_the_pair_before_in_use_and_shows() {
    common::skip_unless!(available());
    let folder = tempfile::tempdir().expect("a directory");
    let (server, files, store) = encrypted(&folder);
    let fixture = served(&store).await;
    let kept = Kept::begin(&fixture).await;

    let (certificate, key) = files.renewed();
    replace(&files.certificate, certificate);
    fixture.shows(FAILED, &[], 1.0).await;
    cut_all(&server);
    serves(&fixture).await;
    kept.goes_on().await;

    replace(&files.key, key);
    fixture.shows(FAILED, &[], 0.0).await;
    cut_all(&server);
    serves(&fixture).await;
    kept.goes_on().await;
    kept.end().await;
    let told = "namespace far: its Redis: cert_file: ";
    assert!(fixture.server.said(told), "the log does not tell of the files");
}
