//! A sidecar that does not answer: which process it is, what it does, and where to look.

use std::fs;
use std::path::Path;

use kvrail_client::ClientError;

use kvrail_cli::failure::{Exit, Failure};

/// The failure of an ask: of a sidecar that keeps silent, what can be seen of it from outside.
pub(crate) fn explain(error: &ClientError, socket: &Path) -> Failure {
    let ClientError::Timeout { after, .. } = error else { return Failure::from(error) };
    let silence = format!("no answer from {} within {after:?}", socket.display());
    let Some(pid) = sidecar_of(socket) else {
        return Failure::new(Exit::Unreachable, silence).with_remedy(
            "see which process serves it (`ss -xlp`, as root), its state and its log (journalctl)",
        );
    };
    let state = state_of(Path::new("/proc"), pid);
    let (what, remedy) = match state {
        Some('T' | 't') => ("is stopped", format!("let it go on: kill -CONT {pid}")),
        Some('D') => (
            "waits in the kernel for a device",
            format!("see dmesg and /proc/{pid}/stack: a device may not answer"),
        ),
        Some('Z' | 'X') | None => ("has ended", "start it again: kvrail serve".into()),
        Some(_) => (
            "runs and its control thread is busy",
            format!("see its log (journalctl _PID={pid}) and /proc/{pid}/task/*/stack"),
        ),
    };
    let state = state.map_or_else(String::new, |state| format!(" (state {state})"));
    let what = format!("{silence}: the sidecar, pid {pid}, {what}{state}");
    Failure::new(Exit::Unreachable, what).with_remedy(remedy)
}

/// The process that wrote the lock file beside the socket, if this user may read the file.
fn sidecar_of(socket: &Path) -> Option<u32> {
    let mut lock = socket.as_os_str().to_owned();
    lock.push(".lock");
    fs::read_to_string(lock).ok()?.trim_end().parse().ok()
}

/// The state of a process; none once it is gone.
fn state_of(proc: &Path, pid: u32) -> Option<char> {
    kvrail_memory::state_of(&fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use kvrail_client::ClientError;

    use super::{explain, state_of};

    #[test]
    fn a_silent_process_is_named_with_its_state() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("s");
        let silent = ClientError::Timeout { what: "attaching", after: Duration::from_secs(2) };
        let why = explain(&silent, &socket).log_text();
        assert!(why.contains("within 2s") && why.contains("ss -xlp"), "{why}");
        let own = std::process::id();
        fs::write(root.path().join("s.lock"), format!("{own}\n")).unwrap();
        let why = explain(&silent, &socket).log_text();
        assert!(why.contains(&format!("pid {own}, ")) && why.contains("_PID"), "{why}");
        fs::create_dir(root.path().join("7")).unwrap();
        fs::write(root.path().join("7/stat"), "7 (a) R) T 1 1").unwrap();
        assert_eq!(state_of(root.path(), 7), Some('T'));
        assert_eq!(state_of(root.path(), 8), None);
    }
}
