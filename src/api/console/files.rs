//! The files of the page, which the program contains.

/// One of the page's files.
#[derive(Debug)]
pub(super) struct File {
    /// Its path, such as `/style.css`.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its bytes.
    pub content: &'static [u8],
}

// The table `FILES` that `build.rs` makes of the folder `console/`, empty without the feature `console`, and `ARE_THERE`.
include!(concat!(env!("OUT_DIR"), "/console_files.rs"));

/// The file at this path.
pub(super) fn at(path: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.path == path)
}
