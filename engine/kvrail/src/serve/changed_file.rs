//! A file whose change ends the sidecar, so that a supervisor starts it with the new one.

use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, thread};

use rustix::process::{Signal, getpid, kill_process};
use uuid::Uuid;

use kvrail_cli::failure::{Failure, no_thread};

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Sends SIGTERM to this process once the file has differed from its copy for two looks, and for a
/// random part of `within`.
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
    let mut seen = copy.to_vec();
    let mut stops_at: Option<Instant> = None;
    loop {
        let now = content(file);
        // Somebody may be just writing it.
        let differs = now != copy && now == seen;
        seen = now;
        if !differs {
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

/// Nothing where there is no file.
fn content(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_default()
}

/// From nothing to all of it.
fn part_of(whole: Duration) -> Duration {
    let random = u32::try_from(Uuid::new_v4().as_u128() >> 96).expect("32 bits");
    whole.mul_f64(f64::from(random) / f64::from(u32::MAX))
}
