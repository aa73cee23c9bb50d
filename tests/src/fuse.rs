//! A file system in user space with one file, answered by a thread of the test, which can leave
//! requests of chosen kinds without an answer. Speaks the kernel's protocol on `/dev/fuse`, so that
//! a machine without libfuse has it too; it needs root and the `mount` program only.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Largest request: a write of 128 KiB with its headers, and room.
const REQUEST_BYTES: usize = 1 << 20;

/// Most bytes the kernel may write in one request.
const WRITE_BYTES_MAX: u32 = 128 << 10;

/// Number of the root directory, and of the file.
const ROOT: u64 = 1;
const FILE: u64 = 2;

/// The file's name.
const NAME: &str = "file";

/// How often the thread looks whether to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// Kinds of requests, as the kernel numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FuseRequest {
    /// `stat`.
    GetAttr = 3,
    /// `open`.
    Open = 14,
    /// A read.
    Read = 15,
    /// A write.
    Write = 16,
    /// `statfs`.
    StatFs = 17,
    /// The last close of a file.
    Release = 18,
    /// `fsync`.
    Fsync = 20,
    /// Every `close`.
    Flush = 25,
}

/// A mounted file system with one file. Unmounted, and all its requests aborted, when dropped.
#[derive(Debug)]
pub struct Fuse {
    at: PathBuf,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// What the file holds.
    content: File,
    hushed: Mutex<HashSet<u32>>,
    unanswered: AtomicUsize,
    ended: AtomicBool,
}

impl Fuse {
    /// Mounts it at an existing directory; the bytes of its file are those of `content`.
    ///
    /// # Errors
    /// Why this machine cannot mount one.
    pub fn mount(at: &Path, content: File) -> Result<Self, String> {
        let device = File::options().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| format!("/dev/fuse: {error}"))?;
        let theirs = device.try_clone().map_err(|error| error.to_string())?;
        let mut mount = Command::new("mount");
        let options = "fd=0,rootmode=40000,user_id=0,group_id=0,allow_other";
        mount.args(["-i", "-t", "fuse", "-o", options, "kvrail-test"]).arg(at);
        let output = mount.stdin(Stdio::from(theirs)).output();
        let output = output.map_err(|error| format!("mount: {error}"))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let shared = Arc::new(Shared {
            content,
            hushed: Mutex::default(),
            unanswered: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let server = Arc::clone(&shared);
        let thread = std::thread::spawn(move || server.serve(device));
        Ok(Self { at: at.to_owned(), shared, thread: Some(thread) })
    }

    /// The path of its file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.at.join(NAME)
    }

    /// Answers no request of this kind from now on.
    pub fn withhold_answers(&self, request: FuseRequest) {
        let mut hushed = self.shared.hushed.lock().unwrap_or_else(PoisonError::into_inner);
        hushed.insert(request as u32);
    }

    /// Requests that came and got no answer.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.shared.unanswered.load(Ordering::Relaxed) // a count orders nothing
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        // The last descriptor of the device ends the connection: every process that waits for an
        // answer gets an error. Release pairs with Acquire in `serve`.
        self.shared.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
        let _unmounted = Command::new("umount").arg("--lazy").arg(&self.at).status();
    }
}

/// One request, taken apart.
struct Request<'a> {
    opcode: u32,
    unique: u64,
    node: u64,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, body) = bytes.split_at_checked(40)?;
        let opcode = u32_at(head, 4);
        Some(Self { opcode, unique: u64_at(head, 8), node: u64_at(head, 16), body })
    }
}

