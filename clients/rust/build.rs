//! Generates the messages and the clients of `proto/`, without an outside protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/fencepost/v1");
    let files = [
        "fencepost/v1/lock.proto",
        "fencepost/v1/election.proto",
        "fencepost/v1/admin.proto",
    ];
    let mut messages = tonic_prost_build::Config::new();
    messages.enable_type_names();
    tonic_prost_build::configure()
        .build_server(false)
        .btree_map(".")
        .compile_fds_with_config(protox::compile(files, ["proto"])?, messages)?;
    Ok(())
}
