//! Devices that were taken away and may come back: a thread looks for them and, when one is there
//! again under the same identity and with the same label, hands it to its poller.
//!
//! It also owns the claims of all members, because a claim ends when its device is replaced. So it
//! is also where the members of a store that is served change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SendError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvrail_device::{Description, Replacement};
use kvrail_memory::Root;
use kvrail_nvme::{Namespace, NvmeHost, Selector, resolve};
use kvrail_poller::{Mailbox, PollerCommand, PollerHandle, PollerStats};
use kvrail_session::{MemberAsk, ServerHandle};
use kvrail_volume::Member;

use super::devices;
use super::member_changes::{self, MemberDevices};
use super::plan::{Plan, PlannedDevice};
use super::report_extras::ReportExtras;
use super::volumes::{MemberSource, Served};
use crate::members::drive_report;
use kvrail_cli::failure::{Failure, no_thread};

/// How often it is looked whether a device is gone, or back.
const LOOK: Duration = Duration::from_millis(200);

/// Number of checks between two searches for the devices' paths: two seconds.
const LOOKS_FOR_PATHS: u64 = 10;

/// A retired device is asked this often to let go of its file before the log has that it does not:
/// 10 seconds.
const RELEASES_QUIET: u64 = 50;

/// How long a retirement waits for pollers at most, and how often it looks. They let go of a device
/// at their next turn; one that is stalled does so later.
const LET_GO_WITHIN: Duration = Duration::from_secs(1);
const LOOK_LET_GO: Duration = Duration::from_millis(1);

/// The thread that looks; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct DeviceRecovery {
    commands: Sender<RecoveryCommand>,
    server: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

/// Commands to the thread.
#[derive(Debug)]
enum RecoveryCommand {
    ChangeMembers(MemberAsk),
    Stop,
}

impl DeviceRecovery {
    /// Begins to look after these members.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(super) fn watch(
        plan: &Plan,
        pollers: &[PollerHandle],
        mut served: Vec<Served>,
        (extras, server): (ReportExtras, ServerHandle),
    ) -> Result<Self, Failure> {
        let mut watched = watched(plan, pollers, &served);
        watched.iter().for_each(|device| device.show_drive(&served, &extras));
        member_changes::show(&served, &extras);
        let (commands, inbox) = channel();
        let refuser = server.clone();
        let look = move || {
            let mut looks = 0;
            loop {
                match inbox.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(RecoveryCommand::ChangeMembers(ask)) => {
                        let known = (&server, &extras);
                        member_changes::answer(&ask, &mut served, &mut watched, known);
                        continue;
                    }
                    Ok(RecoveryCommand::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                }
                for device in &mut watched {
                    device.look(&mut served, &extras);
                }
                if looks % LOOKS_FOR_PATHS == 0 {
                    extras.look_for_paths(&nodes(&watched));
                }
                looks += 1;
            }
        };
        let thread = thread::Builder::new().name("recovery".into()).spawn(look);
        let thread = thread.map_err(|error| no_thread("the recovery", &error))?;
        Ok(Self { commands, server: refuser, thread: Some(thread) })
    }

    /// Passes requests to change members on to the thread, which takes one after the other.
    pub(super) fn member_changer(&self) -> impl Fn(MemberAsk) + Send + 'static {
        let (commands, server) = (self.commands.clone(), self.server.clone());
        move |ask| {
            let sent = commands.send(RecoveryCommand::ChangeMembers(ask));
            if let Err(SendError(RecoveryCommand::ChangeMembers(ask))) = sent {
                let why = "the thread that changes members has ended; restart the sidecar";
                server.members_changed(&ask, Err(why.to_owned()));
            }
        }
    }
}

impl Drop for DeviceRecovery {
    fn drop(&mut self) {
        let _sent = self.commands.send(RecoveryCommand::Stop); // it may have ended
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join(); // a panic there was reported by the thread itself
        }
    }
}

/// A device under watch.
#[derive(Debug)]
struct Watched {
    index: u16,
    planned: PlannedDevice,
    spare_cpu: Option<u32>,
    /// Its number at its poller.
    local: usize,
    mailbox: Arc<Mailbox>,
    stats: Arc<PollerStats>,
    description: Description,
    /// The identity of an NVMe namespace; other devices have their path.
    identity: Option<Namespace>,
    state: RecoveryState,
    name: NameState,
}

/// Whether a file still has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NameState {
    Has,
    /// It was removed, and the log has it.
    Lost,
}

