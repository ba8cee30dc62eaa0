//! Generates the servers of `api::proto` and the table of methods from `proto/`, without an outside protoc, keeps the
//! descriptors for the reflection service, and makes the table of the console's files.

use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = [
        "fencepost/v1/lock.proto",
        "fencepost/v1/election.proto",
        "fencepost/v1/admin.proto",
    ];
    let descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    let (mut services, mut methods, mut paths) = (String::new(), String::new(), String::new());
    for file in descriptors
        .file
        .iter()
        .filter(|file| file.package().starts_with("fencepost."))
    {
        for service in &file.service {
            let service_name = format!("{}.{}", file.package(), service.name());
            writeln!(services, "{service_name:?},")?;
            for method in &service.method {
                let (name, streams) = (method.name(), method.server_streaming());
                let takes_stream = method.client_streaming();
                let path = format!("/{service_name}/{name}");
                writeln!(
                    methods,
                    "Method {{ path: {path:?}, name: {name:?}, streams: {streams}, takes_stream: {takes_stream} }},"
                )?;
                writeln!(paths, "/// `{name}`.\npub const {}: &str = {path:?};", constant(name))?;
            }
        }
    }
    let tables = format!(
        "/// The services.\npub const SERVICES: &[&str] = &[{services}];\n\
         /// Their methods.\npub const METHODS: &[Method] = &[{methods}];\n\
         /// The paths of the methods.\npub mod path {{\n{paths}}}\n"
    );
    fs::write(out.join("methods.rs"), tables)?;
    fs::write(out.join("console_files.rs"), console_files()?)?;
    // The messages are those of the client, so that both are the same types.
    tonic_prost_build::configure()
        .build_client(false)
        .extern_path(".fencepost.v1", "::fencepost_client::proto")
        .compile_fds(descriptors)?;
    Ok(())
}

/// `GetLock` as `GET_LOCK`.
fn constant(name: &str) -> String {
    let mut constant = String::new();
    for (at, c) in name.char_indices() {
        if at > 0 && c.is_uppercase() {
            constant.push('_');
        }
        constant.extend(c.to_uppercase());
    }
    constant
}

/// The table of the files in `console/`; empty without the feature `console`.
fn console_files() -> Result<String, Box<dyn Error>> {
    println!("cargo:rerun-if-changed=console");
    let mut files = Vec::new();
    if env::var_os("CARGO_FEATURE_CONSOLE").is_some() {
        for entry in fs::read_dir("console")? {
            files.push(entry?.path());
        }
    }
    files.sort();
    let mut table = String::new();
    for file in files {
        let name = file
            .file_name()
            .and_then(|name| name.to_str())
            .ok_or("a file name is not UTF-8")?;
        let content_type = match name.rsplit_once('.') {
            Some((_, "html")) => "text/html; charset=utf-8",
            Some((_, "css")) => "text/css; charset=utf-8",
            Some((_, "js")) => "text/javascript; charset=utf-8",
            Some((_, "svg")) => "image/svg+xml",
            _ => return Err(format!("console/{name} has no known type").into()),
        };
        let path = if name == "index.html" {
            "/".to_owned()
        } else {
            format!("/{name}")
        };
        // The compiler finds the folder, because a checkout that was moved keeps this table.
        let content = format!(
            "include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {:?}))",
            format!("/console/{name}")
        );
        writeln!(
            table,
            "File {{ path: {path:?}, content_type: {content_type:?}, content: {content} }},"
        )?;
    }
    let is_there = !table.is_empty();
    Ok(format!(
        "/// The files.\npub(super) const FILES: &[File] = &[{table}];\n\
         /// Whether there are any.\npub(super) const ARE_THERE: bool = {is_there};\n"
    ))
}
