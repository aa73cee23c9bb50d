//! The target that `[target]` names: its tree, and the record of what kvrail made there.

use std::path::Path;

use kvrail_target::{FileStore, KernelTree, RecordStore, Target};

use kvrail_cli::config::TargetConfig as Wanted;
use kvrail_cli::failure::{Exit, Failure};

/// The target to change: locked against every other kvrail.
pub(crate) fn locked(wanted: &Wanted) -> Result<Target<KernelTree, FileStore>, Failure> {
    open(&wanted.configfs, FileStore::open(&wanted.state_dir)?)
}

/// The target to look at, or a copy of one.
pub(crate) fn seen(
    wanted: &Wanted,
    tree: Option<&Path>,
) -> Result<Target<KernelTree, FileStore>, Failure> {
    let root = tree.unwrap_or(&wanted.configfs);
    open(root, FileStore::look(&wanted.state_dir))
}

fn open<S: RecordStore>(root: &Path, store: S) -> Result<Target<KernelTree, S>, Failure> {
    let place = "/proc/sys/kernel/random/boot_id";
    let boot = std::fs::read_to_string(place)
        .map_err(|error| Failure::new(Exit::Failed, format!("{place}: {error}")))?;
    // A record describes one tree alone.
    let boot = format!("{} {}", boot.trim(), root.display());
    Ok(Target::open(KernelTree::at(root), store, &boot)?)
}

/// A configuration that exports nothing.
pub(super) fn nothing_wished() -> Failure {
    Failure::new(Exit::Usage, "the configuration exports nothing").with_remedy(
        "add [[target.subsystem]] and [[target.port]] (`kvrail config default` explains them); to \
         remove what kvrail made: kvrail target teardown",
    )
}
