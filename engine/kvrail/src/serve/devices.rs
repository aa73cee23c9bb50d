//! From planned devices to opened ones. Opening happens on the poller's thread: a ring belongs to
//! the thread that drives it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use kvrail_device::{
    AnyDevice, ChosenMode, DeviceError, DirectIo, KernelThread, KnownModes, ModeChoice, ModeName,
    NullDevice, NullOptions, UringOptions,
};
use kvrail_poller::PollerHandle;
use kvrail_volume::{Claim, IoPath, VolumeError};

use super::plan::{Plan, PlannedDevice};
use super::takeover::Takeover;
use super::volumes::{MemberSource, Served};
use kvrail_cli::failure::Failure;

/// The source of a device.
#[derive(Debug)]
pub(super) enum DeviceSource {
    /// A claimed member in the mode that is configured; the claim stays with the volume.
    Fixed(ModeName, UringOptions),
    /// The same in the mode that is found best. Known are what the sidecar had found that this one
    /// takes over from, and what this one has found on others.
    Auto(Option<ChosenMode>, Arc<KnownModes>, UringOptions),
    /// Nothing.
    Null(NullOptions),
}

/// One source for each device of the plan, in order; each is taken by its poller.
pub(super) fn sources(
    plan: &Plan,
    served: &[Served],
    takeover: &Takeover,
    tether: &Arc<OwnedFd>,
) -> Result<Vec<Option<DeviceSource>>, Failure> {
    let known = Arc::new(KnownModes::default());
    let source = |device| {
        let found = source(plan, device, &served[device.volume], (takeover, &known))?;
        Ok(Some(found.tethered(tether)))
    };
    plan.devices.iter().map(source).collect()
}

fn source(
    plan: &Plan,
    device: &PlannedDevice,
    volume: &Served,
    (takeover, known): (&Takeover, &Arc<KnownModes>),
) -> Result<DeviceSource, Failure> {
    let settings = &device.settings;
    Ok(match &volume.members[device.member] {
        MemberSource::Retired { .. } => unreachable!("only what is served is retired"),
        MemberSource::Null { bytes } => DeviceSource::Null(NullOptions {
            capacity_bytes: *bytes,
            logical_block: 512,
            depth: settings.queue_depth,
        }),
        MemberSource::Claimed(member) => {
            let path = member.path().display().to_string();
            let found = takeover.found(volume.uuid, &path).cloned();
            let block = volume.geometry.logical_block;
            let options = options((&member.claim, block), device, plan.spare_cpu)?;
            match settings.mode.fixed() {
                Some(&mode) => DeviceSource::Fixed(mode, options),
                None => DeviceSource::Auto(found, Arc::clone(known), options),
            }
        }
    })
}

impl DeviceSource {
    /// Its rings hold the pipe open.
    fn tethered(mut self, tether: &Arc<OwnedFd>) -> Self {
        if let Self::Fixed(_, options) | Self::Auto(_, _, options) = &mut self {
            options.tether = Some(Arc::clone(tether));
        }
        self
    }

    /// Opens the device on this thread.
    pub(super) fn open(self) -> Result<AnyDevice, DeviceError> {
        match self {
            Self::Null(options) => Ok(AnyDevice::Null(Box::new(NullDevice::new(options)))),
            Self::Fixed(mode, options) => AnyDevice::open(ModeChoice::Fixed(mode), options),
            Self::Auto(found, known, options) => {
                AnyDevice::open_auto(found.as_ref(), &known, options)
            }
        }
    }
}

/// Whether the rings of all devices end behind a kill once their transfers have: only then a pipe
/// that they hold shows it.
pub(super) fn end_behind_a_kill(pollers: &[PollerHandle]) -> bool {
    let devices = pollers.iter().flat_map(|poller| &poller.devices);
    let mut modes = devices.filter_map(|(_, device)| device.mode.parse::<ModeName>().ok());
    modes.all(ModeName::ends_behind_a_kill)
}

/// How a claimed member of a volume with such blocks is to be opened.
///
/// # Errors
/// `VolumeError` when the process has no descriptors left.
pub(super) fn options(
    (claim, block): (&Claim, u32),
    device: &PlannedDevice,
    spare_cpu: Option<u32>,
) -> Result<UringOptions, VolumeError> {
    let (path, fd) = (claim.path().display().to_string(), claim.duplicate()?);
    let (settings, write_stream) = (&device.settings, device.write_stream);
    let direct = match claim.io() {
        IoPath::Direct => settings.direct,
        IoPath::Buffered => DirectIo::Off,
    };
    let tried_block = claim.promised_block().map(|_| block);
    let idle_ms = settings.sq_idle.duration().as_millis();
    let thread = KernelThread {
        cpu: settings.sq_cpu.fixed().map(|&cpu| u32::from(cpu)).or(spare_cpu),
        idle_ms: u32::try_from(idle_ms).unwrap_or(u32::MAX),
    };
    let depth = settings.queue_depth;
    let options = UringOptions::new(path, fd);
    Ok(UringOptions { direct, depth, thread, write_stream, tried_block, ..options })
}
