//! `fencepost bench` beside this one, on the same servers: both must tell the same.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::options::Plan;
use crate::report::{Bound, Compared, Report, Row};
use crate::{Failure, Subject, Subjects, pairs};

/// How near its ratios have to come to those of this bench.
const NEAR: f64 = 0.85;

/// Measures pairs with both, in turn, and compares what part of an echo each sees.
pub async fn measure(plan: &Plan, subjects: &Subjects, program: &Path, report: &mut Report) -> Result<(), Failure> {
    let (mut own, mut told, mut rates, mut cpu) = (vec![], vec![], vec![], vec![]);
    for _ in 0..plan.rounds {
        let echo = pairs::load(&subjects.echo, plan.slice).await?;
        own.push(pairs::load(&subjects.memory, plan.slice).await?.rate() / echo.rate());
        let figures = figures(&subjects.memory, plan, program)?;
        told.push(number(&figures["limit"]["ratio"])?);
        rates.push(number(&figures["rate"])?);
        cpu.push(number(&figures["server_cpu_us"])?);
    }
    let near = crate::stats::ratios(told.into_iter(), own.into_iter());
    let row = Row::new("memory by `fencepost bench`", crate::stats::median(rates), "pairs/s");
    let compared = Compared::new("of the ratio seen here", near, Bound::AtLeast(NEAR));
    report.add(row.cpu(crate::stats::median(cpu)).compared(compared));
    Ok(())
}

/// What the program says of one server and of its own echo.
fn figures(subject: &Subject, plan: &Plan, program: &Path) -> Result<Value, Failure> {
    let time = format!("{}ms", (plan.slice * 2).as_millis());
    let output = Command::new(program)
        .args(["bench", "uncontended", "limit", "--output", "json", "--time", &time])
        .args(["--namespace", subject.namespace, "--addr", subject.process.address()])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let report: Value = serde_json::from_slice(&output.stdout)?;
    Ok(report["figures"][0].clone())
}

fn number(value: &Value) -> Result<f64, Failure> {
    Ok(value.as_f64().ok_or("a figure is missing")?)
}