/// The known state of a device.
#[derive(Debug, PartialEq, Eq)]
enum RecoveryState {
    Here,
    /// The reason why it is not back; logged once.
    Gone(String),
    /// Sent to its poller, which has not answered yet.
    Sent,
    /// Taken out of its store for good; the command to its poller is still to be sent.
    Retiring,
    /// The same, and it was. This counts how often it was to let go of its file.
    Retired(u64),
    /// It is not open any more.
    Closed,
}

fn watched(plan: &Plan, pollers: &[PollerHandle], served: &[Served]) -> Vec<Watched> {
    let mut watched = Vec::new();
    for poller in pollers {
        for (local, (index, description)) in poller.devices.iter().enumerate() {
            let planned = plan.devices[usize::from(index.0)].clone();
            let MemberSource::Claimed(member) = &served[planned.volume].members[planned.member]
            else {
                continue;
            };
            let named = Selector::Path(member.path().to_owned());
            watched.push(Watched {
                index: index.0,
                planned,
                spare_cpu: plan.spare_cpu,
                local,
                mailbox: Arc::clone(&poller.mailbox),
                stats: Arc::clone(&poller.stats),
                description: description.clone(),
                identity: resolve(&named, &Root::default()).ok(),
                state: RecoveryState::Here,
                name: NameState::Has,
            });
        }
    }
    watched
}

impl MemberDevices for Vec<Watched> {
    fn is_silent(&self, volume: usize, place: usize) -> bool {
        let is_it = |device: &&Watched| device.is_member(volume, &[place]);
        self.iter().find(is_it).is_some_and(Watched::is_silent)
    }

    /// Waits a while until their pollers have let go of them.
    fn let_go(&mut self, volume: usize, places: &[usize]) {
        let own = |device: &Watched| device.is_member(volume, places);
        self.iter_mut().filter(|device| own(device)).for_each(Watched::retire);
        let is_served = |device: &Watched| own(device) && !device.is_retired();
        let begun = Instant::now();
        while self.iter().any(is_served) && begun.elapsed() < LET_GO_WITHIN {
            thread::sleep(LOOK_LET_GO);
        }
    }
}

/// The block devices of those that are NVMe, by number.
fn nodes(watched: &[Watched]) -> Vec<(u16, String)> {
    let node = |it: &Watched| it.identity.as_ref()?.block_node.as_deref().map(Path::to_owned);
    let named = |it: &Watched| Some((it.index, node(it)?.display().to_string()));
    watched.iter().filter_map(named).collect()
}

impl Watched {
    /// Shows which drive it is now: another one has its kernel name after the next boot.
    fn show_drive(&self, served: &[Served], extras: &ReportExtras) {
        let member = &served[self.planned.volume].members[self.planned.member];
        if let Some(drive) = member.claimed().and_then(|member| drive_report(member.path())) {
            extras.set_drive(self.index, drive);
        }
    }

    /// Takes it out of service for good.
    fn retire(&mut self) {
        if matches!(self.state, RecoveryState::Retired(_) | RecoveryState::Closed) {
            return;
        }
        let sent = self.mailbox.send(PollerCommand::Retire(self.local));
        // A mailbox that is full is tried again.
        let is_sent = sent.is_ok();
        self.state = if is_sent { RecoveryState::Retired(0) } else { RecoveryState::Retiring };
    }

    fn is_member(&self, volume: usize, places: &[usize]) -> bool {
        self.planned.volume == volume && places.contains(&self.planned.member)
    }

    /// Whether it is in service, and has requests that are overdue.
    fn is_silent(&self) -> bool {
        let stats = &self.stats.devices[self.local];
        stats.retired.get() == 0 && stats.gone.get() == 0 && stats.counters.overdue.get() != 0
    }

    /// Whether its poller has let go of it.
    fn is_retired(&self) -> bool {
        self.stats.devices[self.local].retired.get() != 0
    }

