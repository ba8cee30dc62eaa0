//! What build scripts need of protoc, by protox: `protoc [-I path]... -o out file...` writes the
//! descriptors of the files and of all that they import.

use std::env;
use std::error::Error;
use std::fs;

fn main() -> Result<(), Box<dyn Error>> {
    let (mut includes, mut files, mut out) = (Vec::new(), Vec::new(), None);
    let mut arguments = env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-I" | "--proto_path" => includes.extend(arguments.next()),
            "-o" | "--descriptor_set_out" => out = arguments.next(),
            "--version" => println!("libprotoc 31.1"),
            // Imports and comments are always written; proto3's optional needs no permission.
            flag if flag.starts_with("--") => {}
            file => files.push(file.to_owned()),
        }
    }
    if let Some(out) = out {
        let descriptors = protox::Compiler::new(includes)?
            .include_imports(true)
            .include_source_info(true)
            .open_files(files)?
            .encode_file_descriptor_set();
        fs::write(out, descriptors)?;
    }
    Ok(())
}
