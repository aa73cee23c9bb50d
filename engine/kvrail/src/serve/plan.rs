//! Which poller drives which device, and where it runs.

use std::num::NonZeroU8;
use std::path::PathBuf;
use std::sync::Arc;

use kvrail_device::WriteStream;
use kvrail_gpu::Gpu;
use kvrail_memory::{AllowedCpu, Near, Topology};
use kvrail_poller::{CpuBinding, DeviceBudget, InFlightBytes, Route};
use kvrail_protocol::{SpinHints, StoreInfo, VolumeContent, VolumeInfo};
use kvrail_ring::limits::POLLERS_MAX;
use kvrail_ring::{DeviceIndex, PollerIndex};
use kvrail_session::NumaPolicy;
use kvrail_store::Members;
use kvrail_volume::Purpose;

use super::numa;
use super::volumes::{MemberSource, Served};
use kvrail_cli::config::{Auto, Config, DeviceConfig};
use kvrail_cli::failure::{Exit, Failure};

/// Longest spin of a poller: the time of a client that is woken first, 35 to 45 us in virtual
/// machines, and of a small read of a fast drive. A poller spins only where that paid lately, so
/// that three times 20 us costs no more CPU (`bench/NOTES.md`).
const SPIN_NS: u64 = 60_000;

/// Longest spin of a client for a completion: a wake-up costs 5 to 20 us, and a small read comes
/// back within this. Larger blocks are slept through, as each client learns by itself.
const SPIN_CLIENT_NS: u64 = 200_000;

/// The least number of cores at which one is left for the kernel threads of sqpoll rings.
const CORES_FOR_KERNEL_THREADS: usize = 4;

/// A device and whose it is.
#[derive(Clone, Debug)]
pub(crate) struct PlannedDevice {
    pub(crate) index: DeviceIndex,
    /// Place of its volume in the configuration.
    pub(crate) volume: usize,
    /// Place in the volume.
    pub(crate) member: usize,
    pub(crate) settings: DeviceConfig,
    pub(crate) write_stream: WriteStream,
}

/// A poller, where it runs and what it drives.
#[derive(Clone, Debug)]
pub(crate) struct PlannedPoller {
    pub(crate) seat: CpuBinding,
    pub(crate) devices: Vec<DeviceIndex>,
}

/// Everything that is decided before anything is started.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) devices: Vec<PlannedDevice>,
    pub(crate) pollers: Vec<PlannedPoller>,
    pub(crate) spin_ns: u64,
    pub(crate) beat_ns: u64,
    pub(crate) cores: usize,
    /// Where each GPU's poller runs.
    pub(crate) gpu_cpus: Vec<Option<AllowedCpu>>,
    /// A CPU for kernel threads of sqpoll rings, where one is left.
    pub(crate) spare_cpu: Option<u32>,
    /// Where arenas lie.
    pub(crate) numa: NumaPolicy,
    /// Notes for the operator.
    pub(crate) notes: Vec<String>,
}

