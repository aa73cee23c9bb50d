//! Which arms run here, and how each runs a case.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use kvrail_device::{ModeName, Namespace};

use crate::cpu::{CpuMeter, MachineMeter, Meters, usable_cores};
use crate::drive::{Clients, DrivenArm, Load, measure};
use crate::environment::ArmMode;
use crate::files::FilesTarget;
use crate::fio::Fio;
use crate::harness::{Ground, Sidecar};
use crate::options::{ArmName, BenchOptions};
use crate::plan::{CHECKED, Case, FILES, KVRAIL, Op, RAW, STORE};
use crate::port::Target;
use crate::raw::RawTarget;
use crate::runner::Outcome;
use crate::sidecar::StoreTarget;
use crate::versions::VersionMap;

/// The least number of cores at which clients have CPUs of their own.
const CORES_FOR_CLIENTS: usize = 4;

/// The data that an arm moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmKind {
    /// Bytes of the volume, at places.
    Volume,
    /// Blocks of the store, by keys.
    Store,
    /// Blocks in files of their own.
    Files,
}

/// An arm that our own drivers drive.
#[derive(Debug)]
pub struct Driven {
    /// Its name in the report.
    pub name: String,
    /// The data that it moves.
    pub kind: ArmKind,
    /// Where it goes.
    pub target: Box<dyn Target>,
    /// Why it uses its mode.
    pub reason: String,
    /// The CPU accounts of its cost: this process, its helpers, the machine.
    pub meters: Meters,
    /// Cores of its client threads, in turn; empty leaves them to the kernel.
    pub cores: Vec<u32>,
}

/// The arms of a run.
#[derive(Debug, Default)]
pub struct Arms {
    /// Driven by us, in the order of the first round.
    pub driven: Vec<Driven>,
    /// The way to blocks in files of their own.
    pub(crate) files: Option<Arc<FilesTarget>>,
    /// fio, and in how many rounds it runs.
    pub fio: Option<(Fio, u32)>,
    /// Whether lanes are to be measured.
    pub lanes: bool,
    /// Omitted arms, with reasons.
    pub notes: Vec<String>,
}

impl Arms {
    /// Builds what was asked for, or all there is. Takes the sidecar's targets out of the ground.
    ///
    /// # Errors
    /// When an arm that was named is not to be had.
    pub fn build(options: &BenchOptions, ground: &mut Ground, pattern_bytes: u64) -> Result<Self> {
        let mut arms = Self::default();
        let named = !options.named_arms().is_empty();
        let all = [
            ArmName::Kvrail,
            ArmName::Raw(None),
            ArmName::Store,
            ArmName::Fio,
            ArmName::Lanes,
            ArmName::Memory,
        ];
        let store = ground.sidecar.as_mut().and_then(|sidecar| sidecar.store.take());
        let pids = ground.sidecar.as_ref().map_or_else(Vec::new, |sidecar| sidecar.pids.clone());
        for name in if named { options.named_arms() } else { all.to_vec() } {
            let missing = match name {
                ArmName::Kvrail => arms.add_volume(options, ground, KVRAIL)?,
                ArmName::Checked => arms.add_volume(options, ground, CHECKED)?,
                ArmName::Store => arms.add_store(options, ground, store.as_ref(), &pids)?,
                ArmName::Files => arms.add_files(options, ground)?,
                ArmName::Raw(mode) => arms.add_raw(options, ground, mode)?,
                ArmName::Fio => arms.add_fio(options, ground, pattern_bytes)?,
                ArmName::Lanes => {
                    arms.lanes = true;
                    None
                }
                // Behind all others: `run` asks the harness for the sidecar that it needs.
                ArmName::Memory => None,
            };
            if let Some(why) = missing {
                ensure!(!named, "the requested arm is not available: {why}");
                arms.notes.push(why);
            }
        }
        Ok(arms)
    }

    fn add_volume(
        &mut self,
        options: &BenchOptions,
        ground: &Ground,
        name: &str,
    ) -> Result<Option<String>> {
        let Some(Sidecar { target, pids, .. }) = &ground.sidecar else {
            return Ok(Some(format!("{name}: no sidecar runs")));
        };
        let target = target.clone();
        let target: Box<dyn Target> =
            if name == CHECKED { Box::new(target.checked()) } else { Box::new(target) };
        let (name, reason) = (name.to_owned(), ground.reason.clone());
        let cores = chosen(options, apart(&ground.poller_cores, usable_cores()?));
        let (kind, meters) = (ArmKind::Volume, meters(pids)?);
        self.driven.push(Driven { name, kind, target, reason, meters, cores });
        Ok(None)
    }

