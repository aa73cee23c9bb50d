//! The report as one page that needs nothing else: no script, no network.

use std::fmt::Write;

use anyhow::Result;

use crate::report::charts::{Bars, arms_of, bars, by_case, colour_of, latency};
use crate::report::schema::{Report, Run};
use crate::report::table;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;\
    padding:0 1em;color:#222}pre{overflow-x:auto;font-size:12px;line-height:1.35;padding:1em;\
    background:#f6f6f6}figure{display:inline-block;margin:.3em}h2{margin-top:1.6em}\
    .key{margin-right:1.2em}.key i{display:inline-block;width:.8em;height:.8em;\
    margin-right:.4em}svg{max-width:100%}";

/// The page.
///
/// # Errors
/// When a plot cannot be drawn.
pub fn html(report: &Report) -> Result<String> {
    let cases = by_case(&report.runs);
    let mut body = String::new();
    if !cases.is_empty() {
        body.push_str("<h2>Throughput and CPU time</h2>\n<p>");
        for (arm, place) in arms_of(&cases).iter().zip(0..) {
            let (colour, arm) = (colour_of(place), escape(arm));
            write!(body, "<span class=key><i style=background:{colour}></i>{arm}</span>")?;
        }
        body.push_str("</p>\n");
        for what in [
            Bars { title: "Throughput", value: gigabytes, unit: "GB/s" },
            Bars { title: "CPU time", value: cpu, unit: "CPU s/GiB" },
        ] {
            figure(&mut body, &bars(&what, &cases)?)?;
        }
        body.push_str("<h2>Latency</h2>\n");
        for (name, runs) in &cases {
            figure(&mut body, &latency(name, runs)?)?;
        }
    }
    let (text, method) = (escape(&table(report)), escape(&report.verification.method));
    Ok(format!(
        "<!doctype html>\n<html lang=en><meta charset=utf-8><title>kvrail bench</title>\n\
         <style>{STYLE}</style>\n<h1>kvrail bench</h1>\n{body}<h2>Figures</h2>\n\
         <pre>{text}</pre>\n<p>Verification: {method}.</p>\n</html>\n"
    ))
}

fn figure(body: &mut String, svg: &str) -> Result<()> {
    writeln!(body, "<figure>{svg}</figure>")?;
    Ok(())
}

fn gigabytes(run: &Run) -> f64 {
    run.bytes_per_second / 1e9
}

fn cpu(run: &Run) -> f64 {
    run.cpu_seconds_per_gib.unwrap_or(0.0)
}

/// Text as it may stand in HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