impl Plan {
    /// Decides.
    pub(crate) fn make(
        config: &Config,
        served: &[Served],
        gpus: &[Arc<dyn Gpu>],
        topology: &Topology,
    ) -> Result<Self, Failure> {
        let devices = devices(config, served);
        let cores = topology.usable_cores().max(1);
        let member = |device: &PlannedDevice| &served[device.volume].members[device.member];
        let near: Vec<_> = devices
            .iter()
            .map(|device| numa::near(member(device), topology).unwrap_or_default())
            .collect();
        let disks: Vec<_> =
            devices.iter().map(|device| numa::disk(member(device), topology)).collect();
        let shares = shares(config, &disks, cores.saturating_sub(gpus.len()));
        let count = shares.len();
        let all = Near::all(near.iter());
        let near: Vec<_> = shares
            .iter()
            .map(|share| Near::all(share.iter().map(|&device| &near[device])))
            .collect();
        let cpus = cpus(config, topology, &near);
        let mut notes: Vec<String> =
            served.iter().flat_map(|volume| volume.notes.iter().cloned()).collect();
        if count < devices.len() {
            notes.push(format!(
                "{} devices share {count} poller(s): a disk needs no more than one, and {cores} \
                 core(s) are usable",
                devices.len()
            ));
        }
        let numa = numa::policy(config, topology, all.node)?;
        notes.extend(numa::note(&numa));
        let own = seats("poller", &cpus, topology)?;
        let pollers =
            shares.iter().zip(&own).enumerate().map(|(index, (share, &cpu))| PlannedPoller {
                seat: CpuBinding { index: PollerIndex(narrow(index)), cpu },
                devices: share.iter().map(|&device| DeviceIndex(narrow(device))).collect(),
            });
        let spin_ns = match config.pollers.busy_poll_max.fixed() {
            Some(spin) => spin.ns(),
            None if cores > 1 => SPIN_NS,
            None => 0,
        };
        let near_gpus: Vec<_> =
            gpus.iter().map(|gpu| numa::near_gpu(&gpu.identity().pci_address)).collect();
        let gpu_cpus = cpus_of_gpus(config, topology, &cpus, &near_gpus)?;
        let taken = cpus.iter().chain(&gpu_cpus).flatten().copied();
        let taken: Vec<u32> = taken.chain(promised(config)).collect();
        let free = topology
            .cpus_by_preference(&Near::default())
            .into_iter()
            .find(|cpu| !taken.contains(cpu));
        let spare_cpu = free.filter(|_| cores >= CORES_FOR_KERNEL_THREADS);
        let gpu_cpus = seats("the poller of GPU", &gpu_cpus, topology)?;
        let beat_ns = config.pollers.heartbeat.ns();
        let pollers = pollers.collect();
        Ok(Self { devices, pollers, spin_ns, beat_ns, cores, gpu_cpus, spare_cpu, numa, notes })
    }

    /// The in-flight limit of a device.
    pub(crate) fn budget(&self, device: DeviceIndex) -> DeviceBudget {
        let settings = &self.devices[usize::from(device.0)].settings;
        let fixed = settings.in_flight_bytes.fixed();
        let bytes =
            fixed.map_or(InFlightBytes::Followed, |size| InFlightBytes::Fixed(size.bytes()));
        DeviceBudget { operations: settings.queue_depth, bytes }
    }

    /// The poller that drives a device.
    pub(crate) fn poller_of(&self, device: DeviceIndex) -> PollerIndex {
        let of = |poller: &&PlannedPoller| poller.devices.contains(&device);
        self.pollers.iter().find(of).expect("every device has a poller").seat.index
    }

    /// The machine's facts that limit the clients' spinning.
    pub(crate) fn hints(&self) -> SpinHints {
        let spinning = if self.spin_ns == 0 { 0 } else { self.pollers.len() + self.gpu_cpus.len() };
        SpinHints {
            spin_ns: if self.spin_ns == 0 { 0 } else { SPIN_CLIENT_NS },
            cores: u32::try_from(self.cores).unwrap_or(u32::MAX),
            spinning_pollers: u32::try_from(spinning).unwrap_or(u32::MAX),
        }
    }
}

fn devices(config: &Config, served: &[Served]) -> Vec<PlannedDevice> {
    let mut devices = Vec::new();
    for (volume, (settings, opened)) in config.volume.iter().zip(served).enumerate() {
        for member in 0..opened.members.len() {
            let settings = config.device_of(settings);
            let write_stream = write_stream(&settings, &opened.purpose);
            let index = DeviceIndex(narrow(devices.len()));
            devices.push(PlannedDevice { index, volume, member, settings, write_stream });
        }
    }
    devices
}

/// A store is a ring that is overwritten front to back, unlike the drive's other data: by default
/// it has a stream of its own.
fn write_stream(settings: &DeviceConfig, purpose: &Purpose) -> WriteStream {
    match (settings.write_stream, purpose) {
        (Auto::Fixed(number), _) => {
            NonZeroU8::new(number).map_or(WriteStream::Unnamed, WriteStream::Number)
        }
        (Auto::Auto, Purpose::Store(_)) => WriteStream::Apart,
        (Auto::Auto, Purpose::Raw) => WriteStream::Unnamed,
    }
}

