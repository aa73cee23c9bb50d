//! A sidecar, and blocks of KVBM.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kvbm_engine::{BlockId, SequenceHash};
use kvbm_physical::layout::{BlockDimension, LayoutConfig, PhysicalLayout};
use kvbm_physical::transfer::{NixlAgent, compute_block_checksums};
use kvrail_client::Client;
use kvrail_kvbm::{HostMemory, KvrailBlocks, Options};
use tempfile::TempDir;

pub(crate) const BLOCKS: usize = 96;
pub(crate) const MODEL: &str = "llama-3-70b rev 1 bf16 NHD";
pub(crate) const RANK: (usize, usize) = (0, 1);

/// A sidecar with a store in a folder.
pub(crate) struct Host {
    pub(crate) folder: TempDir,
    sidecar: Option<Child>,
}

impl Host {
    pub(crate) fn start() -> Self {
        Self::with("256MiB", "unlimited")
    }

    pub(crate) fn with(size: &str, budget: &str) -> Self {
        let mut host = Self { folder: tempfile::tempdir().unwrap(), sidecar: None };
        let image = host.folder.path().join("kv.img");
        let create = ["volume", "create", "kv", "--kind", "store", "--size", size];
        let more = ["--block-mean", "16KiB", "--direct", "optional", "--quiet"];
        let made = kvrail().args(create).args(more).arg(image).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        host.serve(budget);
        host
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    pub(crate) fn serve(&mut self, budget: &str) {
        let folder = self.folder.path().display();
        let settings = [
            format!("sidecar.socket={folder}/s"),
            format!("volume=[{{name='kv', members=['{folder}/kv.img'], write_budget='{budget}'}}]"),
            "device.direct=optional".to_owned(),
            "metrics.listen=off".to_owned(),
        ];
        let mut command = kvrail();
        command.args(["serve", "--exit-with-parent"]);
        command.args(settings.map(|setting| format!("--set={setting}"))).stderr(Stdio::null());
        self.sidecar = Some(command.spawn().unwrap());
        within(30, || Client::attach(self.socket()).ok());
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut sidecar) = self.sidecar.take() {
            sidecar.kill().unwrap();
            sidecar.wait().unwrap();
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let pid = self.sidecar.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    pub(crate) fn blocks(&self, model: &str, layout: &PhysicalLayout) -> KvrailBlocks {
        let options = Options { timeout: Duration::from_secs(1), ..Options::new(self.socket()) };
        KvrailBlocks::new(options, model, RANK, layout).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.kill();
    }
}

fn kvrail() -> Command {
    Command::new(std::env::var_os("KVRAIL_BINARY").expect("`scripts/dev kvbm test` sets it"))
}

fn within<T>(seconds: u64, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(seconds), "not within {seconds} s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Blocks of 4 layers of K and V, `inner` numbers of two bytes for each of 16 tokens.
pub(crate) fn config(inner: usize) -> LayoutConfig {
    let mut config = LayoutConfig::builder();
    config.num_blocks(BLOCKS).num_layers(4).outer_dim(2).page_size(16).inner_dim(inner);
    config.build().unwrap()
}

pub(crate) fn agent() -> NixlAgent {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("agent {}", NUMBER.fetch_add(1, Ordering::Relaxed));
    NixlAgent::with_backends(&name, &["POSIX"]).expect("NIXL's library, and its plug-in POSIX")
}

/// Memory of KVBM's own, private to this process.
pub(crate) fn private(inner: usize) -> PhysicalLayout {
    let builder = PhysicalLayout::builder(agent()).with_config(config(inner));
    builder.fully_contiguous().allocate_system().build().unwrap()
}

/// As `private`, each layer for itself.
pub(crate) fn layers(inner: usize) -> PhysicalLayout {
    let builder = PhysicalLayout::builder(agent()).with_config(config(inner));
    let builder = builder.layer_separate(BlockDimension::BlockIsFirstDim);
    builder.allocate_system().build().unwrap()
}

/// Memory that drives reach.
pub(crate) fn shared(inner: usize) -> PhysicalLayout {
    let memory = HostMemory::new(config(inner).required_bytes()).unwrap();
    let builder = PhysicalLayout::builder(agent()).with_config(config(inner)).fully_contiguous();
    builder.with_memory_regions(vec![memory]).unwrap().build().unwrap()
}

pub(crate) fn hashes(count: usize) -> Vec<SequenceHash> {
    hashes_of(41, count)
}

/// Hashes of a prompt's blocks.
pub(crate) fn hashes_of(prompt: u64, count: usize) -> Vec<SequenceHash> {
    let next = |last: &SequenceHash| Some(last.extend(last.current_sequence_hash() ^ 7));
    std::iter::successors(Some(SequenceHash::root(prompt)), next).take(count).collect()
}

/// The records of blocks are written a moment after them.
pub(crate) fn settled() {
    std::thread::sleep(Duration::from_millis(500));
}

pub(crate) fn sums(layout: &PhysicalLayout, ids: impl Iterator<Item = BlockId>) -> Vec<String> {
    let ids: Vec<BlockId> = ids.collect();
    let sums = compute_block_checksums(layout, &ids).unwrap();
    ids.iter().map(|id| sums[id].clone()).collect()
}

pub(crate) fn good(ends: &[Result<SequenceHash, SequenceHash>]) -> usize {
    ends.iter().filter(|end| end.is_ok()).count()
}
