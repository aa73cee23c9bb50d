//! A file system that never answers FLUSH: whoever closes its file waits until it is gone.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use rustix::io::{FdFlags, fcntl_setfd};

/// The file of it.
const FILE: &str = "file";

/// Operations of the protocol, from linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const BATCH_FORGET: u32 = 42;

/// A mounted one. Unmounted when it is dropped, which ends all waits for it.
#[derive(Debug)]
pub(crate) struct Fuse {
    at: PathBuf,
    server: Option<JoinHandle<()>>,
}

impl Fuse {
    /// Mounts it in this new folder, or says why that cannot be done here.
    pub(crate) fn mount(at: PathBuf) -> Result<Self, String> {
        let why = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| why("/dev/fuse", &error))?;
        std::fs::create_dir(&at).map_err(|error| why("a folder", &error))?;
        fcntl_setfd(&device, FdFlags::empty()).map_err(|error| why("fcntl", &error))?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", "fuse", "-o", &options, "kvrail-test"]).arg(&at);
        let output = mount.output().map_err(|error| why("mount", &error))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        fcntl_setfd(&device, FdFlags::CLOEXEC).map_err(|error| why("fcntl", &error))?;
        let server = std::thread::spawn(move || serve(device));
        Ok(Self { at, server: Some(server) })
    }

    pub(crate) fn open(&self) -> File {
        File::options().read(true).write(true).open(self.at.join(FILE)).expect("our own file")
    }

    /// Ends all waits.
    pub(crate) fn end(&mut self) {
        let Some(server) = self.server.take() else { return };
        unmount(&self.at);
        // The server's reads end with the mount.
        server.join().expect("the server of the file system");
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.end();
    }
}

fn unmount(at: &Path) {
    // By force: what waits ends with an error. The mount itself goes with its last open file.
    let forced = Command::new("umount").args(["-f", "-l"]).arg(at).status();
    assert!(forced.is_ok_and(|status| status.success()), "{} is not unmounted", at.display());
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn serve(mut device: File) {
    let mut request = vec![0; 1 << 20];
    loop {
        match device.read(&mut request) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(19) => return, // ENODEV: unmounted
            Err(_) => continue,
        }
        let operation = word(&request, 4);
        if matches!(operation, FORGET | BATCH_FORGET | FLUSH) {
            continue;
        }
        let node = u64::from(word(&request, 16));
        let (error, body) = answer(operation, node, &request[40..]);
        let bytes = u32::try_from(16 + body.len()).expect("short");
        let mut reply = bytes.to_ne_bytes().to_vec();
        reply.extend(error.to_ne_bytes());
        reply.extend(&request[8..16]);
        reply.extend(body);
        // Whoever asked may have gone.
        let _heard = device.write(&reply);
    }
}

/// The error, negative, and what follows the head of the reply.
fn answer(operation: u32, node: u64, rest: &[u8]) -> (i32, Vec<u8>) {
    match operation {
        INIT => {
            let words = [7_u32, 31, 0, 0, 0, 1 << 16];
            let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            body.resize(64, 0);
            (0, body)
        }
        LOOKUP if rest.starts_with(b"file\0") => {
            // Node 2, valid for long.
            let words = [2_u64, 0, 3600, 3600, 0];
            let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            body.extend(attributes(2));
            (0, body)
        }
        LOOKUP => (-2, Vec::new()),
        GETATTR => {
            let mut body = 3600_u64.to_ne_bytes().to_vec();
            body.extend([0; 8]);
            body.extend(attributes(node));
            (0, body)
        }
        OPEN => (0, vec![0; 16]),
        RELEASE => (0, Vec::new()),
        _ => (-38, Vec::new()), // ENOSYS
    }
}

/// `struct fuse_attr`.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u32 = if node == 1 { 0o40_755 } else { 0o100_666 };
    let mut body: Vec<u8> =
        [node, 4096, 8, 0, 0, 0].iter().flat_map(|it| it.to_ne_bytes()).collect();
    let words = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0];
    body.extend(words.iter().flat_map(|word: &u32| word.to_ne_bytes()));
    body
}
