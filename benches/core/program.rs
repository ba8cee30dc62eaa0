//! `fencepost bench` beside this one, on the same servers: both must tell the same.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::options::Plan;
use crate::report::{Bound, Compared, Report, Row};
use crate::{Failure, Subject, Subjects, pairs};

/// How near its rates have to come to those of this bench.
const NEAR: f64 = 0.85;

/// Measures pairs with both, in turn, and compares their rates.
pub async fn measure(plan: &Plan, subjects: &Subjects, program: &Path, report: &mut Report) -> Result<(), Failure> {
    let (mut own, mut told) = (vec![], vec![]);
    for _ in 0..plan.rounds {
        own.push(pairs::load(&subjects.memory, plan.slice).await?.rate());
        told.push(rate(&subjects.memory, plan, program)?);
    }
    let near = crate::stats::ratios(told.iter().copied(), own.into_iter());
    let row = Row::new("memory by `fencepost bench`", crate::stats::median(told), "pairs/s");
    let compared = Compared::new("of the rate seen here", near, Bound::AtLeast(NEAR));
    report.add(row.compared(compared));
    Ok(())
}

/// The rate that the program says of one server.
fn rate(subject: &Subject, plan: &Plan, program: &Path) -> Result<f64, Failure> {
    let time = format!("{}ms", plan.slice.as_millis());
    let output = Command::new(program)
        .args(["bench", "uncontended", "--output", "json", "--time", &time])
        .args(["--namespace", subject.namespace, "--addr", subject.process.address()])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let report: Value = serde_json::from_slice(&output.stdout)?;
    Ok(report["figures"][0]["rate"].as_f64().ok_or("the rate is missing")?)
}
