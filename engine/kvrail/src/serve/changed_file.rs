//! A file whose change ends the sidecar, so that a supervisor starts it with the new one.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Signal, getpid, kill_process};
use uuid::Uuid;

use crate::members::locate;
use kvrail_cli::config::Config;
use kvrail_cli::failure::{Exit, Failure, no_thread};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Sends SIGTERM to this process once the file has differed from its copy for two looks, and for a
/// random part of `within`. A file with which the sidecar would not start again ends nothing: it is
/// no configuration, or names drives that are not there.
///
/// # Errors
/// `Failure` where there can be no thread for that.
pub(crate) fn exit_on_change(file: &Path, copy: &Path, within: Duration) -> Result<(), Failure> {
    let (file, copy) = (file.to_owned(), content(copy));
    let life = move || {
        await_change(&file, &copy, within);
        // This process can always be signalled by itself.
        let _sent = kill_process(getpid(), Signal::TERM);
    };
    let thread = thread::Builder::new().name("kvrail-change".into()).spawn(life);
    thread.map(drop).map_err(|error| no_thread("the changed file's", &error))
}

fn await_change(file: &Path, copy: &[u8], within: Duration) {
    let (mut seen, mut refused) = (copy.to_vec(), None);
    let mut stops_at: Option<Instant> = None;
    loop {
        let now = content(file);
        // Somebody may be just writing it.
        let differs = now != copy && now == seen;
        seen = now;
        let fault = if differs { fault_of(&seen) } else { None };
        if fault.is_some() && fault != refused {
            let (path, why) = (file.display(), fault.as_deref().unwrap_or_default());
            tracing::error!("{path} has changed, and the sidecar goes on without it: {why}");
        }
        refused = fault;
        if !differs || refused.is_some() {
            stops_at = None;
        } else if let Some(at) = stops_at {
            if Instant::now() >= at {
                return;
            }
        } else {
            let pause = part_of(within);
            let (path, seconds) = (file.display(), pause.as_secs());
            tracing::warn!("{path} has changed: the sidecar stops in {seconds} s to take it over");
            stops_at = Some(Instant::now() + pause);
            if pause.is_zero() {
                return;
            }
        }
        thread::sleep(LOOK);
    }
}

/// Why the sidecar would not start with this part of a configuration.
fn fault_of(part: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(part).map_err(|error| error.to_string());
    let read = text.and_then(|text| toml::from_str(text).map_err(|error| error.to_string()));
    let config: Config = match read {
        Ok(config) => config,
        Err(why) => return Some(Failure::new(Exit::Usage, why).line()),
    };
    config.volume.iter().find_map(|volume| {
        let mut real = volume.members.iter().filter(|member| volume.null_size(member).is_none());
        real.find_map(|member| match locate(member) {
            // A file may still have to be made.
            Ok(found) if found.path.starts_with("/dev") && !found.path.exists() => {
                Some(format!("volume {}: {member} is not there", volume.name))
            }
            Ok(_) => None,
            Err(failure) => Some(format!("volume {}: {}", volume.name, failure.line())),
        })
    })
}

/// Nothing where there is no file.
fn content(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_default()
}

/// From nothing to all of it.
fn part_of(whole: Duration) -> Duration {
    let random = u32::try_from(Uuid::new_v4().as_u128() >> 96).expect("32 bits");
    whole.mul_f64(f64::from(random) / f64::from(u32::MAX))
}