/// Cores that are left for pollers of devices and for clients, for the GPUs that are named.
pub(super) fn cores_for(config: &Config, topology: &Topology) -> usize {
    topology.usable_cores().max(1).saturating_sub(config.gpu.devices.len())
}

/// As many as are configured, or one for each disk while a core is left for the clients.
pub(super) fn poller_count(config: &Config, devices: usize, disks: usize, cores: usize) -> usize {
    let wanted = match (config.pollers.count.fixed(), config.pollers.cpus.fixed()) {
        (Some(&count), _) => usize::from(count),
        (None, Some(cpus)) => cpus.len(),
        (None, None) => disks.min(cores.saturating_sub(1)),
    };
    wanted.clamp(1, devices.clamp(1, POLLERS_MAX as usize))
}

/// The devices of each poller. What lies on one disk has one poller, which then runs where the
/// disk interrupts, unless more pollers are configured than there are disks. Devices that lie on
/// no disk count as one each.
fn shares(config: &Config, disks: &[Option<PathBuf>], cores: usize) -> Vec<Vec<usize>> {
    let first = |device: usize| match &disks[device] {
        Some(disk) => disks.iter().position(|other| other.as_ref() == Some(disk)).expect("its own"),
        None => device,
    };
    let mut apart: Vec<usize> =
        (0..disks.len()).filter(|&device| first(device) == device).collect();
    let count = poller_count(config, disks.len(), apart.len(), cores);
    let together = count <= apart.len();
    if !together {
        apart = (0..disks.len()).collect();
    }
    let mut shares = vec![Vec::new(); count];
    for device in 0..disks.len() {
        let of = if together { first(device) } else { device };
        let place = apart.iter().position(|&known| known == of).expect("listed");
        shares[place % count].push(device);
    }
    shares
}

/// The configuration bounds members and pollers far below.
fn narrow(index: usize) -> u16 {
    u16::try_from(index).expect("bounded by the configuration")
}

/// CPUs that the configuration gives to kernel threads of sqpoll rings and to pollers of GPUs.
fn promised(config: &Config) -> Vec<u32> {
    let own = config.volume.iter().map(|volume| config.device_of(volume).sq_cpu);
    let threads = own.filter_map(|cpu| cpu.fixed().copied());
    let gpus = config.gpu.cpus.fixed().into_iter().flatten().copied();
    threads.chain(gpus).map(u32::from).collect()
}

/// A free CPU for each poller, near its devices; none where there are too few.
fn cpus(config: &Config, topology: &Topology, near: &[Near]) -> Vec<Option<u32>> {
    let count = near.len();
    if let Some(fixed) = config.pollers.cpus.fixed() {
        return fixed.iter().take(count).map(|&cpu| Some(u32::from(cpu))).collect();
    }
    if topology.allowed().len() <= count {
        return vec![None; count]; // pinned to every CPU there is, they would crowd clients out
    }
    let promised = promised(config);
    let mut taken = Vec::with_capacity(count);
    for near in near {
        let free = |cpu: &u32| !taken.contains(&Some(*cpu)) && !promised.contains(cpu);
        let cpu = topology.cpus_by_preference(near).into_iter().find(free);
        taken.push(cpu);
    }
    taken
}