    fn add_store(
        &mut self,
        options: &BenchOptions,
        ground: &Ground,
        store: Option<&Arc<StoreTarget>>,
        pids: &[i32],
    ) -> Result<Option<String>> {
        let Some(store) = store.map(Arc::clone) else {
            let why = match options.members.is_empty() {
                true => {
                    "store: no sidecar serves one here; with --attach, name it by --store-volume"
                }
                false => "store: --member's devices hold the volume; use --dir, or --attach to one",
            };
            return Ok(Some(why.to_owned()));
        };
        let target: Box<dyn Target> = Box::new(store);
        let (name, reason) = (STORE.to_owned(), "as the volume".to_owned());
        let cores = chosen(options, apart(&ground.poller_cores, usable_cores()?));
        let (kind, meters) = (ArmKind::Store, meters(pids)?);
        self.driven.push(Driven { name, kind, target, reason, meters, cores });
        Ok(None)
    }

    /// All that files need is this process.
    fn add_files(&mut self, options: &BenchOptions, ground: &Ground) -> Result<Option<String>> {
        let Some(places) = places(options, ground) else {
            let why = "lies beside a volume in files of the benchmark's own; use --dir";
            return Ok(Some(format!("{FILES}: {why}")));
        };
        let files = Arc::new(FilesTarget::new(places));
        self.files = Some(Arc::clone(&files));
        let cores = chosen(options, apart(&ground.poller_cores, usable_cores()?));
        self.driven.push(Driven {
            name: FILES.to_owned(),
            kind: ArmKind::Files,
            target: Box::new(files),
            reason: "a file for each block".to_owned(),
            meters: meters(&[])?,
            cores,
        });
        Ok(None)
    }

    fn add_raw(
        &mut self,
        options: &BenchOptions,
        ground: &Ground,
        mode: Option<ModeName>,
    ) -> Result<Option<String>> {
        if ground.members.is_empty() {
            return Ok(Some("raw: the volume's devices cannot be reached from here".to_owned()));
        }
        let (name, reason) = match mode {
            None => (RAW.to_owned(), "as the sidecar".to_owned()),
            Some(mode) => (format!("{RAW}:{mode}"), "requested".to_owned()),
        };
        let mode = mode.unwrap_or(ground.mode);
        let target = RawTarget::open(&ground.members, ground.geometry, ground.io, mode)?;
        let target: Box<dyn Target> = Box::new(target);
        let cores = chosen(options, pollers_first(&ground.poller_cores, usable_cores()?));
        let (kind, meters) = (ArmKind::Volume, meters(&[])?);
        self.driven.push(Driven { name, kind, target, reason, meters, cores });
        Ok(None)
    }

    fn add_fio(
        &mut self,
        options: &BenchOptions,
        ground: &Ground,
        pattern_bytes: u64,
    ) -> Result<Option<String>> {
        let program = Path::new("fio").to_owned();
        let Some(version) = Fio::find(&program)? else {
            return Ok(Some("fio: not installed".to_owned()));
        };
        let [member] = ground.members.as_slice() else {
            return Ok(Some("fio: runs on volumes of one member only".to_owned()));
        };
        let from = ground.geometry.data_offset;
        let (scratch, end) = (from + pattern_bytes, from + ground.geometry.capacity());
        let (mode, io) = (ground.mode, ground.io);
        let file = if mode.passes_through() {
            Namespace::at(&member.to_string_lossy())?.path.into()
        } else {
            member.clone()
        };
        let (read, write) = (from..scratch, scratch..end.max(scratch));
        let fio = Fio { program, version, file, mode, io, read, write };
        let rounds = if options.named_arms().is_empty() { 1 } else { options.rounds };
        if rounds < options.rounds {
            self.notes.push("fio: all rounds but one; name it in --arms for all".to_owned());
        }
        let note = "fio: open loops, and writes where the volume has no room behind the pattern";
        self.notes.push(note.to_owned());
        self.fio = Some((fio, rounds));
        Ok(None)
    }

    /// The modes in force, for the report.
    #[must_use]
    pub fn modes(&self) -> Vec<ArmMode> {
        let driven = self.driven.iter().map(|arm| ArmMode {
            arm: arm.name.clone(),
            mode: arm.target.mode(),
            reason: arm.reason.clone(),
            client_cores: arm.cores.clone(),
        });
        let fio = self.fio.iter().map(|(fio, _)| ArmMode {
            arm: "fio".to_owned(),
            mode: fio.mode(),
            reason: "as the sidecar".to_owned(),
            client_cores: Vec::new(),
        });
        driven.chain(fio).collect()
    }

