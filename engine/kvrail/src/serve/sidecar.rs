//! The running sidecar: from a configuration to a server with its pollers.

use std::sync::Arc;

use kvrail_poller::{Mailbox, PollerHandle, Route, Setup};
use kvrail_ring::{Bell, Epoch};
use kvrail_session::{Identity, OrderReceiver, Server, ServerConfig, Stopped};

use super::comeback::Comeback;
use super::plan::Plan;
use super::policy::policy;
use super::reload::Reload;
use super::target::Export;
use super::volumes::Served;
use super::{devices, report, signals, target, volumes};
use crate::config::Config;
use crate::failure::{Exit, Failure};

/// A sidecar that is ready for clients.
#[derive(Debug)]
pub(crate) struct Sidecar {
    server: Server,
    orders: OrderReceiver,
    _target: Export,
    /// Claims end when the pollers have ended: fields drop in this order.
    _comeback: Comeback,
    /// What to tell the operator.
    pub(crate) report: String,
}

impl Sidecar {
    /// Claims the volumes, starts the pollers, opens the door.
    ///
    /// # Errors
    /// `Failure` with the cause and the remedy; nothing is left running or claimed.
    pub(crate) fn start(config: &Config, reload: Reload) -> Result<Self, Failure> {
        let (door, inbox) = target::door();
        let orders = signals::listen(reload, door.clone())?;
        let probe = kvrail_device::probe_memory()
            .map_err(|error| Failure::new(Exit::Refused, error.to_string()))?;
        let mut served = volumes::open_all(config)?;
        let plan = Plan::make(config, &served)?;
        let target = Export::start(&config.target, door, inbox)?;
        let bell = Arc::new(Bell::eventfd().map_err(|errno| exhausted("an eventfd", errno))?);
        let pollers = start_pollers(&plan, &mut served, &bell)?;
        let infos = volumes::infos(&served, &plan);
        let mut report = report::text(config, &plan, &pollers, &infos, &probe.text);
        report.extend(target.report.iter().map(|line| format!("  target: {line}\n")));
        let comeback = Comeback::watch(&plan, &pollers, served)?;
        let server_config = server_config(config, &plan);
        let server = Server::new(server_config, pollers, bell, infos)
            .map_err(|error| Failure::new(Exit::Refused, error.to_string()))?;
        Ok(Self { server, orders, _target: target, _comeback: comeback, report })
    }

    /// Serves until a signal ends it.
    ///
    /// # Errors
    /// `Failure` when a poller died or requests were still under way at the end.
    pub(crate) fn run(mut self) -> Result<Stopped, Failure> {
        let outcome = self.server.run(&self.orders);
        outcome.map_err(|error| Failure::new(Exit::Failed, error.to_string()))
    }
}

/// Descriptors ran out.
pub(super) fn exhausted(what: &str, errno: rustix::io::Errno) -> Failure {
    Failure::new(Exit::Failed, format!("{what} could not be made: {errno}"))
        .with_remedy("raise the limit of open files (LimitNOFILE=, ulimit -n)")
}

fn start_pollers(
    plan: &Plan,
    served: &mut [Served],
    bell: &Arc<Bell>,
) -> Result<Vec<PollerHandle>, Failure> {
    let routes: Vec<Route> = volumes::routes(served, plan);
    let mut sources = devices::sources(plan, served)?;
    let mut started = Vec::with_capacity(plan.pollers.len());
    for poller in &plan.pollers {
        let mailbox = Mailbox::new(Arc::clone(bell)).map_err(|e| exhausted("a mailbox", e))?;
        let setup = Setup {
            routes: routes.clone(),
            devices: poller.devices.clone(),
            budgets: poller.devices.iter().map(|&device| plan.budget(device)).collect(),
            spin_ns: plan.spin_ns,
            beat_ns: plan.beat_ns,
        };
        let own: Vec<_> = poller
            .devices
            .iter()
            .map(|device| sources[usize::from(device.0)].take().expect("one poller a device"))
            .collect();
        let open = move || own.into_iter().map(devices::Source::open).collect();
        let outcome = kvrail_poller::start(poller.seat, setup, Arc::new(mailbox), open);
        match outcome {
            Ok(handle) => started.push(handle),
            Err(error) => {
                end(started);
                return Err(Failure::new(Exit::Refused, error.to_string()));
            }
        }
    }
    Ok(started)
}

/// Ends pollers that never served.
fn end(pollers: Vec<PollerHandle>) {
    for poller in &pollers {
        // An empty mailbox takes it.
        let _sent = poller.mailbox.send(kvrail_poller::Command::Stop);
    }
    for poller in pollers {
        let _ended = poller.thread.join();
    }
}

fn server_config(config: &Config, plan: &Plan) -> ServerConfig {
    ServerConfig {
        socket: config.sidecar.socket.clone(),
        socket_mode: config.sidecar.socket_mode.bits(),
        policy: policy(config),
        home: plan.home.clone(),
        identity: Identity { epoch: epoch(), version: env!("CARGO_PKG_VERSION").into() },
        spin: plan.hints(),
        notes: plan.notes.clone(),
    }
}

/// Larger than every earlier one on this host, as long as its clock does not go back.
fn epoch() -> Epoch {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Epoch(since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
}