/// A CPU for the poller of each GPU, on its node, of those that the devices' pollers leave; none
/// where too few are left for the clients.
fn cpus_of_gpus(
    config: &Config,
    topology: &Topology,
    pollers: &[Option<u32>],
    near: &[Near],
) -> Result<Vec<Option<u32>>, Failure> {
    let count = near.len();
    if let Some(fixed) = config.gpu.cpus.fixed() {
        if fixed.len() < count {
            let what = format!("gpu.cpus names {} CPUs for {count} GPUs", fixed.len());
            return Err(Failure::new(Exit::Usage, what)
                .with_remedy("name one for each GPU, or set gpu.cpus = \"auto\""));
        }
        return Ok(fixed.iter().take(count).map(|&cpu| Some(u32::from(cpu))).collect());
    }
    let pinned = pollers.iter().all(Option::is_some);
    if !pinned || topology.allowed().len() <= pollers.len() + count {
        return Ok(vec![None; count]);
    }
    let promised = promised(config);
    let mut taken = pollers.to_vec();
    for near in near {
        let free = |cpu: &u32| !taken.contains(&Some(*cpu)) && !promised.contains(cpu);
        let cpu = topology.cpus_by_preference(near).into_iter().find(free);
        taken.push(cpu);
    }
    Ok(taken.split_off(pollers.len()))
}

/// Where threads are pinned, if this process may have those CPUs.
fn seats(
    whose: &str,
    cpus: &[Option<u32>],
    topology: &Topology,
) -> Result<Vec<Option<AllowedCpu>>, Failure> {
    let seat = |(index, cpu): (usize, &Option<u32>)| {
        let allowed = cpu.map(|cpu| AllowedCpu::of(cpu, topology)).transpose();
        allowed.map_err(|error| Failure::new(Exit::Refused, format!("{whose} {index}: {error}")))
    };
    cpus.iter().enumerate().map(seat).collect()
}

/// The volumes as pollers see them.
pub(super) fn routes(served: &[Served], plan: &Plan) -> Vec<Route> {
    let route = |(index, volume): (usize, &Served)| Route {
        geometry: volume.geometry,
        members: members_of(plan, index),
    };
    served.iter().enumerate().map(route).collect()
}

/// The volumes as clients see them.
pub(super) fn infos(served: &[Served], plan: &Plan) -> Vec<VolumeInfo> {
    let info = |(index, volume): (usize, &Served)| VolumeInfo {
        id: u16::try_from(index).expect("the configuration bounds the volumes"),
        name: volume.name.clone(),
        uuid: volume.uuid,
        geometry: volume.geometry.into(),
        pollers: members_of(plan, index).iter().map(|&device| plan.poller_of(device).0).collect(),
        members: volume.members.iter().map(MemberSource::name).collect(),
        content: match volume.purpose {
            Purpose::Raw => VolumeContent::Raw,
            Purpose::Store(shape) => VolumeContent::Store(StoreInfo {
                block_bytes_max: shape.block_bytes_max(),
                segment_bytes: shape.segment_bytes,
                members: Some(volume.present)
                    .filter(|present| *present != Members::first(present.count()))
                    .map(Members::bits),
            }),
        },
    };
    served.iter().enumerate().map(info).collect()
}

