//! Faults of a simulated device, and their times.

use std::ops::Range;

use kvrail_ring::{Opcode, Status};

use crate::contract::Operation;
use crate::sim::prng::Prng;

/// Chances are given in parts of this.
const MILLION: u32 = 1_000_000;

/// Something that goes wrong with one piece of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It takes longer. Adds to whatever else happens to it.
    Delay {
        /// By how much.
        ns: u64,
    },
    /// It may end after pieces that were submitted later. Adds to whatever else happens to it.
    Reorder,
    /// Only the first half of its blocks is moved (a single block is moved whole).
    Short,
    /// Nothing is moved and no error is reported, as a removed NVMe drive does for reads.
    Nothing,
    /// The device reports an error and moves nothing.
    Error(Status),
    /// It does not end before `SimControl::release`; then it moves its bytes.
    Hang,
    /// One bit is wrong: in the buffer after a read, on the device after a write.
    Corrupt,
    /// A write is acknowledged, but only its first half reaches the device.
    Torn,
    /// A write is acknowledged, but nothing reaches the device.
    Lost,
    /// It uses the place right behind its own (cyclic): a write lands there, a read comes from
    /// there.
    Misdirected,
    /// The device is removed, with everything in flight.
    Gone,
}

/// When a fault happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    fault: Fault,
    opcode: Option<Opcode>,
    offsets: Range<u64>,
    per_million: u32,
    skip: u32,
    times: u32,
}

impl Rule {
    /// To every piece.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self::chance(fault, MILLION)
    }

    /// Applies to `per_million` pieces in a million, by the seeded dice.
    #[must_use]
    pub fn chance(fault: Fault, per_million: u32) -> Self {
        Self { fault, opcode: None, offsets: 0..u64::MAX, per_million, skip: 0, times: u32::MAX }
    }

    /// To the next matching piece only.
    #[must_use]
    pub fn once(fault: Fault) -> Self {
        Self::always(fault).times(1)
    }

    /// Only to this kind of operation.
    #[must_use]
    pub fn on(mut self, opcode: Opcode) -> Self {
        self.opcode = Some(opcode);
        self
    }

    /// Only to pieces that begin in this range of the device.
    #[must_use]
    pub fn within(mut self, offsets: Range<u64>) -> Self {
        self.offsets = offsets;
        self
    }

    /// Lets `pieces` matching pieces pass first.
    #[must_use]
    pub fn after(mut self, pieces: u32) -> Self {
        self.skip = pieces;
        self
    }

    /// At most so often.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    fn strikes(&mut self, piece: &Operation, dice: &mut Prng) -> bool {
        let matching = self.times > 0
            && self.opcode.is_none_or(|opcode| opcode == piece.opcode)
            && self.offsets.contains(&piece.offset)
            && dice.below(u64::from(MILLION)) < u64::from(self.per_million);
        if matching && self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.times -= u32::from(matching);
        matching
    }
}

/// Everything that goes wrong on one device, in the order of the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    rules: Vec<Rule>,
}

/// The treatment of one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PieceFate {
    pub(super) delay_ns: u64,
    pub(super) order: CompletionOrder,
    /// The first fault that struck, other than delay and reorder.
    pub(super) fault: Option<Fault>,
}

/// When a piece ends relative to its neighbours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CompletionOrder {
    #[default]
    InTurn,
    AnyTime,
}

impl FaultPlan {
    /// Nothing goes wrong.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a rule behind those there are.
    #[must_use]
    pub fn with(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Adds a rule behind those there are, to a plan in use.
    pub fn add(&mut self, rule: Rule) {
        self.rules.push(rule);
    }

    /// Decides about one piece as it is handed to the device.
    pub(super) fn decide(&mut self, piece: &Operation, dice: &mut Prng) -> PieceFate {
        let mut fate = PieceFate::default();
        for rule in &mut self.rules {
            if fate.fault.is_some() && !matches!(rule.fault, Fault::Delay { .. } | Fault::Reorder) {
                continue;
            }
            if !rule.strikes(piece, dice) {
                continue;
            }
            match rule.fault {
                Fault::Delay { ns } => fate.delay_ns += ns,
                Fault::Reorder => fate.order = CompletionOrder::AnyTime,
                fault => fate.fault = Some(fault),
            }
        }
        fate
    }
}

#[cfg(test)]
mod tests {
    use kvrail_ring::Opcode;

    use super::{CompletionOrder, Fault, FaultPlan, Rule};
    use crate::contract::{BufferIndex, Durability, Operation};
    use crate::sim::prng::Prng;

    fn piece(opcode: Opcode, offset: u64) -> Operation {
        let (durability, buffer) = (Durability::Visible, BufferIndex(0));
        Operation { tag: 0, opcode, durability, offset, length: 512, buffer, buffer_offset: 0 }
    }

    #[test]
    fn rules_match_by_kind_place_and_count() {
        let mut dice = Prng::new(1);
        let rule = Rule::always(Fault::Lost).on(Opcode::Write).within(512..1024).after(1).times(2);
        let mut plan = FaultPlan::none().with(rule);
        let mut struck = |opcode, offset| {
            plan.decide(&piece(opcode, offset), &mut dice).fault == Some(Fault::Lost)
        };
        assert!(!struck(Opcode::Read, 512) && !struck(Opcode::Write, 0));
        assert!(!struck(Opcode::Write, 1024) && !struck(Opcode::Write, 512));
        assert!(struck(Opcode::Write, 512) && struck(Opcode::Write, 1000));
        assert!(!struck(Opcode::Write, 512));
    }

    #[test]
    fn delay_and_order_add_to_the_first_other_fault() {
        let plan = FaultPlan::none()
            .with(Rule::always(Fault::Delay { ns: 3 }))
            .with(Rule::always(Fault::Short))
            .with(Rule::always(Fault::Hang))
            .with(Rule::always(Fault::Reorder))
            .with(Rule::always(Fault::Delay { ns: 4 }));
        let fate = plan.clone().decide(&piece(Opcode::Read, 0), &mut Prng::new(1));
        assert_eq!((fate.delay_ns, fate.fault), (7, Some(Fault::Short)));
        assert_eq!(fate.order, CompletionOrder::AnyTime);
    }

    #[test]
    fn chances_come_out_about_right() {
        let mut plan = FaultPlan::none().with(Rule::chance(Fault::Short, 100_000));
        let mut dice = Prng::new(7);
        let struck = (0..10_000)
            .filter(|_| plan.decide(&piece(Opcode::Read, 0), &mut dice).fault.is_some())
            .count();
        assert!((800..1200).contains(&struck), "{struck} of 10000 at 10 %");
    }
}
