use super::*;

fn headers(id: &str) -> HeaderMap {
    HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_str(id).unwrap())])
}

#[test]
fn a_callers_id_is_accepted_if_it_is_short_and_plain() {
    let name = CallName::given(&headers("trace-1/2")).unwrap();
    assert_eq!(name.to_string(), "trace-1/2");
    for bad in ["", "a b", "a\"b", "a\tb", &"x".repeat(MAX_ID_BYTES + 1)] {
        assert_eq!(CallName::given(&headers(bad)), None, "{bad:?}");
    }
}

#[test]
fn generated_ids_differ() {
    let log = RequestLog::new();
    let (first, second) = (log.name(&HeaderMap::new()), log.name(&HeaderMap::new()));
    assert_ne!(first, second);
    assert!(HeaderValue::try_from(first.to_string()).is_ok());
}

#[test]
fn quoted_text_is_truncated_to_the_longest_name() {
    assert_eq!(truncated("a"), "a");
    assert_eq!(truncated(&"x".repeat(513)).len(), 512);
    assert_eq!(truncated(&"\u{fc}".repeat(300)).len(), 512);
    assert_eq!(truncated(&format!("x{}", "\u{fc}".repeat(300))).len(), 511);
}
