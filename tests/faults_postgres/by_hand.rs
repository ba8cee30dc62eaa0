//! Tables that a database administrator makes by the documentation.

use fencepost::backend::postgres::settings::Settings;

use crate::harness::{applied, first, records, settings};
use crate::servers::{Postgres, available};
use crate::tables::is_refused;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_made_by_hand_are_used_with_the_least_rights() {
    common::skip_unless!(available());
    let server = Postgres::started(&[]);
    let by_hand = Settings {
        create_tables: false,
        schema: "locks".into(),
        ..settings(&server)
    };
    is_refused(by_hand.clone(), "create_tables is false").await;
    let page = include_str!("../../docs/postgres.md");
    let tables = page
        .split("```sql\n")
        .find(|block| block.contains("CREATE TABLE"))
        .expect("the tables");
    let tables = tables.split("```").next().expect("its end");
    server.sql(&format!("CREATE SCHEMA locks; SET search_path = locks; {tables}"));
    let records = records(by_hand).await;
    applied(records.commit(first("a")).await);
    let owners = "SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'locks'";
    assert_eq!(server.sql(owners), "postgres");
    // The page shows what the server would create.
    let columns = |schema: &str| {
        server.sql(&format!(
            "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns \
             WHERE table_schema = '{schema}' ORDER BY 1, ordinal_position"
        ))
    };
    let options = |schema: &str| {
        server.sql(&format!(
            "SELECT c.relname, c.reloptions FROM pg_class c WHERE relnamespace = '{schema}'::regnamespace ORDER BY 1"
        ))
    };
    let created = crate::harness::records(settings(&server)).await;
    applied(created.commit(first("a")).await);
    assert_eq!(columns("locks"), columns("public"));
    assert_eq!(options("locks"), options("public"));
}