    /// The arm that fills and verifies the volume: raw where there is one.
    #[must_use]
    pub fn keeper(&self) -> Option<&dyn Target> {
        let volumes = || self.driven.iter().filter(|arm| arm.kind == ArmKind::Volume);
        let raw = volumes().find(|arm| arm.name == RAW);
        raw.or(volumes().next()).map(|arm| arm.target.as_ref())
    }

    /// Whether fio runs this case in this round.
    #[must_use]
    pub fn fio_for(&self, case: &Case, round: u32) -> Option<&Fio> {
        let (fio, rounds) = self.fio.as_ref()?;
        (round < *rounds && fio.takes(case)).then_some(fio)
    }
}

impl Driven {
    /// As the drivers see it.
    #[must_use]
    pub fn way(&self) -> DrivenArm<'_> {
        DrivenArm { target: self.target.as_ref(), meters: &self.meters, cores: &self.cores }
    }

    /// Runs a case once.
    ///
    /// # Errors
    /// When the arm breaks down.
    pub fn run(
        &self,
        case: &Case,
        load: Load,
        clients: &Clients,
        map: &mut VersionMap,
    ) -> Result<Outcome> {
        measure(self.way(), case, load, clients, map).map(Outcome::from)
    }

    /// Operations per second of a short closed loop of this shape.
    ///
    /// # Errors
    /// When the arm breaks down.
    pub fn calibrate(&self, case: &Case, clients: &Clients, map: &mut VersionMap) -> Result<f64> {
        let short = Clients { read_back: Duration::ZERO, ..clients.clone() };
        Ok(self.run(case, Load::Closed, &short, map)?.figures.iops)
    }
}

/// Where files lie: beside the volume's files, on the same storage.
fn places(options: &BenchOptions, ground: &Ground) -> Option<Vec<PathBuf>> {
    let ours = options.attach.is_none() && options.members.is_empty();
    let places = ground.members.iter().filter_map(|member| member.parent());
    let places: Vec<_> = places.map(Path::to_owned).collect();
    (ours && !places.is_empty()).then_some(places)
}

fn meters(pids: &[i32]) -> Result<Meters> {
    Ok(Meters { processes: CpuMeter::new(pids)?, machine: MachineMeter::find() })
}

/// The cores that were asked for, or these.
fn chosen(options: &BenchOptions, otherwise: Vec<u32>) -> Vec<u32> {
    if options.client_cores.is_empty() { otherwise } else { options.client_cores.clone() }
}

/// Cores without pollers, where there are many: clients of an open loop never sleep, and pollers do
/// not move. Of few, none: that leaves it to the kernel, which knows when two threads are better
/// off on one.
fn apart(pollers: &[u32], mut usable: Vec<u32>) -> Vec<u32> {
    let many = usable.len() >= CORES_FOR_CLIENTS;
    usable.retain(|core| many && !pollers.contains(core));
    usable
}

/// The usable cores, those of the pollers first; none, which leaves it to the kernel, where no
/// poller is bound to one.
fn pollers_first(pollers: &[u32], mut usable: Vec<u32>) -> Vec<u32> {
    usable.retain(|core| !pollers.is_empty() && !pollers.contains(core));
    [pollers, &usable].concat()
}

/// Runs a case with fio once.
///
/// # Errors
/// When fio fails.
pub fn run_fio(fio: &Fio, case: &Case, options: &BenchOptions) -> Result<Outcome> {
    let figures = fio.run(case, options)?;
    Ok(Outcome { figures, sample: None, failures: Vec::new(), compared: (0, 0), evicted: 0 })
}

/// Bytes beside the pattern that fio's writes need, if it can run at all and anything writes.
#[must_use]
pub fn scratch_bytes(options: &BenchOptions, cases: &[Case]) -> u64 {
    let wanted = options.wants(ArmName::Fio);
    let writes = cases.iter().filter(|case| matches!(case.op, Op::Write | Op::Mixed));
    let least = writes.map(Case::span_bytes_min).max();
    match least {
        Some(least) if wanted => least.max(options.volume_size / 8),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::{apart, pollers_first};

    #[test]
    fn clients_keep_off_the_pollers_where_there_are_cores_for_both() {
        assert!(apart(&[1], vec![0, 1]).is_empty(), "left to the kernel");
        assert_eq!(apart(&[1], vec![0, 1, 2, 3]), [0, 2, 3]);
        assert_eq!(pollers_first(&[1], vec![0, 1]), [1, 0]);
        assert!(pollers_first(&[], vec![0, 1]).is_empty(), "left to the kernel");
    }
}
