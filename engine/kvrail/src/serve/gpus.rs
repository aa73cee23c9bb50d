//! GPUs: opened as configured, connected with every device, their pollers started and ended.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use kvrail_cufile::CuFile;
use kvrail_device::open_path;
use kvrail_gpu::cuda::{Cuda, devices};
use kvrail_gpu::{
    BatchPool, Choice, CopyRoute, DirectPath, EmulatedGpu, Gpu, GpuError, GpuIdentity,
    GpuPollerHandle, GpuSeat, GpuSetup, Health, MechanismChoice, MemberFile, Port, PortOptions,
    Staging, StagingOptions, choose, start,
};
use kvrail_memory::AllowedCpu;
use kvrail_poller::Mailbox;
use kvrail_protocol::{GpuMechanism, GpuRoute};
use kvrail_ring::{DeviceIndex, ThreadWaker};
use kvrail_session::ServedGpu;

use super::plan::{Plan, PlannedDevice};
use super::volumes::{MemberSource, Served};
use kvrail_cli::config::{Config, GpuName};
use kvrail_cli::failure::{Exit, Failure, exhausted};

/// How long a poller may take to end: nothing is in flight by then, unless a GPU hangs.
const END_WITHIN: Duration = Duration::from_secs(2);

/// How often its end is looked for.
const LOOK: Duration = Duration::from_millis(2);

/// The GPUs of the configuration, opened.
#[derive(Debug, Default)]
pub(super) struct OpenedGpus {
    pub(super) gpus: Vec<Arc<dyn Gpu>>,
    cufile: Option<Arc<CuFile>>,
    /// Why there is no cuFile, where the mechanism goes on without.
    no_cufile: Option<String>,
}

/// Opens the configured GPUs. CUDA is loaded here, and only where one of its GPUs is named.
///
/// # Errors
/// A GPU that is not there or not usable, cuFile where the mechanism needs it.
pub(super) fn open_all(config: &Config) -> Result<OpenedGpus, Failure> {
    let mut opened = OpenedGpus::default();
    let mut real: Vec<u32> = Vec::new();
    for name in &config.gpu.devices {
        match name {
            GpuName::EmulatedGpu(number) => {
                opened.gpus.push(Arc::new(EmulatedGpu::new(*number, DirectPath::Compat)));
            }
            name => real.extend(numbers(*name).map_err(|error| unusable(name, &error))?),
        }
    }
    if let Some(twice) = real.iter().enumerate().find(|(at, it)| real[..*at].contains(it)) {
        let what = format!("gpu.devices names GPU {} twice: by number and by UUID", twice.1);
        return Err(Failure::new(Exit::Usage, what).with_remedy("name each GPU once"));
    }
    for number in real {
        let cuda = opened.cuda(number, config.gpu.mechanism);
        let cuda = cuda.map_err(|error| unusable(&GpuName::Number(number), &error))?;
        opened.gpus.push(Arc::new(cuda));
    }
    Ok(opened)
}

/// The driver's numbers of what was named.
fn numbers(name: GpuName) -> Result<Vec<u32>, GpuError> {
    let all = devices()?;
    let wanted = |it: &&GpuIdentity| match name {
        GpuName::All => true,
        GpuName::Number(number) => it.index == number,
        GpuName::Uuid(uuid) => it.uuid == uuid,
        GpuName::EmulatedGpu(_) => false,
    };
    let found: Vec<u32> = all.iter().filter(wanted).map(|gpu| gpu.index).collect();
    if found.is_empty() {
        let present: Vec<_> =
            all.iter().map(|gpu| format!("{} ({}, {})", gpu.index, gpu.uuid, gpu.name)).collect();
        let present = if all.is_empty() { "none".to_owned() } else { present.join(", ") };
        return Err(GpuError::NoSuchGpu { wanted: name.to_string(), present });
    }
    Ok(found)
}

impl OpenedGpus {
    /// Opens one GPU, and cuFile with the first where the mechanism may use it.
    fn cuda(&mut self, number: u32, wanted: MechanismChoice) -> Result<Cuda, GpuError> {
        let cuda = Cuda::open(number)?;
        if wanted == MechanismChoice::Staged || self.no_cufile.is_some() {
            return Ok(cuda);
        }
        if let Some(library) = &self.cufile {
            return cuda.with_cufile(Arc::clone(library));
        }
        match cuda.with_direct(wanted.compat()) {
            Ok(cuda) => {
                self.cufile = cuda.cufile().cloned();
                Ok(cuda)
            }
            Err(error) if wanted == MechanismChoice::Auto => {
                self.no_cufile = Some(error.to_string());
                Cuda::open(number)
            }
            Err(error) => Err(error),
        }
    }