impl Shared {
    fn serve(&self, mut device: File) {
        let mut buffer = vec![0; REQUEST_BYTES];
        // Acquire pairs with Release in `drop`.
        while !self.ended.load(Ordering::Acquire) {
            let ready = poll(&mut [PollFd::new(&device, PollFlags::IN)], Some(&LOOK));
            if !ready.is_ok_and(|ready| ready > 0) {
                continue;
            }
            let Ok(length) = device.read(&mut buffer) else { continue };
            let Some(request) = Request::parse(&buffer[..length]) else { continue };
            if self.is_hushed(request.opcode) {
                self.unanswered.fetch_add(1, Ordering::Relaxed); // a count orders nothing
                continue;
            }
            let Some(answer) = self.answer(&request) else { continue };
            let (errno, body) = match answer {
                Ok(body) => (0, body),
                Err(errno) => (-errno.raw_os_error(), Vec::new()),
            };
            let mut reply = Vec::with_capacity(16 + body.len());
            let total = u32::try_from(16 + body.len()).expect("answers are short");
            reply.extend(total.to_le_bytes());
            reply.extend(errno.to_le_bytes());
            reply.extend(request.unique.to_le_bytes());
            reply.extend(body);
            // The process that sent the request may have been interrupted, so the reply may fail.
            let _heard = device.write(&reply);
        }
    }

    fn is_hushed(&self, opcode: u32) -> bool {
        self.hushed.lock().unwrap_or_else(PoisonError::into_inner).contains(&opcode)
    }

    /// The answer; `None` where the kernel expects none.
    fn answer(&self, request: &Request<'_>) -> Option<Result<Vec<u8>, Errno>> {
        let done = Ok(Vec::new());
        Some(match request.opcode {
            1 if request.body == format!("{NAME}\0").as_bytes() => Ok(self.entry()),
            1 => Err(Errno::NOENT),
            2 | 36 | 42 => return None, // forget, interrupt, forget many
            3 => Ok(self.attributes(request.node)),
            4 => self.set_size(request.body).map(|()| self.attributes(request.node)),
            14 | 27 => Ok(vec![0; 16]), // open of the file, of the directory
            15 => self.read(request.body),
            16 => self.write(request.body),
            17 => Ok(vec![0; 80]), // statfs
            18 | 20 | 25 | 28 | 29 | 30 | 34 | 38 => done,
            26 => Ok(hello()),
            _ => Err(Errno::NOSYS),
        })
    }

    fn entry(&self) -> Vec<u8> {
        let mut out = FILE.to_le_bytes().to_vec();
        out.extend([0; 32]); // generation; neither name nor attributes are kept
        out.extend(self.attribute_words(FILE));
        out
    }

    fn attributes(&self, node: u64) -> Vec<u8> {
        let mut out = vec![0; 16]; // not kept
        out.extend(self.attribute_words(node));
        out
    }

    fn attribute_words(&self, node: u64) -> Vec<u8> {
        let size = self.content.metadata().map_or(0, |metadata| metadata.len());
        let (mode, links, size) =
            if node == ROOT { (0o40_755_u32, 2_u32, 0) } else { (0o100_666, 1, size) };
        let mut out = Vec::with_capacity(88);
        for word in [node, size, size.div_ceil(512), 0, 0, 0] {
            out.extend(word.to_le_bytes());
        }
        // Nanoseconds of three times; mode, links, user, group, device, block, flags.
        for word in [0, 0, 0, mode, links, 0, 0, 0, 4096, 0] {
            out.extend(word.to_le_bytes());
        }
        out
    }

    fn set_size(&self, body: &[u8]) -> Result<(), Errno> {
        let sized = u32_at(body, 0) & 1 << 3 != 0;
        if sized { errno(self.content.set_len(u64_at(body, 16))) } else { Ok(()) }
    }

    fn read(&self, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let mut out = vec![0; u32_at(body, 16) as usize];
        let length = errno(self.content.read_at(&mut out, u64_at(body, 8)))?;
        out.truncate(length);
        Ok(out)
    }

    fn write(&self, body: &[u8]) -> Result<Vec<u8>, Errno> {
        let (head, data) = body.split_at_checked(40).ok_or(Errno::INVAL)?;
        errno(self.content.write_all_at(data, u64_at(head, 8)))?;
        Ok([u32_at(head, 16).to_le_bytes(), [0; 4]].concat())
    }
}

/// The answer to the kernel's first request: protocol 7.31, nothing optional.
fn hello() -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    for word in [7, 31, 128 << 10, 0, 0, WRITE_BYTES_MAX, 1] {
        out.extend(u32::to_le_bytes(word));
    }
    out.resize(64, 0);
    out
}

fn errno<T>(outcome: std::io::Result<T>) -> Result<T, Errno> {
    outcome.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}
