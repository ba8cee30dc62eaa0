use super::*;

fn address(text: &str) -> ListenAddress {
    text.parse().unwrap()
}

#[test]
fn an_address_is_written_as_it_is_read() {
    for text in [
        "127.0.0.1:50051",
        "[::1]:0",
        "localhost:50051",
        "0.0.0.0:1",
        "db-1.example.org:65535",
        "unix:/run/f.sock",
    ] {
        assert_eq!(address(text).to_string(), text);
    }
}

#[test]
fn invalid_addresses_are_refused() {
    for text in [
        "",
        "50051",
        ":1",
        "a:",
        "a:65536",
        "a b:1",
        "::1:1",
        "[::1]",
        "unix:",
        "http://a:1",
        "1.2.3.4:-1",
    ] {
        assert_eq!(text.parse::<ListenAddress>(), Err(BadAddress { text: text.into() }));
    }
}

#[test]
fn loopback_addresses_and_unix_sockets_are_local() {
    for text in ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "LOCALHOST:1", "unix:/f"] {
        assert!(address(text).is_local(), "{text}");
    }
    for text in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "localhost.example.org:1"] {
        assert!(!address(text).is_local(), "{text}");
    }
}

#[tokio::test]
async fn the_system_chooses_a_port() {
    let listener = Listener::bind(&address("127.0.0.1:0")).await.unwrap();
    let ListenAddress::Tcp { port, .. } = address(&listener.local_addr()) else {
        panic!("not TCP")
    };
    assert_ne!(port, 0);
}

#[tokio::test]
async fn a_socket_file_has_its_mode_and_is_removed_with_its_listener() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.sock");
    let listener = Listener::bind(&ListenAddress::Unix(path.clone())).await.unwrap();
    let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), UNIX_MODE);
    listener.set_unix_mode(0o600).unwrap();
    assert_eq!(mode(), 0o600);
    assert_eq!(listener.local_addr(), format!("unix:{}", path.display()));
    drop(listener);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stale_socket_file_is_replaced_and_a_live_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let listener = Listener::bind(&ListenAddress::Unix(path.clone())).await.unwrap();
    let second = Listener::bind(&ListenAddress::Unix(path.clone())).await;
    assert_eq!(second.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    assert!(path.exists());
    drop(listener);
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("precious");
    std::fs::write(&path, "data").unwrap();
    assert!(Listener::bind(&ListenAddress::Unix(path.clone())).await.is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"data");
}
