//! A folder with a volume and a configuration, removed at the end.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::{Outcome, kvrail, open_folder, run};

/// The name of the volume in every flow.
pub(crate) const VOLUME: &str = "kv";

/// Sizes of a store, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreShape {
    pub(crate) member_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) block_mean: u64,
}

/// Where one sidecar lives.
#[derive(Debug)]
pub(crate) struct Place {
    /// Socket paths have a short limit, so this folder lies apart from the data.
    run: TempDir,
    data: TempDir,
    pub(crate) members: Vec<PathBuf>,
    /// Lines of the configuration before the volume's.
    pub(crate) extra: String,
    /// Lines of the volume's own table.
    of_volume: String,
}

impl Place {
    /// A place without a volume.
    pub(crate) fn empty(members: usize) -> Self {
        let run = tempfile::tempdir().expect("a temporary folder");
        let data = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        Self::of(run, data, members)
    }

    /// As `empty`, open to every user; `None`, with a line printed, where that is impossible.
    pub(crate) fn open_to_all(members: usize) -> Option<Self> {
        Some(Self::of(open_folder()?, open_folder()?, members))
    }

    fn of(run: TempDir, data: TempDir, members: usize) -> Self {
        for folder in [run.path(), data.path()] {
            // Other users take part in some flows.
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(folder, mode).expect("our own folder");
        }
        let members = (0..members).map(|index| data.path().join(format!("member-{index}")));
        let members = members.collect();
        // Flows run in parallel: no two may have one port.
        let extra = "device.direct = \"optional\"\nmetrics.listen = \"off\"\n\
                     sidecar.wait_for_drives = \"0s\"\n"
            .into();
        Self { run, data, members, extra, of_volume: String::new() }
    }

    /// A place with a volume of this size at least, in stripes of 256 KiB.
    pub(crate) fn with_volume(members: usize, bytes: u64) -> Self {
        let place = Self::empty(members);
        place.create(bytes, "256KiB").expect(0, &[]);
        place
    }

    /// Makes the volume, also where an earlier one was wiped.
    pub(crate) fn create(&self, bytes: u64, stripe: &str) -> Outcome {
        let size = format!("{}MiB", bytes.div_ceil(1 << 20));
        let mut command = kvrail();
        command.args(["volume", "create", VOLUME, "--size", &size, "--stripe", stripe]);
        run(command.args(["--direct", "optional", "--quiet", "--force"]).args(&self.members))
    }

    /// A place with a store of this size at least.
    pub(crate) fn with_store(members: usize, bytes: u64) -> Self {
        Self::with_store_of(members, bytes, &[])
    }

    /// As `with_store`, with more arguments.
    pub(crate) fn with_store_of(members: usize, bytes: u64, arguments: &[&str]) -> Self {
        let place = Self::empty(members);
        let size = format!("{}MiB", bytes.div_ceil(1 << 20));
        let mut command = kvrail();
        command.args(["volume", "create", VOLUME, "--kind", "store", "--size", &size]);
        command.args(arguments);
        command.args(["--direct", "optional", "--quiet"]).args(&place.members);
        run(&mut command).expect(0, &[]);
        place
    }

    /// A place with a store of this size on each member.
    pub(crate) fn with_shaped_store(members: usize, shape: &StoreShape) -> Self {
        let place = Self::empty(members);
        place.create_store(shape).expect(0, &[]);
        place
    }

    /// Makes the store, also where an earlier volume was wiped.
    pub(crate) fn create_store(&self, shape: &StoreShape) -> Outcome {
        let kib = |bytes: u64| format!("{}KiB", bytes.div_ceil(1 << 10));
        let size = kib(shape.member_bytes * self.members.len() as u64);
        let mut command = kvrail();
        command.args(["volume", "create", VOLUME, "--kind", "store", "--size", &size]);
        command.args(["--segment", &kib(shape.segment_bytes)]);
        command.args(["--block-mean", &kib(shape.block_mean), "--fill", "nothing"]);
        run(command.args(["--direct", "optional", "--quiet", "--force"]).args(&self.members))
    }

    /// Adds lines to the configuration, before the volume's.
    pub(crate) fn configure(&mut self, lines: &str) {
        self.extra += lines;
        self.extra.push('\n');
    }

    /// Replaces the lines of the volume's table in the configuration.
    pub(crate) fn configure_volume(&mut self, lines: &str) {
        lines.clone_into(&mut self.of_volume);
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.run.path().join("s")
    }

    /// A path for another file of this flow.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.run.path().join(name)
    }

    /// As `path`, on the disk.
    pub(crate) fn data_path(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    pub(crate) fn data(&self) -> &Path {
        self.data.path()
    }

    /// Writes the configuration file.
    pub(crate) fn configuration(&self) -> PathBuf {
        let path = self.path("kvrail.toml");
        let text = format!(
            "sidecar.socket = {:?}\n{}\n\
             [[volume]]\nname = {VOLUME:?}\nmembers = {:?}\n{}\n",
            self.socket(),
            self.extra,
            self.members,
            self.of_volume
        );
        fs::write(&path, text).expect("our own folder");
        path
    }

    /// `kvrail serve` with this configuration.
    pub(crate) fn serve(&self) -> Command {
        let mut command = kvrail();
        command.args(["serve", "--exit-with-parent", "--config"]).arg(self.configuration());
        command
    }
}