    fn look(&mut self, served: &mut [Served], extras: &ReportExtras) {
        match self.state {
            RecoveryState::Retiring => return self.retire(),
            RecoveryState::Retired(asked) => return self.release(asked, served),
            RecoveryState::Closed => return,
            _ => {}
        }
        self.look_for_name(served);
        let name = &self.description.name;
        let gone = self.stats.devices[self.local].gone.get() != 0;
        match (&self.state, gone) {
            (RecoveryState::Here, false) => {}
            (RecoveryState::Retiring | RecoveryState::Retired(_) | RecoveryState::Closed, _) => {}
            (_, false) => {
                self.state = RecoveryState::Here;
                self.show_drive(served, extras);
            }
            (RecoveryState::Here, true) => {
                tracing::error!(
                    "{name} is gone: its requests end with DEVICE_GONE until it is back"
                );
                self.state = RecoveryState::Gone(String::new());
            }
            // The poller could not take it yet, and reported the reason.
            (RecoveryState::Sent, true) => self.state = RecoveryState::Gone(String::new()),
            (RecoveryState::Gone(logged), true) => match self.find_again(served) {
                Ok(()) => self.state = RecoveryState::Sent,
                Err(why) if why != *logged => {
                    tracing::warn!("{name} is not back: {why}");
                    self.state = RecoveryState::Gone(why);
                }
                Err(_) => {}
            },
        }
    }

    /// Has a retired device let go of its file, again until it does: it may have operations in
    /// flight. Then the claim ends, so that the device can have another use.
    fn release(&mut self, asked: u64, served: &mut [Served]) {
        let [answered, done] = &self.stats.devices[self.local].releases;
        if done.get() != 0 {
            let member = &mut served[self.planned.volume].members[self.planned.member];
            *member = MemberSource::Retired { name: member.name() };
            self.state = RecoveryState::Closed;
            return;
        }
        if !self.is_retired() || answered.get() < asked {
            return;
        }
        // Without a descriptor, or room in the mailbox, it is tried again.
        let Ok(nothing) = Replacement::nothing() else { return };
        let sent = self.mailbox.send(PollerCommand::Release(self.local, Box::new(nothing)));
        if sent.is_ok() && asked + 1 == RELEASES_QUIET {
            tracing::warn!(
                "{} is retired, and still open: operations that it was given have not ended",
                self.description.name
            );
        }
        self.state = RecoveryState::Retired(asked + u64::from(sent.is_ok()));
    }

    /// A removed file is served on, but no later start finds it.
    fn look_for_name(&mut self, served: &[Served]) {
        let member = &served[self.planned.volume].members[self.planned.member];
        let MemberSource::Claimed(member) = member else { return };
        let name = if member.claim.is_removed() { NameState::Lost } else { NameState::Has };
        if std::mem::replace(&mut self.name, name) == NameState::Has && name == NameState::Lost {
            tracing::error!(
                "{} was removed from its directory: it is served on, and lost when the sidecar \
                 ends",
                self.description.name
            );
        }
    }

    /// Claims and checks the device, if it is back, and sends it to its poller.
    fn find_again(&self, served: &mut [Served]) -> Result<(), String> {
        let volume = &mut served[self.planned.volume];
        let MemberSource::Claimed(member) = &mut volume.members[self.planned.member] else {
            return Err("it moves no bytes".into());
        };
        let path = self.place(member)?;
        let direct = self.planned.settings.claim_direct();
        let back = member.claim_again(&path, volume.uuid, direct);
        let back = back.map_err(|error| error.to_string())?;
        let claim = (&back.claim, volume.geometry.logical_block);
        let options = devices::options(claim, &self.planned, self.spare_cpu);
        let options = options.map_err(|error| error.to_string())?;
        let replacement = Replacement::examine(&self.description, options);
        let replacement = replacement.map_err(|error| error.to_string())?;
        let sent = self.mailbox.send(PollerCommand::Replace(self.local, Box::new(replacement)));
        sent.map_err(|_| "its poller does not read its mail".to_owned())?;
        *member = back;
        Ok(())
    }

    /// Where it is now.
    fn place(&self, member: &Member) -> Result<PathBuf, String> {
        let Some(was) = &self.identity else { return Ok(member.path().to_owned()) };
        let host = NvmeHost::read(&Root::default()).map_err(|error| error.to_string())?;
        let back = host.namespaces.into_iter().find(|now| is_same(was, now));
        let node = back.ok_or("no namespace has its identity")?.block_node;
        node.ok_or_else(|| "the kernel has no block device for it".to_owned())
    }
}

/// Whether a namespace is the one that was there: same drive, same number, same names.
fn is_same(was: &Namespace, now: &Namespace) -> bool {
    let drive = |namespace: &Namespace| {
        namespace
            .controllers
            .first()
            .map(|controller| (controller.serial.clone(), controller.model.clone()))
    };
    was.nsid == now.nsid && was.wwids == now.wwids && drive(was) == drive(now)
}
