//! Drives that come late at boot. A store that starts without a member serves without its blocks,
//! and they are lost when the member is back; so while a host boots, members are waited for.

use std::thread;
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use sd_notify::NotifyState;

use super::early_stop::EarlyStop;
use crate::members::locate;
use kvrail_cli::config::Config;
use kvrail_cli::context::Context;

/// How often members are looked for.
const LOOK: Duration = Duration::from_millis(250);

/// The extension of the supervisor's time-out at each check.
const EXTENSION_US: u32 = 30_000_000;

/// Returns when all members are there, when this host has been up for `sidecar.wait_for_drives`,
/// or when a stop is asked for. Called before the sandbox, which keeps paths that are there.
pub(crate) fn await_drives(config: &Config, context: &Context, stop: &EarlyStop) {
    let limit = config.sidecar.wait_for_drives.duration();
    let mut shown = String::new();
    loop {
        let (late, up) = (late(config), uptime());
        if stop.is_asked() {
            return;
        }
        if late.is_empty() || up >= limit {
            if !shown.is_empty() {
                let what =
                    if late.is_empty() { "all members are there" } else { "no longer waiting" };
                say(context, what);
            }
            return;
        }
        let words = format!(
            "waiting for {} until this host has been up for {}, {} s from now",
            late.join(", "),
            config.sidecar.wait_for_drives,
            (limit - up).as_secs()
        );
        // Where there is no supervisor, nothing is sent.
        let _sent = sd_notify::notify(&[NotifyState::ExtendTimeoutUsec(EXTENSION_US)]);
        let names = late.join(", ");
        if shown != names {
            say(context, &words);
            shown = names;
        }
        thread::sleep(LOOK.min(limit - up));
    }
}

/// In the log, and in `systemctl status`.
fn say(context: &Context, words: &str) {
    context.note(words);
    let _sent = sd_notify::notify(&[NotifyState::Status(words)]);
}

/// Members that cannot be opened because they are not there, or because udev has not given them
/// to this user yet.
fn late(config: &Config) -> Vec<String> {
    let members = config.volume.iter().flat_map(|volume| {
        let real = volume.members.iter().filter(move |member| volume.null_size(member).is_none());
        real.map(|member| (member, locate(member)))
    });
    let late = members.filter(|(_, located)| match located {
        Ok(located) => is_late(access(&located.path, Access::READ_OK | Access::WRITE_OK)),
        Err(_) => true,
    });
    late.map(|(member, _)| member.to_string()).collect()
}

fn is_late(outcome: Result<(), Errno>) -> bool {
    matches!(outcome, Err(Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::ACCESS))
}

/// By the boot-time clock, which includes the time that the host slept.
fn uptime() -> Duration {
    let up = clock_gettime(ClockId::Boottime);
    Duration::new(up.tv_sec.cast_unsigned(), up.tv_nsec.try_into().unwrap_or(0))
}
