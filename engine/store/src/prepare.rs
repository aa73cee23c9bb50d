//! Makes free segments ready: flush, head, discard.
//!
//! Both copies of a segment's head are durable before anything else is written there, and before
//! the head of the next one. The copy that was found at the start is written last: the newest head
//! has the ledger, and two starts in a row may be cut off. The flush in front of the copies makes
//! the new places of moved blocks durable before their old ones stop to count.

use crate::config::Discard;
use crate::core::{Core, Image};
use crate::format::{Head, PAGE_BYTES, POOLS_MAX};
use crate::log::Log;
use crate::task::{Origin, Verb};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PrepareStage {
    Idle,
    /// Finished writes become durable; the rings' floors were taken before that.
    Flushing {
        ticket: u64,
        pool: u8,
        floors: [u64; POOLS_MAX],
    },
    /// The copies of `Prepare::head` are written.
    Head,
    Discarding {
        segment: u32,
    },
}

/// The stage of the one segment that is being made ready.
#[derive(Debug)]
pub(crate) struct Prepare {
    stage: PrepareStage,
    /// The pool that got the last one.
    last: u8,
    /// The head that was written last: both copies are equal.
    head: Option<Head>,
}

impl Prepare {
    pub(crate) fn new() -> Self {
        Self { stage: PrepareStage::Idle, last: 0, head: None }
    }

    /// `may`: pools whose numbers of drops are recovered, so that new pages can continue them.
    pub(crate) fn step(&mut self, core: &mut Core, log: &Log, may: impl Fn(u8) -> bool) {
        // Nothing can be written any more: puts are declined, and do not wait for ever.
        if core.segments.is_worn_out() {
            core.set_worn_out();
        }
        if self.stage == PrepareStage::Idle
            && !core.is_held_up()
            && let Some(pool) = core.segments.next_pool(self.last, may)
        {
            let (ticket, floors) = (core.flush.ticket(), core.take_floors());
            core.flush.want(ticket);
            self.stage = PrepareStage::Flushing { ticket, pool, floors };
            self.last = pool;
        }
        if let PrepareStage::Flushing { ticket, pool, floors } = self.stage
            && core.flush.is_durable(ticket)
            && core.has_image()
            && let Some((segment, before)) = core.segments.prepare(pool, core.now().unix)
        {
            let epoch = core.segments.epoch(segment);
            let head = log.head(core, (segment, before), floors.map(|floor| floor.min(epoch)));
            core.carry_ledgers([head.pool, head.second], segment);
            self.head = Some(head);
            self.write(core, segment, core.segments.first_copy(segment));
        }
    }

    fn write(&mut self, core: &mut Core, segment: u32, copy: u32) {
        let head = self.head.expect("a segment is being made ready");
        let (image, at) =
            (Image::Head { segment, copy }, core.geometry().head_copy_at(segment, copy));
        core.write_image(image, Verb::WriteDurable, at, PAGE_BYTES, |core, bytes| {
            head.encode(core.instance(), segment, bytes);
        });
        self.stage = PrepareStage::Head;
    }

    pub(crate) fn head_written(&mut self, core: &mut Core, segment: u32, copy: u32) {
        assert!(self.stage == PrepareStage::Head, "a head ends that was not written");
        if copy == core.segments.first_copy(segment) {
            return self.write(core, segment, 1 - copy);
        }
        if core.config().discard == Discard::Off {
            core.segments.prepared(segment);
            self.stage = PrepareStage::Idle;
            return;
        }
        let (at, head) = (core.geometry().segment_at(segment), core.geometry().head_at(segment));
        let at = at + PAGE_BYTES as u64;
        core.plain_task(Origin::Discard, Verb::Discard, at, head - at);
        self.stage = PrepareStage::Discarding { segment };
    }

    /// A discard that failed does no harm.
    pub(crate) fn discarded(&mut self, core: &mut Core) {
        let PrepareStage::Discarding { segment } = self.stage else {
            unreachable!("a discard ends that was not begun");
        };
        core.segments.prepared(segment);
        self.stage = PrepareStage::Idle;
    }
}
