//! The running sidecar: from a configuration to a server with its pollers.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use kvrail_gpu::Bridge;
use kvrail_poller::{Mailbox, PollerHandle, Route, Setup};
use kvrail_protocol::StatusReport;
use kvrail_ring::{Doorbell, Epoch};
use kvrail_sandbox::Entered;
use kvrail_session::{
    HandleReceiver, Porter, Server, ServerConfig, SidecarIdentity, Stopped, server_handle,
};
use rustix::pipe::{PipeFlags, pipe_with};

use super::device_recovery::DeviceRecovery;
use super::drive_health::HealthWatch;
use super::early_stop::EarlyStop;
use super::gpus::Gpus;
use super::host::check_host;
use super::log_queue::LostLines;
use super::membership::Membership;
use super::metrics::{MappedDevice, Metrics};
use super::plan::Plan;
use super::policy::policy;
use super::reload::{Reload, Takers};
use super::report_extras::ReportExtras;
use super::stores::PreparedStores;
use super::takeover::Takeover;
use super::target::RunningTarget;
use super::volumes::Served;
use super::{
    descriptors, devices, file_sizes, gpus, memory, plan, report, sandbox, signals, target, volumes,
};
use kvrail_cli::config::Config;
use kvrail_cli::context::PORTER;
use kvrail_cli::failure::{Exit, Failure, exhausted};

/// A sidecar that is ready for clients.
#[derive(Debug)]
pub(crate) struct Sidecar {
    server: Server,
    handle: HandleReceiver,
    _metrics: Metrics,
    _target: RunningTarget,
    /// Claims end when the pollers have ended: fields drop in this order.
    _recovery: DeviceRecovery,
    _health: HealthWatch,
    _gpus: Gpus,
    /// The end of a pipe that all rings have, too: it is closed behind the last transfer.
    _tether: Arc<OwnedFd>,
    /// For the sidecar that takes over.
    takeover: Takeover,
    socket: PathBuf,
    /// The messages to the operator.
    pub(crate) report: String,
}

impl Sidecar {
    /// Claims the volumes, starts the pollers, opens the door.
    ///
    /// # Errors
    /// `Failure` with the cause and the remedy; nothing is left running or claimed.
    pub(crate) fn start(
        config: &Config,
        reload: Reload,
        lost_lines: LostLines,
        entered: Entered,
        early: &EarlyStop,
    ) -> Result<Self, Failure> {
        let extras = ReportExtras::default();
        let topology = check_host(config)?;
        descriptors::provide(config, &topology)?;
        file_sizes::provide(config)?;
        let (door, inbox) = target::door();
        let (asker, handle) = server_handle().map_err(|errno| exhausted("an eventfd", errno))?;
        let (target, known) = (door.clone(), extras.clone());
        let reload = reload.watch(Takers { server: asker.clone(), target, extras: known })?;
        signals::listen(asker.clone(), reload.clone(), early)?;
        let metrics = Metrics::open(config, extras.clone());
        let probe = memory::probe(config)?;
        let served = volumes::open_all(config)?;
        let opened = gpus::open_all(config)?;
        let plan = Plan::make(config, &served, &opened.gpus, &topology)?;
        let target = RunningTarget::start(&config.target, extras.clone(), door, inbox)?;
        let bell = Arc::new(Doorbell::eventfd().map_err(|errno| exhausted("an eventfd", errno))?);
        let mailboxes = mailboxes(&plan, &bell)?;
        let gpus = Gpus::start(config, &opened, &plan, (&served, &mailboxes))?;
        let with = (gpus.served.len(), &config.memory_tier);
        let stores = PreparedStores::prepare(&plan, &served, with, &topology)?;
        let socket = config.sidecar.socket.clone();
        let no_pipe = |errno| exhausted("a pipe", errno);
        let (transfers, tether) = pipe_with(PipeFlags::CLOEXEC).map_err(no_pipe)?;
        let tether = Arc::new(tether);
        let sources = devices::sources(&plan, &served, &Takeover::read(&socket), &tether)?;
        let pollers = start_pollers(&plan, (&served, &stores), &mailboxes, &gpus, sources)?;
        let transfers = devices::end_behind_a_kill(&pollers).then(|| Arc::new(transfers));
        let takeover = Takeover::of(&plan, &served, &pollers);
        let infos = plan::infos(&served, &plan);
        let mut report = report::text(config, &plan, &pollers, &infos, &probe.text);
        report += &stores.report();
        report += &report::gpus(&gpus.served, &infos);
        report += &metrics.line();
        report.extend(target.report.iter().map(|line| format!("  target: {line}\n")));
        let (membership, mapped) = (Membership::of(&plan, &served), MappedDevice::all(&pollers));
        let known = (extras.clone(), asker.clone());
        let recovery = DeviceRecovery::watch(&plan, &pollers, served, known)?;
        let health = HealthWatch::start(extras.clone())?;
        let server_config = server_config((config, &plan), &gpus, &stores, transfers);
        let mut server = Server::new(server_config, pollers, bell, infos)
            .map_err(|error| Failure::new(Exit::Refused, error.to_string()))?;
        let sandboxed = sandbox::close(entered)?;
        report += &sandbox::line(&sandboxed);
        let known = extras.clone();
        server.configure_by(move |ask| reload.ask(ask), move || known.entries());
        server.change_members_by(recovery.member_changer());
        server.annotate(move |report| {
            membership.add_to(report);
            extras.add_to(report, &lost_lines);
            sandbox::add_to(report, &sandboxed);
        });
        metrics.serve(asker, mapped);
        Ok(Self {
            server,
            handle,
            _metrics: metrics,
            _target: target,
            _recovery: recovery,
            _health: health,
            _gpus: gpus,
            _tether: tether,
            takeover,
            socket,
            report,
        })
    }

