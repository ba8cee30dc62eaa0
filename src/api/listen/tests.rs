use super::*;

fn address(text: &str) -> ListenAddress {
    text.parse().unwrap()
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
