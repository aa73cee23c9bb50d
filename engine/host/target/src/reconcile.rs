//! Steps taken one at a time, each recorded before it is done; a way back when one fails; a look
//! at the result.

use rustix::io::Errno;

use crate::diff;
use crate::errno_help::explain;
use crate::error::{Aftermath, Problem, TargetError};
use crate::item::Desired;
use crate::place::{is_below, place};
use crate::record::{Intent, OwnedObject, RecordPhase, RecordStore, TargetRecord};
use crate::snapshot::{NVMET, Node, Snapshot};
use crate::step::Step;
use crate::tree::Tree;

/// A tree and the record of what kvrail made in it.
#[derive(Debug)]
pub struct Target<T, S> {
    tree: T,
    store: S,
    record: TargetRecord,
    /// The step that was in flight at a crash.
    interrupted: Option<String>,
}

/// Whether steps lead to the requested state, or back to the earlier one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkDirection {
    Forward,
    Back,
}

impl<T: Tree, S: RecordStore> Target<T, S> {
    /// Reads the record and makes it true: what was in flight at a crash is looked up in the tree.
    /// `boot` names this boot of the machine: objects of another one are gone with it.
    ///
    /// # Errors
    /// `TargetError::Record` when there is a record that cannot be understood.
    pub fn open(tree: T, store: S, boot: &str) -> Result<Self, TargetError> {
        let record = store.load()?.filter(|record| record.boot == boot);
        let record = record.unwrap_or_else(|| TargetRecord::new(boot));
        let mut target = Self { tree, store, record, interrupted: None };
        match Snapshot::read(&target.tree) {
            Ok(present) => target.settle(&present),
            Err(_) => target.record.owned.clear(), // Without a tree there are no objects.
        }
        Ok(target)
    }

    /// Recorded objects that exist. An object whose creation was about to begin is ours if it
    /// exists in its initial state: between the two, no other process made it.
    fn settle(&mut self, present: &Snapshot) {
        if self.record.phase == RecordPhase::Working {
            let step = self.record.intent.take().map(|intent| {
                self.adopt(present, intent.makes);
                intent.step
            });
            self.interrupted = Some(step.unwrap_or_else(|| "between two steps".into()));
        }
        let mine: Vec<OwnedObject> =
            diff::mine(present, &self.record).into_iter().cloned().collect();
        self.record.owned = mine;
    }

    fn adopt(&mut self, present: &Snapshot, makes: Option<OwnedObject>) {
        let Some(mut made) = makes else { return };
        if self.record.find(&made.path).is_some() {
            return;
        }
        let newborn = !present.objects().any(|(path, _)| is_below(path, &made.path))
            && present.text(&format!("{}/enable", made.path)) != Some("1");
        match present.nodes.get(&made.path) {
            Some(Node::Dir { id }) if newborn => {
                made.id = Some(*id);
                self.record.owned.push(made);
            }
            Some(Node::Link(_)) => self.record.owned.push(made),
            _ => {}
        }
    }

    /// Loads nvmet where its tree is missing and would come with it.
    ///
    /// # Errors
    /// `TargetError::Step` when it cannot be loaded, `Unreadable` when there is no tree.
    pub fn ready(&mut self) -> Result<(), TargetError> {
        if self.tree.list("") == Err(Errno::NOENT) && self.tree.can_appear() {
            let step = Step::Load { module: NVMET.to_owned() };
            if let Err(errno) = self.take(&step) {
                return Err(WalkFailure::Step { step, errno }.into_error(Aftermath::RolledBack));
            }
        }
        self.snapshot().map(drop)
    }

    /// The tree as it is.
    ///
    /// # Errors
    /// `TargetError::Unreadable`.
    pub fn snapshot(&self) -> Result<Snapshot, TargetError> {
        Snapshot::read(&self.tree)
    }

    /// The tree itself.
    pub fn tree(&self) -> &T {
        &self.tree
    }

    /// The step that a crash interrupted, if one did.
    #[must_use]
    pub fn interrupted(&self) -> Option<&str> {
        self.interrupted.as_deref()
    }

    /// Paths of everything that kvrail made and that is there.
    #[must_use]
    pub fn owned(&self) -> Vec<&str> {
        self.record.owned.iter().map(|owned| &*owned.path).collect()
    }

    /// The steps that `apply` would take.
    ///
    /// # Errors
    /// `TargetError::Refused` names what is in the way.
    pub fn preview(&self, desired: &Desired) -> Result<Vec<Step>, TargetError> {
        self.between(&self.snapshot()?, desired)
    }

    /// The steps for a tree in this state.
    pub(crate) fn between(
        &self,
        present: &Snapshot,
        desired: &Desired,
    ) -> Result<Vec<Step>, TargetError> {
        diff::steps(present, &self.record, desired).map_err(TargetError::Refused)
    }

    /// Makes kvrail's part of the tree equal to `desired`; returns the steps taken. After an error
    /// the tree is as before, unless the error states otherwise.
    ///
    /// # Errors
    /// `TargetError` with cause and remedy.
    pub fn apply(&mut self, desired: &Desired) -> Result<Vec<Step>, TargetError> {
        let before = self.snapshot()?;
        let steps = self.between(&before, desired)?;
        let back = diff::as_desired(&before, &self.record);
        if let Err(failed) = self.walk(&steps, WalkDirection::Forward) {
            let aftermath = self.go_back(&back);
            return Err(failed.into_error(aftermath));
        }
        let problems = self.verify(desired)?;
        if !problems.is_empty() {
            let aftermath = self.go_back(&back);
            return Err(TargetError::Unverified { problems, aftermath });
        }
        self.finish()?;
        Ok(steps)
    }

