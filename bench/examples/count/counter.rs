//! Counting: this program once more, under callgrind, collecting in one part only.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

use crate::arms::{Arm, Part};
use crate::subject::{BATCH, ROUNDS};

/// Bytes of the file that is made when none is named.
const FILE_BYTES: usize = 1 << 20;

/// Instructions of one request.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    /// Which way it went.
    pub(crate) arm: Arm,
    /// The client's share.
    pub(crate) client: f64,
    /// The poller's share.
    pub(crate) poller: f64,
}

impl Count {
    /// All of them.
    pub(crate) fn total(&self) -> f64 {
        self.client + self.poller
    }
}

/// The device named, or a file beside the build: `/tmp` may be memory, which takes no O_DIRECT.
pub(crate) fn device(named: Option<PathBuf>) -> Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path);
    }
    let own = std::env::current_exe()?;
    let path = own.with_extension("data");
    fs::write(&path, vec![0x5a; FILE_BYTES]).with_context(|| path.display().to_string())?;
    File::open(&path)?.sync_all()?;
    Ok(path)
}

/// Counts every part of an arm.
pub(crate) fn count(arm: Arm, device: &Path, scratch: &Path) -> Result<Count> {
    let requests = f64::from(BATCH) * f64::from(ROUNDS);
    let mut count = Count { arm, client: 0.0, poller: 0.0 };
    for &part in arm.parts() {
        let each = instructions(arm, part, device, scratch)? as f64 / requests;
        match part {
            Part::Client => count.client = each,
            Part::Poller => count.poller = each,
        }
    }
    Ok(count)
}

fn instructions(arm: Arm, part: Part, device: &Path, scratch: &Path) -> Result<u64> {
    let out = scratch.join("callgrind");
    let part = part.to_possible_value().context("every part has a name")?;
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--fair-sched=yes", "--collect-atstart=no"])
        .arg(format!("--toggle-collect=*counted_{}*", part.get_name()))
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .args(["--part", part.get_name(), "--arm", &arm.to_string(), "--device"])
        .arg(device)
        .stdin(Stdio::null())
        .output()
        .context("valgrind did not start; install it (apt install valgrind)")?;
    if !run.status.success() {
        let said = String::from_utf8_lossy(&run.stderr);
        bail!("{arm} under valgrind ended with {}: {said}", run.status);
    }
    let text = fs::read_to_string(&out).context("valgrind left no counts")?;
    let totals = text.lines().find_map(|line| line.strip_prefix("totals:"));
    let counted = totals.context("no totals among valgrind's counts")?.trim().parse()?;
    ensure!(counted > 0, "{arm}: nothing was counted; the counted functions were inlined away");
    Ok(counted)
}