    /// How bytes get between one device and one GPU.
    fn route(
        &self,
        gpu: &dyn Gpu,
        device: &PlannedDevice,
        volumes: &[Served],
        wanted: MechanismChoice,
    ) -> Result<Choice, Failure> {
        let refused = |error: GpuError| Failure::new(Exit::Refused, error.to_string());
        let member = match &volumes[device.volume].members[device.member] {
            MemberSource::Claimed(member) => member,
            source @ (MemberSource::Null { .. } | MemberSource::Retired { .. }) => {
                let reason = "a null member has no file".to_owned();
                return match wanted {
                    MechanismChoice::RequireDirect => {
                        let (gpu, device) = (gpu.identity().uuid, source.name());
                        Err(refused(GpuError::NotDirect { device, gpu, reason }))
                    }
                    _ => Ok(Choice { route: CopyRoute::Staged, path: None, reason }),
                };
            }
        };
        let name = member.path().display().to_string();
        // Opened again, because the GPU's library changes the flags of what it is given.
        let own = member.claim.duplicate()?;
        let again = format!("/proc/self/fd/{}", own.as_raw_fd());
        let file = open_path(&again, device.settings.direct).map_err(|error| {
            Failure::new(Exit::Refused, format!("{name}, opened for the GPU: {error}"))
        })?;
        let choice = choose(gpu, MemberFile { name, file }, wanted).map_err(refused)?;
        Ok(match (gpu.direct(), &self.no_cufile) {
            (None, Some(why)) => Choice { reason: format!("auto: {why}"), ..choice },
            _ => choice,
        })
    }
}

fn unusable(name: &GpuName, error: &GpuError) -> Failure {
    match error {
        GpuError::NoSuchGpu { .. } => Failure::new(Exit::Refused, format!("gpu.devices: {error}")),
        GpuError::CuFile(_) => Failure::new(Exit::Refused, format!("GPU {name}: {error}"))
            .with_remedy(
                "make cuFile work (nvidia-fs or PCI peer-to-peer for direct I/O), or set \
                 gpu.mechanism = \"auto\", which goes on without",
            ),
        _ => Failure::new(Exit::Refused, format!("gpu.devices: GPU {name}: {error}")),
    }
}

/// The GPUs at work. Their pollers end when this is dropped: after those of the devices.
#[derive(Debug)]
pub(super) struct Gpus {
    pub(super) served: Vec<ServedGpu>,
    /// One port for each GPU, by device.
    ports: Vec<Vec<Arc<Port>>>,
    pollers: Vec<GpuPollerHandle>,
}

impl Gpus {
    /// Decides how each device and GPU get together, and starts the GPUs' pollers.
    ///
    /// # Errors
    /// Direct I/O that is required and not to be had, memory for staging, threads.
    pub(super) fn start(
        config: &Config,
        opened: &OpenedGpus,
        plan: &Plan,
        (volumes, mailboxes): (&[Served], &[Arc<Mailbox>]),
    ) -> Result<Self, Failure> {
        let ports = vec![Vec::new(); plan.devices.len()];
        let mut gpus = Self { served: Vec::new(), ports, pollers: Vec::new() };
        let wanted = config.gpu.mechanism;
        for (gpu, cpu) in opened.gpus.iter().zip(&plan.gpu_cpus) {
            let choice = |device| opened.route(&**gpu, device, volumes, wanted);
            let choices = plan.devices.iter().map(choice).collect::<Result<Vec<_>, _>>()?;
            let routes = routes(plan, volumes.len(), &choices);
            gpus.add(config, gpu, (plan, *cpu), (&choices, mailboxes))?;
            gpus.served.last_mut().expect("just added").routes = routes;
        }
        Ok(gpus)
    }

