//! Troubles: reasons why the sidecar does not do all that it is configured for.

use crate::exposition::{Family, FamilyKind, Unit};

pub(super) const FAMILIES: [Family; 1] = [Family {
    name: "kvrail_trouble",
    kind: FamilyKind::Gauge,
    unit: Unit::None,
    labels: &["code", "severity", "subject"],
    help: "1 for each trouble there is now, as `kvrail status` lists them; absent without any.",
    samples: |report, to| {
        for trouble in &report.troubles {
            to.add(&[trouble.code.name(), trouble.severity.name(), &trouble.subject], 1);
        }
    },
}];