    /// The report of `kvrail status`.
    pub(crate) fn status(&self) -> StatusReport {
        self.server.report()
    }

    /// Serves until a signal ends it.
    ///
    /// # Errors
    /// `Failure` when a poller died or requests were still in flight at the end.
    pub(crate) fn run(mut self) -> Result<Stopped, Failure> {
        let outcome = self.server.run(&self.handle);
        self.takeover.leave(&self.socket);
        outcome.map_err(|error| Failure::new(Exit::Failed, error.to_string()))
    }
}

/// One for each poller.
fn mailboxes(plan: &Plan, bell: &Arc<Doorbell>) -> Result<Vec<Arc<Mailbox>>, Failure> {
    let mailbox = |_| Mailbox::new(Arc::clone(bell)).map(Arc::new);
    let made: Result<_, _> = plan.pollers.iter().map(mailbox).collect();
    made.map_err(|errno| exhausted("a mailbox", errno))
}

fn start_pollers(
    plan: &Plan,
    (served, stores): (&[Served], &PreparedStores),
    mailboxes: &[Arc<Mailbox>],
    gpus: &Gpus,
    mut sources: Vec<Option<devices::DeviceSource>>,
) -> Result<Vec<PollerHandle>, Failure> {
    let routes: Vec<Route> = plan::routes(served, plan);
    let mut started = Vec::with_capacity(plan.pollers.len());
    let shards = plan.pollers.iter().zip(mailboxes);
    let shards = shards.map(|(poller, mailbox)| stores.of(&poller.devices, mailbox));
    let shards = shards.collect::<Result<Vec<_>, _>>()?;
    for ((poller, mailbox), stores) in plan.pollers.iter().zip(mailboxes).zip(shards) {
        let setup = Setup {
            routes: routes.clone(),
            devices: poller.devices.clone(),
            budgets: poller.devices.iter().map(|&device| plan.budget(device)).collect(),
            stores,
            spin_ns: plan.spin_ns,
            beat_ns: plan.beat_ns,
        };
        let own: Vec<_> = poller
            .devices
            .iter()
            .map(|device| sources[usize::from(device.0)].take().expect("one poller a device"))
            .collect();
        let mailbox = Arc::clone(mailbox);
        // Two types of poller: without a GPU nothing of bridges is on a block's way.
        let outcome = if gpus.is_empty() {
            let open = move || own.into_iter().map(devices::DeviceSource::open).collect();
            kvrail_poller::start(poller.seat, setup, mailbox, open)
        } else {
            let ports: Vec<_> =
                poller.devices.iter().map(|&device| gpus.ports_of(device)).collect();
            let open = move || {
                let bridged = own.into_iter().zip(ports);
                bridged.map(|(source, ports)| Bridge::new(source.open()?, ports)).collect()
            };
            kvrail_poller::start(poller.seat, setup, mailbox, open)
        };
        match outcome {
            Ok(handle) => started.push(handle),
            Err(error) => {
                end(started);
                return Err(Failure::new(Exit::Refused, error.to_string()));
            }
        }
    }
    match stores.wait(&started) {
        Ok(()) => Ok(started),
        Err(failure) => {
            end(started);
            Err(failure)
        }
    }
}

/// Ends pollers that never served.
fn end(pollers: Vec<PollerHandle>) {
    for poller in &pollers {
        // An empty mailbox takes it.
        let _sent = poller.mailbox.send(kvrail_poller::PollerCommand::Stop);
    }
    for poller in pollers {
        let _ended = poller.thread.join();
    }
}

fn server_config(
    (config, plan): (&Config, &Plan),
    gpus: &Gpus,
    stores: &PreparedStores,
    transfers: Option<Arc<OwnedFd>>,
) -> ServerConfig {
    ServerConfig {
        socket: config.sidecar.socket.clone(),
        socket_mode: config.sidecar.socket_mode.bits(),
        policy: policy(config),
        numa: plan.numa.clone(),
        identity: SidecarIdentity { epoch: epoch(), version: env!("CARGO_PKG_VERSION").into() },
        spin: plan.hints(),
        notes: plan.notes.clone(),
        gpus: gpus.served.clone(),
        stores: stores.served(),
        transfers,
        // This very file, also once another release lies in its place.
        porter: Porter::new("/proc/self/exe", &[PORTER]),
    }
}

/// Larger than every earlier one on this host, as long as its clock does not go back.
fn epoch() -> Epoch {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Epoch(since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
}