fn members_of(plan: &Plan, volume: usize) -> Vec<DeviceIndex> {
    let own = plan.devices.iter().filter(|device| device.volume == volume);
    own.map(|device| device.index).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use kvrail_memory::Near;

    use super::{cpus, cpus_of_gpus, shares};
    use crate::serve::numa::tests::machine;
    use kvrail_cli::config::Config;

    /// Devices on these nodes, with interrupts everywhere or nowhere.
    fn on(nodes: &[Option<u32>]) -> Vec<Near> {
        nodes.iter().map(|&node| Near { node, ..Near::default() }).collect()
    }

    #[test]
    fn a_disk_has_one_poller_and_more_if_they_are_configured() {
        let disks: Vec<_> = ["a", "b", "a", "", "", "b"]
            .map(|path| (!path.is_empty()).then(|| PathBuf::from(path)))
            .into();
        let of = |text: &str, cores| shares(&toml::from_str(text).unwrap(), &disks, cores);
        let together = [vec![0, 2], vec![1, 5], vec![3], vec![4]];
        assert_eq!(of("", 16), together, "what lies on no disk is by itself");
        assert_eq!(of("", 3), [vec![0, 2, 3], vec![1, 4, 5]], "a core is left for clients");
        assert_eq!(of("", 1), [vec![0, 1, 2, 3, 4, 5]]);
        assert_eq!(of("[pollers]\ncount = 4", 2), together);
        assert_eq!(of("[pollers]\ncpus = [0, 1, 2, 3]", 2), together, "one for each CPU named");
        let five = [vec![0, 5], vec![1], vec![2], vec![3], vec![4]];
        assert_eq!(of("[pollers]\ncount = 5", 2), five);
        assert_eq!(of("[pollers]\ncount = 64", 2).len(), 6);
    }

    #[test]
    fn pollers_run_on_the_node_of_their_devices() {
        let topology = machine(&[(0, "0-1"), (1, "2-3")]);
        let seats = |near: &[Option<u32>]| cpus(&Config::default(), &topology, &on(near));
        assert_eq!(seats(&[Some(1), Some(0)]), [Some(2), Some(1)]);
        assert_eq!(seats(&[Some(1), Some(1), Some(1)]), [Some(2), Some(3), Some(1)]);
        // One CPU is left for the clients, or no poller is pinned.
        assert_eq!(seats(&[None; 4]), [None; 4]);
    }

    /// A completion then wakes its poller without waking another CPU.
    #[test]
    fn pollers_run_where_their_devices_interrupt() {
        let topology = machine(&[(0, "0-1"), (1, "2-3")]);
        let at = |cpus: &str| Near { interrupts: cpus.parse().unwrap(), ..Near::default() };
        let seats = |near: &[Near]| cpus(&Config::default(), &topology, near);
        assert_eq!(seats(&[at("3")]), [Some(3)]);
        assert_eq!(seats(&[at("0")]), [Some(0)]);
        assert_eq!(seats(&[at("3"), at("3")]), [Some(3), Some(1)], "one each");
        assert_eq!(seats(&[at("0-3")]), [Some(1)], "all the same");
        let far = Near { node: Some(1), ..at("0") };
        assert_eq!(seats(&[far]), [Some(2)], "nodes count more");
    }

    /// Two threads that spin on one CPU collapse.
    #[test]
    fn pollers_keep_off_cpus_that_others_were_promised() {
        let topology = machine(&[(0, "0-1"), (1, "2-3")]);
        let text = "[device]\nmode = \"sqpoll\"\nsq_cpu = 2\n[gpu]\ncpus = [3]\n\
                    [[volume]]\nname = \"kv\"\nmembers = [\"/a\"]\n";
        let config: Config = toml::from_str(text).unwrap();
        let seats = |near: &[Option<u32>]| cpus(&config, &topology, &on(near));
        assert_eq!(seats(&[Some(1)]), [Some(1)]);
        assert_eq!(seats(&[Some(1); 3]), [Some(1), Some(0), None]);
    }

    #[test]
    fn gpus_pollers_run_beside_their_gpu_where_cpus_are_left() {
        let topology = machine(&[(0, "0-1"), (1, "2-3")]);
        let seats = |pollers: &[Option<u32>], near: &[Option<u32>]| {
            cpus_of_gpus(&Config::default(), &topology, pollers, &on(near)).unwrap()
        };
        assert_eq!(seats(&[Some(1)], &[Some(1)]), [Some(2)]);
        assert_eq!(seats(&[Some(1)], &[Some(0), Some(0)]), [Some(0), Some(2)]);
        assert_eq!(
            seats(&[Some(1), Some(2)], &[None, None]),
            [None; 2],
            "none is left for clients"
        );
        assert_eq!(seats(&[None], &[Some(1)]), [None], "pollers float, so does this");
        let fixed: Config = toml::from_str("[gpu]\ncpus = [3]").unwrap();
        assert_eq!(cpus_of_gpus(&fixed, &topology, &[None], &on(&[None])).unwrap(), [Some(3)]);
        let why = cpus_of_gpus(&fixed, &topology, &[None], &on(&[None; 2])).unwrap_err().log_text();
        assert!(why.contains("gpu.cpus names 1 CPUs for 2 GPUs"), "{why}");
    }
}
