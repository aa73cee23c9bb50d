//! A member's explanation of a key, in the form of the protocol.

use kvrail_poller::StoreFound;
use kvrail_protocol::{EventInfo, KeyBlock, KeyFate, KeyReport, KeyState, KeyWorth, Remembered};
use kvrail_store::{Explained, Priority, WorthClass};

/// The report of a key.
pub(super) fn report(
    (member, device): (u16, u16),
    found: &StoreFound,
    event: Option<(EventInfo, u64)>,
    remembered: Remembered,
) -> Option<KeyReport> {
    let StoreFound::Key { known: Some(known), memory_age_s, now_ns } = found else { return None };
    let (memory_age_s, in_memory) = (*memory_age_s, memory_age_s.is_some());
    let state = match *known {
        Explained::There(block) => KeyState::There(there(&block, in_memory, *now_ns)),
        Explained::Putting { length, written } => KeyState::Putting { length, written },
        Explained::Absent | Explained::UnknownSpace => KeyState::Absent,
        Explained::Dropped => KeyState::Dropped,
        Explained::Warming | Explained::Starting => KeyState::Warming,
        Explained::Distrusted => KeyState::Distrusted,
    };
    Some(KeyReport { member, device, state, in_memory, memory_age_s, event, remembered })
}

fn worth(class: WorthClass) -> KeyWorth {
    match class {
        WorthClass::Of(Priority::Low) => KeyWorth::Low,
        WorthClass::Of(Priority::Normal) => KeyWorth::Normal,
        WorthClass::Of(Priority::High) => KeyWorth::High,
        WorthClass::Over => KeyWorth::Over,
    }
}

fn there(block: &kvrail_store::ExplainedBlock, in_memory: bool, now_ns: u64) -> KeyBlock {
    KeyBlock {
        segment: block.segment,
        epoch: block.epoch,
        opened_unix_s: block.opened,
        segments_ahead: block.ahead,
        offset: block.offset,
        length: block.length,
        check: block.check,
        worth: worth(block.class),
        worth_until_unix_s: block.worth_until,
        age_percent: Some(block.age_percent),
        coldest_age_percent: block.coldest_percent,
        held_ms: block.held_until.map(|until| until.saturating_sub(now_ns) / 1_000_000),
        suspect: block.suspect,
        in_memory,
        next: if block.would_move { KeyFate::Moved } else { KeyFate::Evicted },
    }
}
