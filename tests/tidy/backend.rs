//! The backend around each backend.

use std::collections::BTreeSet;

use crate::source::{read, tokens};

/// The functions of the first block whose head has this text.
fn functions(path: &str, head: &str) -> BTreeSet<String> {
    let text = read(path);
    let block = text.split_once(head).unwrap_or_else(|| panic!("{path}: {head}")).1;
    let block = block.split_once("\n}\n").expect("its end").0.to_owned();
    let tokens = tokens(&block);
    let pairs = tokens.windows(2).filter(|pair| pair[0].text == "fn");
    pairs.map(|pair| pair[1].text.to_owned()).collect()
}

#[test]
fn what_is_measured_passes_every_function_of_a_backend_on() {
    let all = functions("core/src/backend.rs", "pub trait Backend:");
    assert!(all.len() > 10, "{all:?}");
    assert_eq!(functions("core/src/measured.rs", "impl Backend for Measured {"), all);
}
