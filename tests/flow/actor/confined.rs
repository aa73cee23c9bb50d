//! Tries actions that a sidecar never does, inside its sandbox or without one, and prints which
//! were refused. None leaves a trace where it is allowed.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use kvrail_sandbox::{Needs, SandboxMode, enter};
use rustix::fs::{CWD, FileType, Mode as Bits};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{AddressFamily, SocketType, socket};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_thread_uid};

/// An action: its name, and the function that tries it.
type Attempt = (&'static str, fn(&Path) -> io::Result<()>);

const ATTEMPTS: &[Attempt] = &[
    ("exec", |_| Command::new("/bin/true").status().map(drop)),
    ("exec-loader", |_| {
        Command::new("/lib64/ld-linux-x86-64.so.2").arg("/bin/true").output().and_then(|output| {
            if output.status.success() {
                Ok(())
            } else {
                Err(io::ErrorKind::PermissionDenied.into())
            }
        })
    }),
    ("ptrace", |_| {
        Ok(nix::sys::ptrace::seize(absent_process(), nix::sys::ptrace::Options::empty())?)
    }),
    ("signal", |_| Ok(rustix::process::test_kill_process(parent())?)),
    ("mount", |own| {
        Ok(rustix::mount::mount("none", own.join("none"), "tmpfs", MountFlags::empty(), None)?)
    }),
    ("umount", |own| Ok(rustix::mount::unmount(own.join("none"), UnmountFlags::empty())?)),
    ("chroot", |_| Ok(rustix::process::chroot("/")?)),
    ("module", |_| Ok(rustix::system::init_module(&[], c"")?)),
    ("namespace", |_| {
        let own = File::open("/proc/self/ns/uts")?;
        Ok(move_into_link_name_space(
            own.as_fd(),
            Some(LinkNameSpaceType::HostNameAndNISDomainName),
        )?)
    }),
    ("hostname", |_| {
        Ok(rustix::system::sethostname(rustix::system::uname().nodename().to_bytes())?)
    }),
    ("user", |_| Ok(set_thread_uid(rustix::process::getuid())?)),
    ("owner", |own| Ok(rustix::fs::chown(own.join("made"), None, None)?)),
    ("device", |own| {
        Ok(rustix::fs::mknodat(CWD, own.join("node"), FileType::CharacterDevice, Bits::RUSR, 259)?)
    }),
    ("internet", |_| open_socket(AddressFamily::INET)),
    ("internet6", |_| open_socket(AddressFamily::INET6)),
    ("netlink", |_| Ok(socket(AddressFamily::NETLINK, SocketType::RAW, None).map(drop)?)),
    ("shadow", |_| OpenOptions::new().append(true).open("/etc/shadow").map(drop)),
    ("read", |_| File::open("/etc/passwd").map(drop)),
    ("list", |_| fs::read_dir("/etc").map(drop)),
    ("make", |own| File::create(own.with_extension("made")).map(drop)),
    ("remove", |own| fs::remove_file(own.with_extension("there"))),
    ("kernel", |_| OpenOptions::new().append(true).open("/proc/sys/kernel/hostname").map(drop)),
];

/// `on` or `off`, and a folder that is the process's own.
pub(crate) fn run(words: &[String]) {
    let mode = if words[0] == "on" { SandboxMode::Strict } else { SandboxMode::Off };
    let own = Path::new(&words[1]).to_owned();
    let mut needs = Needs::default();
    needs.own(&own);
    // The name of a CUDA thread; the other refusals must stay.
    needs.name_threads();
    let entered = enter(mode, &needs).expect("a sandbox");
    // A thread that is older than the sandbox, as a sidecar's pollers are.
    let (begin, begun) = channel();
    let between = thread::spawn(move || {
        begun.recv().expect("a word");
        outcomes(&own)
    });
    entered.close().expect("a filter");
    begin.send(()).expect("a thread");
    let refused = serde_json::to_string(&between.join().expect("no panic"));
    println!("{}", refused.expect("plain words"));
}

/// Names of the refused actions; the process's own file must have been made before.
fn outcomes(own: &Path) -> Vec<&'static str> {
    fs::write(own.join("made"), "mine").expect("its own folder");
    socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a session's socket");
    name_another_thread();
    let is_refused = |attempt: &&Attempt| {
        attempt.1(own).is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    ATTEMPTS.iter().filter(is_refused).map(|attempt| attempt.0).collect()
}

fn name_another_thread() {
    let (begin, begun) = channel::<()>();
    let (sender, receiver) = channel();
    let other = thread::spawn(move || {
        sender.send(rustix::thread::gettid()).expect("a listener");
        begun.recv().unwrap_err()
    });
    let name = format!("/proc/self/task/{}/comm", receiver.recv().expect("a thread"));
    fs::write(&name, "named").expect("its own thread's name");
    assert_eq!(fs::read_to_string(&name).expect("its name"), "named\n");
    drop(begin);
    other.join().expect("a thread");
}

fn open_socket(family: AddressFamily) -> io::Result<()> {
    Ok(socket(family, SocketType::STREAM, None).map(drop)?)
}

/// An id that no process has.
fn absent_process() -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(i32::MAX)
}

fn parent() -> rustix::process::Pid {
    rustix::process::getppid().expect("a parent")
}