    /// Removes everything that kvrail made, and nothing else.
    ///
    /// # Errors
    /// As `apply`.
    pub fn undo(&mut self) -> Result<Vec<Step>, TargetError> {
        self.apply(&Desired::default())
    }

    /// Kvrail's present part of the tree.
    pub(crate) fn current(&self, present: &Snapshot) -> Desired {
        diff::as_desired(present, &self.record)
    }

    fn finish(&mut self) -> Result<(), TargetError> {
        self.record.phase = RecordPhase::Done;
        self.record.intent = None;
        self.interrupted = None;
        self.store.save(&self.record)
    }

    fn go_back(&mut self, back: &Desired) -> Aftermath {
        let stuck = |error: TargetError| Aftermath::Stuck(error.to_string());
        let steps = match self.preview(back) {
            Ok(steps) => steps,
            Err(error) => return stuck(error),
        };
        if let Err(failed) = self.walk(&steps, WalkDirection::Back) {
            return stuck(failed.into_error(Aftermath::Stuck("left there".into())));
        }
        match self.finish() {
            Ok(()) => Aftermath::RolledBack,
            Err(error) => stuck(error),
        }
    }

    fn walk(&mut self, steps: &[Step], way: WalkDirection) -> Result<(), WalkFailure> {
        for step in steps {
            self.announce(step, way).map_err(WalkFailure::Record)?;
            let done = self.take(step);
            done.map_err(|errno| WalkFailure::Step { step: step.clone(), errno })?;
            self.own(step);
        }
        Ok(())
    }

    /// Records a step before it is done. On the way back a removal needs no record: the kept one
    /// names the object already.
    fn announce(&mut self, step: &Step, way: WalkDirection) -> Result<(), TargetError> {
        let made = |attributes: &[String]| OwnedObject {
            path: step.path().to_owned(),
            id: None,
            attributes: attributes.to_vec(),
        };
        let makes = match step {
            Step::MakeDir { attributes, .. } => Some(made(attributes)),
            Step::Link { .. } => Some(made(&[])),
            _ => None,
        };
        let needed = way == WalkDirection::Forward || makes.is_some();
        self.record.phase = RecordPhase::Working;
        self.record.intent = Some(Intent { step: step.to_string(), makes });
        match self.store.save(&self.record) {
            Err(error) if needed => {
                self.record.intent = None;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    fn take(&mut self, step: &Step) -> Result<(), Errno> {
        let tree = &mut self.tree;
        match step {
            Step::Load { module } => tree.load_module(module),
            Step::MakeDir { path, .. } => tree.make_dir(path),
            Step::Write { path, value } => tree.write(path, value.text()),
            Step::Link { path, target } => tree.link(path, target),
            Step::Unlink { path } => tree.unlink(path),
            Step::RemoveDir { path } => tree.remove_dir(path),
        }
    }

    fn own(&mut self, step: &Step) {
        let made = self.record.intent.take().and_then(|intent| intent.makes);
        if let Some(mut made) = made {
            if matches!(step, Step::MakeDir { .. }) {
                made.id = self.tree.id(&made.path).ok();
            }
            self.record.owned.push(made);
        }
        match step {
            Step::Unlink { path } | Step::RemoveDir { path } => {
                self.record.owned.retain(|owned| owned.path != *path);
            }
            Step::Write { path, .. } => self.own_attribute(path),
            _ => {}
        }
    }

    /// An attribute written later than its object was made: it is ours from now on as well.
    fn own_attribute(&mut self, path: &str) {
        let above = |owned: &&mut OwnedObject| is_below(path, &owned.path);
        let nearest =
            self.record.owned.iter_mut().filter(above).max_by_key(|owned| owned.path.len());
        let Some(owned) = nearest else { return };
        let name = path[owned.path.len() + 1..].to_owned();
        if place(path).is_none() && !owned.attributes.contains(&name) {
            owned.attributes.push(name);
        }
    }

    /// Differences that remain.
    fn verify(&self, desired: &Desired) -> Result<Vec<Problem>, TargetError> {
        let after = self.snapshot()?;
        let left = match diff::steps(&after, &self.record, desired) {
            Ok(left) => left,
            Err(problems) => return Ok(problems),
        };
        let problem = |step: &Step| {
            let has = after.text(step.path()).unwrap_or("nothing");
            let has = if crate::item::is_secret(step.path()) { "another key" } else { has };
            let rule = format!("all steps were done, and this is left to do: {step}");
            let remedy = "see the kernel's log (`dmesg`); no other program should manage it";
            Problem::refused(step.path(), has, rule, remedy)
        };
        Ok(left.iter().map(problem).collect())
    }
}

/// Why a walk ended.
enum WalkFailure {
    Step { step: Step, errno: Errno },
    Record(TargetError),
}

impl WalkFailure {
    fn into_error(self, aftermath: Aftermath) -> TargetError {
        match self {
            Self::Step { step, errno } => {
                let (cause, remedy) = explain(&step, errno);
                let step = Box::new(step);
                TargetError::Step { step, errno, cause, remedy, aftermath }
            }
            Self::Record(error) => error,
        }
    }
}
