//! The whole operation of a target: look, plan, claim, apply.

use kvrail_memory::Root;
use rustix::io::Errno;

use crate::claims::Claims;
use crate::error::{Problem, TargetError};
use crate::gather::gather;
use crate::item::Desired;
use crate::place::{ObjectKind, place};
use crate::plan::{Export, Plan, plan};
use crate::probe::features;
use crate::reconcile::Target;
use crate::record::RecordStore;
use crate::snapshot::Snapshot;
use crate::spec::TargetSpec;
use crate::step::Step;
use crate::tree::Tree;

/// A target that was brought to what was wished for.
#[derive(Debug)]
pub struct Applied {
    /// The present state.
    pub plan: Plan,
    /// How it came to be; none where it was there already.
    pub steps: Vec<Step>,
}

impl<T: Tree, S: RecordStore> Target<T, S> {
    /// The plan and the steps to it. Changes nothing, claims nothing. Where the tree comes with a
    /// module that is not loaded yet, an empty one is planned for.
    ///
    /// # Errors
    /// `TargetError::Refused` with everything that stands against it.
    pub fn plan(&self, wish: &TargetSpec, root: &Root) -> Result<(Plan, Vec<Step>), TargetError> {
        let present = self.outlook(wish)?;
        let mut facts = gather(wish, root, &self.open_ports());
        facts.features = features(&present);
        let mut plan = plan(wish, &facts).map_err(TargetError::Refused)?;
        let steps = self.steps(&present, wish, &plan.desired)?;
        let modules: Vec<&str> = steps.iter().filter_map(Step::module).collect();
        if !modules.is_empty() {
            let note = format!("not loaded, apply loads them first: {}", modules.join(", "));
            plan.notes.push(note);
        }
        Ok((plan, steps))
    }

    fn outlook(&self, wish: &TargetSpec) -> Result<Snapshot, TargetError> {
        match self.snapshot() {
            Err(TargetError::Unreadable { errno: Errno::NOENT, .. })
                if wish.is_empty() || self.tree().can_appear() =>
            {
                Ok(Snapshot::default())
            }
            seen => seen,
        }
    }

    /// The steps from a tree, if all modules for them can be had.
    fn steps(
        &self,
        present: &Snapshot,
        wish: &TargetSpec,
        desired: &Desired,
    ) -> Result<Vec<Step>, TargetError> {
        let steps = self.between(present, desired)?;
        let lacking =
            steps.iter().filter_map(Step::module).filter(|module| !self.tree().can_load(module));
        let problems: Vec<Problem> = lacking.map(|module| unloadable(wish, module)).collect();
        if problems.is_empty() { Ok(steps) } else { Err(TargetError::Refused(problems)) }
    }

    /// Makes it so; `claims` holds the devices then.
    ///
    /// # Errors
    /// `TargetError`; the tree is as before, unless the error states otherwise.
    pub fn bring(
        &mut self,
        wish: &TargetSpec,
        root: &Root,
        claims: &mut Claims,
    ) -> Result<Applied, TargetError> {
        let mut facts = gather(wish, root, &self.open_ports());
        // A specification that no kernel could fulfil is refused before the tree is touched at all.
        let first = plan(wish, &facts).map_err(TargetError::Refused)?;
        self.steps(&self.outlook(wish)?, wish, &first.desired)?;
        self.ready()?;
        self.preview(&first.desired)?;
        if !wish.is_empty() {
            facts.features = Some(self.probe()?);
        }
        let plan = plan(wish, &facts).map_err(TargetError::Refused)?;
        self.preview(&plan.desired)?;
        let present = self.snapshot()?;
        let elsewhere = self.exported_elsewhere(&plan.exports, &present);
        if !elsewhere.is_empty() {
            return Err(TargetError::Refused(elsewhere));
        }
        claims.renew(&plan.exports, &present).map_err(TargetError::Refused)?;
        let steps = self.apply(&plan.desired)?;
        Ok(Applied { plan, steps })
    }

    /// Devices that foreign namespaces export, under whatever name: no claim detects that.
    fn exported_elsewhere(&self, exports: &[Export], present: &Snapshot) -> Vec<Problem> {
        let owned = self.owned();
        let foreign =
            |path: &str| place(path) == Some(ObjectKind::Namespace) && !owned.contains(&path);
        let mut problems = Vec::new();
        for (path, _) in present.objects().filter(|(path, _)| foreign(path)) {
            let device = present.text(&format!("{path}/device_path")).unwrap_or_default();
            let Ok(device) = std::fs::canonicalize(device) else { continue };
            for export in exports.iter().filter(|export| export.node == device) {
                let rule = format!("{path}, which kvrail did not make, exports it");
                let remedy = "export another device, or have its owner remove it";
                let node = export.node.display();
                problems.push(Problem::refused(&export.key, node, rule, remedy));
            }
        }
        problems
    }

    fn open_ports(&self) -> Vec<u16> {
        let owned = self.owned().into_iter();
        owned.filter_map(|path| path.strip_prefix("ports/")?.parse().ok()).collect()
    }
}

/// A module that this kernel does not have.
fn unloadable(wish: &TargetSpec, module: &str) -> Problem {
    let rule = format!("it needs the module {module}, which this kernel does not have");
    let remedy = format!(
        "install the kernel's module package, or boot a kernel that has it; `modprobe {module}` \
         shows why it cannot be loaded"
    );
    let port = wish.port.iter().position(|port| port.transport.target_module() == module);
    let (key, value) = match port {
        Some(index) => {
            (format!("target.port.{index}.transport"), wish.port[index].transport.name())
        }
        None => ("target.configfs".to_owned(), "not there"),
    };
    Problem::refused(key, value, rule, remedy)
}
