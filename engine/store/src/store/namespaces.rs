//! Namespaces of a store: what there is, and changes, each of which is written twice.

use super::Store;
use crate::core::{Image, Now};
use crate::feed::{Evicted, Gone};
use crate::format::SPACE_BYTES;
use crate::key::Key;
use crate::request::{Begun, DeclineReason, Fault, SpaceId, Status};
use crate::spaces::{SpaceView, Spaces};
use crate::task::{Outcome, Verb};

impl Store {
    /// The namespace of a name.
    #[must_use]
    pub fn space(&self, name: &[u8]) -> Option<SpaceView<'_>> {
        self.core.spaces.by_name(name)
    }

    /// All namespaces.
    pub fn spaces(&self) -> impl Iterator<Item = SpaceView<'_>> {
        (0..self.core.spaces.count()).filter_map(|slot| self.core.spaces.view(slot))
    }

    /// Namespaces that there are, and that there may be.
    #[must_use]
    pub fn namespaces(&self) -> (u32, u32) {
        self.core.spaces.counts()
    }

    /// Highest uid that any namespace ever had here. The next one must be higher; let it be higher
    /// by a random step of 32 bits, so that members which did not see each other differ.
    #[must_use]
    pub fn uid_mark(&self) -> u64 {
        self.core.spaces.mark()
    }

    /// Makes a namespace. Answered `Ok` when it is durable; `space` then has it.
    pub fn create_space(
        &mut self,
        asker: (u64, u16),
        name: &[u8],
        document: &[u8],
        uid: u64,
        now: Now,
    ) -> Begun {
        self.core.set_now(now);
        let unix = u64::from(now.unix);
        let pool = self.core.pools().of_space(name);
        self.change_space(|spaces| spaces.create((asker, pool), name, document, uid, unix))
    }

    /// Gives a namespace another uid: all its blocks become unreachable, and its id unknown.
    /// Answered when that is durable.
    pub fn clear_space(&mut self, asker: (u64, u16), space: SpaceId, uid: u64, now: Now) -> Begun {
        self.core.set_now(now);
        self.change_space(|spaces| spaces.clear(asker, space, uid))
    }

    /// Forgets a namespace. Answered when that is durable.
    pub fn remove_space(&mut self, asker: (u64, u16), space: SpaceId, now: Now) -> Begun {
        self.core.set_now(now);
        self.change_space(|spaces| spaces.remove(asker, space))
    }

    fn change_space(&mut self, begin: impl FnOnce(&mut Spaces) -> Result<u32, Fault>) -> Begun {
        let declined = self.core.declines().map(Status::Declined);
        if let Some(why) = self.busy().or(declined) {
            return Begun::Done(why.into());
        }
        if self.core.spaces.is_busy() || !self.core.has_image() {
            return Begun::Done(Status::Declined(DeclineReason::Busy).into());
        }
        match begin(&mut self.core.spaces) {
            Ok(slot) => {
                self.write_space(slot, self.core.spaces.first_copy(slot));
                Begun::Taken
            }
            Err(fault) => Begun::Done(Status::Invalid(fault).into()),
        }
    }

    pub(super) fn write_space(&mut self, slot: u32, copy: u32) {
        let at = self.core.geometry().space_at(slot, copy);
        let image = Image::Space { slot, copy };
        self.core.write_image(image, Verb::WriteDurable, at, SPACE_BYTES, |core, bytes| {
            core.spaces.image(core.instance(), bytes);
        });
    }

    pub(super) fn space_written(&mut self, slot: u32, copy: u32, outcome: Outcome) {
        let well = outcome == Outcome::Done;
        if well && copy == self.core.spaces.first_copy(slot) {
            return self.write_space(slot, 1 - copy);
        }
        let (change, status) = if let Outcome::Failed(code) = outcome {
            (self.core.spaces.abandon(), Status::Failed(code))
        } else {
            if let Some(uid) = self.core.spaces.ending() {
                let (key, length, why) = (Key::default(), 0, Gone::Cleared);
                self.core.feed_mut().push(&Evicted { uid, key, length, why, metadata: &[] });
                self.core.close_uid(uid);
            }
            let (change, opened) = self.core.spaces.commit();
            if let Some((number, uid)) = opened {
                self.core.open_uid(number, uid);
            }
            self.writes.space_gone(&mut self.core, &mut self.log);
            (change, Status::Ok)
        };
        if Spaces::is_asked(&change) {
            self.core.reply(change.user, change.owner, status);
        }
    }
}