    fn add(
        &mut self,
        config: &Config,
        gpu: &Arc<dyn Gpu>,
        (plan, cpu): (&Plan, Option<AllowedCpu>),
        (choices, mailboxes): (&[Choice], &[Arc<Mailbox>]),
    ) -> Result<(), Failure> {
        let refused = |error: GpuError| Failure::new(Exit::Refused, error.to_string());
        let path = choices.iter().find_map(|choice| choice.path);
        let batches = match (path, gpu.direct()) {
            (Some(path), Some(direct)) => Some(BatchPool::new(direct, path).map_err(refused)?),
            _ => None,
        };
        let staging = Staging::new(staging(config)).map_err(|error| refused(error.into()))?;
        let (staging, health) = (Arc::new(staging), Arc::new(Health::default()));
        let to_gpu = ThreadWaker::new().map_err(|errno| exhausted("an eventfd", errno))?;
        let to_gpu = Arc::new(to_gpu);
        let port = |(device, choice): (&PlannedDevice, &Choice)| {
            let poller = plan.poller_of(device.index);
            Port::new(PortOptions {
                gpu: gpu.identity().uuid,
                health: Arc::clone(&health),
                staging: Arc::clone(&staging),
                to_gpu: Arc::clone(&to_gpu),
                to_device: Arc::clone(mailboxes[usize::from(poller.0)].nudge()),
                route: choice.route,
                reason: choice.reason.clone(),
            })
        };
        let ports: Vec<_> = plan.devices.iter().zip(choices).map(port).collect();
        let setup = GpuSetup {
            ports: ports.clone(),
            staging: Arc::clone(&staging),
            batches,
            health: Arc::clone(&health),
            nudge: to_gpu,
            stop: Arc::new(AtomicBool::new(false)),
        };
        let seat = GpuSeat { cpu, spin: Duration::from_nanos(plan.spin_ns) };
        let poller = start(&**gpu, seat, setup);
        self.pollers.push(poller.map_err(|e| Failure::new(Exit::Refused, e.to_string()))?);
        self.ports.iter_mut().zip(ports).for_each(|(own, port)| own.push(port));
        let (gpu, configured) = (Arc::clone(gpu), config.gpu.mechanism);
        let routes = Vec::new();
        let cpu = cpu.map(AllowedCpu::number);
        self.served.push(ServedGpu { gpu, health, staging, cpu, configured, routes });
        Ok(())
    }

    /// Whether there is nothing to bridge.
    pub(super) fn is_empty(&self) -> bool {
        self.served.is_empty()
    }

    /// The ports of a device, one for each GPU.
    pub(super) fn ports_of(&self, device: DeviceIndex) -> Vec<Arc<Port>> {
        self.ports[usize::from(device.0)].clone()
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        self.pollers.iter().for_each(GpuPollerHandle::ask_to_stop);
        let deadline = Instant::now() + END_WITHIN;
        while !self.pollers.iter().all(GpuPollerHandle::is_stopped) && Instant::now() < deadline {
            std::thread::sleep(LOOK);
        }
        for poller in self.pollers.iter().filter(|poller| !poller.is_stopped()) {
            let gpu = poller.identity.uuid;
            tracing::error!("{gpu} does not finish what it began; its poller is left behind");
        }
    }
}

fn staging(config: &Config) -> StagingOptions {
    let (slot, all) = (config.gpu.staging_slot_bytes.bytes(), config.gpu.staging_bytes.bytes());
    StagingOptions {
        slot_bytes: u32::try_from(slot).expect("the configuration bounds slots"),
        slots: u16::try_from(all / slot).expect("the configuration bounds the pool"),
    }
}

/// The report to clients and operators, for each volume.
fn routes(plan: &Plan, volumes: usize, choices: &[Choice]) -> Vec<GpuRoute> {
    let told = |volume: usize| {
        let own = plan.devices.iter().zip(choices).filter(|(device, _)| device.volume == volume);
        let mut members: Vec<(GpuMechanism, &str)> =
            own.map(|(_, choice)| (mechanism(choice), choice.reason.as_str())).collect();
        members.dedup();
        let (mechanism, reason) = match &members[..] {
            [(mechanism, reason)] => (*mechanism, (*reason).to_owned()),
            several => {
                let words: Vec<_> =
                    several.iter().map(|(how, why)| format!("{how} ({why})")).collect();
                let same = several.iter().all(|(mechanism, _)| *mechanism == several[0].0);
                let mechanism = if same { several[0].0 } else { GpuMechanism::Mixed };
                (mechanism, words.join(", "))
            }
        };
        let volume = u16::try_from(volume).expect("the configuration bounds the volumes");
        GpuRoute { volume, mechanism, reason }
    };
    (0..volumes).map(told).collect()
}

fn mechanism(choice: &Choice) -> GpuMechanism {
    match (choice.route, choice.path) {
        (CopyRoute::Staged, _) => GpuMechanism::Staged,
        (CopyRoute::Direct(_), Some(DirectPath::Compat)) => GpuMechanism::Compat,
        (CopyRoute::Direct(_), _) => GpuMechanism::Direct,
    }
}
