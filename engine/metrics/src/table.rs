//! The table of all metrics, for the documentation.

use std::fmt::Write;

use crate::exposition::{Family, FamilyKind};
use crate::families::ALL;

/// Every metric, a row each, as Markdown.
#[must_use]
pub fn table() -> String {
    let mut text =
        String::from("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n");
    for family in &*ALL {
        let labels = family.labels.iter().map(|label| format!("`{label}`"));
        let labels = labels.collect::<Vec<_>>().join(", ");
        // Writing to a String cannot fail.
        let _fits = writeln!(
            text,
            "| `{}` | {} | {labels} | {} |",
            shown(family),
            family.kind.name(),
            family.help
        );
    }
    text
}

/// Its name in queries.
fn shown(family: &Family) -> String {
    match family.kind {
        FamilyKind::Histogram => format!("{}_bucket", family.name),
        FamilyKind::Counter | FamilyKind::Gauge => family.sample_name(),
    }
}
