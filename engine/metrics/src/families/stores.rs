//! The members of stores.

use kvrail_protocol::{ShardReport, StatusReport};

use crate::exposition::{Family, Kind, Samples, Unit};

/// States of a member; other words are those of one that does not start.
const STATES: [&str; 7] =
    ["starting", "warming", "serving", "refuses writes", "does not start", "gone", MISSING];

/// The state of one that was not there when the sidecar started.
const MISSING: &str = "missing";

/// Counters of a member that are exposed; those of `_` are by reason.
pub const COUNTERS: [&str; 31] = [
    "hits",
    "misses",
    "lookup_hits",
    "lookup_misses",
    "puts",
    "put_bytes",
    "present",
    "pending",
    "abandoned",
    "declined",
    "drops",
    "evicted",
    "holds_broken",
    "holds_refused",
    "hints_refused",
    "moved",
    "moved_bytes",
    "reclaimed",
    "pages",
    "written_bytes",
    "failures",
    "recovered",
    "distrusted",
    "suspects",
    "absolved",
    "unheeded",
    "rotten",
    "requests",
    "parked",
    "budget_bytes_per_day",
    "write_tokens",
];

pub(super) const FAMILIES: [Family; 39] = [
    Family {
        name: "kvrail_store_state",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["store", "device", "state"],
        help: "1 for the state that the member is in, 0 for the others.",
        samples: |report, to| {
            for it in &report.shards {
                let device = report.device_label(it.device);
                for state in STATES {
                    to.add(&[&it.store, &device, state], u8::from(it.state == state));
                }
            }
            for (store, member) in report.missing_members() {
                for state in STATES {
                    to.add(&[store, member, state], u8::from(state == MISSING));
                }
            }
        },
    },
    Family {
        name: "kvrail_store_capacity_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["store", "device"],
        help: "Bytes that blocks can take.",
        samples: |report, to| each(report, to, |it| it.capacity_bytes),
    },
    Family {
        name: "kvrail_store_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["store", "device"],
        help: "Bytes of all blocks there are. Fill is this divided by the capacity.",
        samples: |report, to| each(report, to, |it| it.bytes),
    },
    Family {
        name: "kvrail_store_memory_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["store", "device"],
        help: "Bytes of RAM of its tables and its pool.",
        samples: |report, to| each(report, to, |it| it.memory_bytes),
    },
    Family {
        name: "kvrail_store_blocks",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Blocks there are.",
        samples: |report, to| each(report, to, |it| it.blocks),
    },
    Family {
        name: "kvrail_store_blocks_max",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Blocks the index is made for. The fill of the index is blocks divided by this.",
        samples: |report, to| each(report, to, |it| it.blocks_max),
    },
    Family {
        name: "kvrail_store_holds",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Holds in force.",
        samples: |report, to| each(report, to, |it| it.holds.into()),
    },
    Family {
        name: "kvrail_store_oldest_timestamp_seconds",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        labels: &["store", "device"],
        help: "When the oldest content was written, in seconds since 1970.",
        samples: |report, to| {
            for it in &report.shards {
                if let Some(oldest) = it.oldest_unix_s {
                    to.add(&[&it.store, &report.device_label(it.device)], oldest);
                }
            }
        },
    },
    Family {
        name: "kvrail_store_hits",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Gets that found their block.",
        samples: |report, to| counted(report, to, "hits"),
    },
    Family {
        name: "kvrail_store_misses",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device", "reason"],
        help: "Gets that did not find their block. absent: never put, or gone since; nobody knows.",
        samples: |report, to| by_reason(report, to, ("misses", "absent")),
    },
    Family {
        name: "kvrail_store_lookup_hits",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Keys that lookups found.",
        samples: |report, to| counted(report, to, "lookup_hits"),
    },
    Family {
        name: "kvrail_store_lookup_misses",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Keys that lookups did not find.",
        samples: |report, to| counted(report, to, "lookup_misses"),
    },
    Family {
        name: "kvrail_store_puts",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Blocks put.",
        samples: |report, to| counted(report, to, "puts"),
    },
    Family {
        name: "kvrail_store_put_bytes",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        labels: &["store", "device"],
        help: "Bytes of them.",
        samples: |report, to| counted(report, to, "put_bytes"),
    },
    Family {
        name: "kvrail_store_puts_present",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Puts of keys that were there: nothing was written.",
        samples: |report, to| counted(report, to, "present"),
    },
    Family {
        name: "kvrail_store_puts_pending",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Puts of keys that were just being put by somebody else.",
        samples: |report, to| counted(report, to, "pending"),
    },
    Family {
        name: "kvrail_store_puts_abandoned",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Puts given up before they were complete.",
        samples: |report, to| counted(report, to, "abandoned"),
    },
    Family {
        name: "kvrail_store_declines",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device", "reason"],
        help: "Puts and drops that were declined. colder: of new chains that found no room.",
        samples: |report, to| by_reason(report, to, ("declined", "other")),
    },
    Family {
        name: "kvrail_store_write_budget_bytes_per_day",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Bytes that may be written in 24 hours; 0: as many as are given.",
        samples: |report, to| counted(report, to, "budget_bytes_per_day"),
    },
    Family {
        name: "kvrail_store_write_tokens_bytes",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["store", "device"],
        help: "Bytes that may be written at once, of the write budget.",
        samples: |report, to| counted(report, to, "write_tokens"),
    },
    Family {
        name: "kvrail_store_drops",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Keys dropped that were there.",
        samples: |report, to| counted(report, to, "drops"),
    },
    Family {
        name: "kvrail_store_evictions",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Blocks evicted.",
        samples: |report, to| counted(report, to, "evicted"),
    },
    Family {
        name: "kvrail_store_holds_broken",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Blocks evicted although they were held.",
        samples: |report, to| counted(report, to, "holds_broken"),
    },
    Family {
        name: "kvrail_store_holds_refused",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Holds asked for and not granted: more of the store would be held than may be.",
        samples: |report, to| counted(report, to, "holds_refused"),
    },
    Family {
        name: "kvrail_store_hints_refused",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Hints with an end that found no room: their blocks are worth no more than others.",
        samples: |report, to| counted(report, to, "hints_refused"),
    },
    Family {
        name: "kvrail_store_moves",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Blocks moved out of segments that were reclaimed.",
        samples: |report, to| counted(report, to, "moved"),
    },
    Family {
        name: "kvrail_store_moved_bytes",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        labels: &["store", "device"],
        help: "Bytes of them.",
        samples: |report, to| counted(report, to, "moved_bytes"),
    },
    Family {
        name: "kvrail_store_segments_reclaimed",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Segments reclaimed.",
        samples: |report, to| counted(report, to, "reclaimed"),
    },
    Family {
        name: "kvrail_store_pages_written",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Pages of records written.",
        samples: |report, to| counted(report, to, "pages"),
    },
    Family {
        name: "kvrail_store_written_bytes",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        labels: &["store", "device"],
        help: "Bytes given to the drive in all. Divided by the bytes put: write amplification.",
        samples: |report, to| counted(report, to, "written_bytes"),
    },
    Family {
        name: "kvrail_store_failures",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Writes, flushes and moves that failed.",
        samples: |report, to| counted(report, to, "failures"),
    },
    Family {
        name: "kvrail_store_records_recovered",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Records read back at start.",
        samples: |report, to| counted(report, to, "recovered"),
    },
    Family {
        name: "kvrail_store_segments_distrusted",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Segments dropped at start because records of drops were missing.",
        samples: |report, to| counted(report, to, "distrusted"),
    },
    Family {
        name: "kvrail_store_suspects",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Blocks that readers reported as wrong.",
        samples: |report, to| counted(report, to, "suspects"),
    },
    Family {
        name: "kvrail_store_suspects_absolved",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Reported blocks that were what they should be.",
        samples: |report, to| counted(report, to, "absolved"),
    },
    Family {
        name: "kvrail_store_suspects_unheeded",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Reports of clients that may not write: counted, and nothing else.",
        samples: |report, to| counted(report, to, "unheeded"),
    },
    Family {
        name: "kvrail_store_blocks_rotten",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Reported blocks that were wrong and were dropped.",
        samples: |report, to| counted(report, to, "rotten"),
    },
    Family {
        name: "kvrail_store_requests",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Requests of clients that are not answered yet.",
        samples: |report, to| counted(report, to, "requests"),
    },
    Family {
        name: "kvrail_store_requests_parked",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["store", "device"],
        help: "Those of them that wait for room in the tables.",
        samples: |report, to| counted(report, to, "parked"),
    },
];

fn each(report: &StatusReport, to: &mut Samples<'_>, value: fn(&ShardReport) -> u64) {
    for it in &report.shards {
        to.add(&[&it.store, &report.device_label(it.device)], value(it));
    }
}

fn counted(report: &StatusReport, to: &mut Samples<'_>, counter: &str) {
    for it in &report.shards {
        let device = report.device_label(it.device);
        to.add(&[&it.store, &device], it.counters.get(counter).copied().unwrap_or(0));
    }
}

/// A counter of which some is counted by reason too, as `counter_reason`; and what the rest is.
fn by_reason(report: &StatusReport, to: &mut Samples<'_>, (counter, remainder): (&str, &str)) {
    for it in &report.shards {
        let device = report.device_label(it.device);
        let mut rest = it.counters.get(counter).copied().unwrap_or(0);
        for (name, &count) in &it.counters {
            let Some(reason) = name.strip_prefix(counter).and_then(|it| it.strip_prefix('_'))
            else {
                continue;
            };
            rest = rest.saturating_sub(count);
            to.add(&[&it.store, &device, reason], count);
        }
        to.add(&[&it.store, &device, remainder], rest);
    }
}
