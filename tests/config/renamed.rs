//! Keys by their old names, which are accepted with a warning until the next release.

use crate::{fencepost, home_with, run};

const CHECK: &[&str] = &["config", "check", "--config", "f.toml"];

#[test]
fn an_old_name_of_a_key_is_accepted_with_a_warning_that_says_where_it_stands() {
    for store in ["redis", "redlock"] {
        let home = home_with(&format!(
            "[namespaces.a]\nbackend = '{store}'\n[namespaces.a.{store}]\nfirst_start = 'admit'\n"
        ));
        let checked = run(&mut fencepost(home.path(), CHECK));
        let warning = format!(
            "warning: f.toml:4:1: namespaces.a.{store}.first_start is called on_empty_store now; \
             the next release refuses the old name\n"
        );
        assert_eq!(
            (checked.code, checked.out.as_str(), checked.err),
            (Some(0), "ok\n", warning)
        );
        let shown = run(&mut fencepost(home.path(), &["config", "show", "--config", "f.toml"]));
        assert!(shown.out.contains("\non_empty_store = \"admit\"\n"), "{}", shown.out);
        assert!(!shown.out.contains("first_start"), "{}", shown.out);
    }
}

#[test]
fn an_old_name_beside_the_new_one_is_refused() {
    let home = home_with(
        "[namespaces.a]\nbackend = 'redis'\n[namespaces.a.redis]\nfirst_start = 'admit'\non_empty_store = 'admit'\n",
    );
    let checked = run(&mut fencepost(home.path(), CHECK));
    let refusal = "error: f.toml:4:1: namespaces.a.redis.first_start: must be absent beside on_empty_store, \
                   which is its new name\n";
    assert_eq!((checked.code, checked.err.as_str()), (Some(1), refusal));
}

#[test]
fn a_bad_value_of_an_old_name_is_refused_by_the_new_name() {
    let home = home_with("[namespaces.a]\nbackend = 'redis'\n[namespaces.a.redis]\nfirst_start = 'x'\n");
    let checked = run(&mut fencepost(home.path(), CHECK));
    assert_eq!(checked.code, Some(1));
    assert!(
        checked
            .err
            .contains("namespaces.a.redis.on_empty_store: must be \"admit\" or \"quarantine\", not \"x\""),
        "{}",
        checked.err
    );
}
