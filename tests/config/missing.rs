//! A store that this program was not built with.

use crate::config::{fencepost, home_with, run};

#[test]
fn a_store_that_is_not_compiled_in_is_refused_with_those_that_are() {
    let stores = [
        ("embedded", cfg!(feature = "embedded")),
        ("redis", cfg!(feature = "redis")),
        ("etcd", cfg!(feature = "etcd")),
        ("redlock", cfg!(feature = "redlock")),
        ("zookeeper", cfg!(feature = "zookeeper")),
        ("postgres", cfg!(feature = "postgres")),
        ("mysql", cfg!(feature = "mysql")),
    ];
    let name = |(name, _): &(&'static str, bool)| *name;
    let (built, missing): (Vec<_>, Vec<_>) = stores.iter().partition(|(_, is_built)| *is_built);
    let built: Vec<&str> = built.into_iter().map(name).collect();
    assert!(!missing.is_empty());
    for (missing, _) in missing {
        for table in [String::new(), format!("[namespaces.a.{missing}]\n")] {
            let home = home_with(&format!("[namespaces.a]\nbackend = '{missing}'\n{table}"));
            let checked = run(&mut fencepost(home.path(), &["config", "check", "--config", "f.toml"]));
            let built = built.join(", ");
            let expected = format!(
                "error: f.toml:2:1: namespaces.a.backend: must be a backend of this program ({built}), not \"{missing}\"\n"
            );
            assert_eq!((checked.code, checked.err), (Some(1), expected));
        }
    }
}
