//! Ways to drives, and the target that others reach drives by.

use crate::exposition::{Family, FamilyKind, Unit};

pub(super) const FAMILIES: [Family; 4] = [
    Family {
        name: "kvrail_path_info",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["device", "controller", "transport", "address", "state", "ana_state"],
        help: "Always 1; its labels are a controller's state and that of its path to the device.",
        samples: |report, to| {
            for path in &report.paths {
                let device = report.device_label(path.device);
                let ana = path.ana_state.as_deref().unwrap_or_default();
                let (transport, address) = (&path.transport, &path.address);
                to.add(&[&device, &path.controller, transport, address, &path.state, ana], 1);
            }
        },
    },
    Family {
        name: "kvrail_path_usable",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["device", "controller"],
        help: "1 while requests can go this way: the controller is live and ANA lets them.",
        samples: |report, to| {
            for path in &report.paths {
                let device = report.device_label(path.device);
                to.add(&[&device, &path.controller], u8::from(path.is_usable()));
            }
        },
    },
    Family {
        name: "kvrail_target_as_planned",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &[],
        help: "1 while the NVMe-oF target is as configured; absent without one.",
        samples: |report, to| {
            if let Some(target) = &report.target {
                to.add(&[], u8::from(target.problem.is_none()));
            }
        },
    },
    Family {
        name: "kvrail_target_ana_state_info",
        kind: FamilyKind::Gauge,
        unit: Unit::None,
        labels: &["port", "group", "state"],
        help: "Always 1; its labels are the configured state of an ANA group at a port.",
        samples: |report, to| {
            let states = report.target.iter().flat_map(|target| &target.ana_states);
            for (port, group, state) in states {
                to.add(&[&port.to_string(), &group.to_string(), state], 1);
            }
        },
    },
];
