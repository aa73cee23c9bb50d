//! `kvrail support-bundle`: what somebody far away needs to know of this host, without secrets.

mod redact;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use kvrail_metrics::{Dialect, expose};
use rustix::system::uname;
use serde::Serialize;
use tar::{Builder, Header};
use tempfile::{NamedTempFile, tempfile};

use self::redact::Redactor;
use super::status::SidecarArgs;
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail support-bundle
  kvrail support-bundle /tmp/kvrail.tar.gz
  kvrail support-bundle --log /var/log/kvrail.log     where no journal has it
  tar xzOf kvrail.tar.gz kvrail-support/status.txt

It holds the configuration with its origin, status, slow requests, metrics, checks, devices,
topology, versions and the end of the log. Secrets and the paths of key files are left out; names of
hosts, users and processes, and hashes of blocks' keys, are not. Only its owner may read the file.";

/// Longest wait for a part; a slower part is left out, with a note in its place.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most bytes of a part: its end is kept.
const PART_BYTES_MAX: u64 = 8 << 20;

/// Lines of the journal.
const JOURNAL_LINES: &str = "20000";

/// Folder within the bundle.
const FOLDER: &str = "kvrail-support";

/// Arguments of `kvrail support-bundle`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BundleArgs {
    /// The file to make; it must not be there [default: kvrail-support-HOST-SECONDS.tar.gz]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// The sidecar's log [default: the journal of the unit kvrail]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    #[command(flatten)]
    sidecar: SidecarArgs,
}

/// The bundle's content: each part's file, and whether it could be collected.
#[derive(Debug, Serialize)]
struct BundlePart {
    file: &'static str,
    missing: Option<String>,
    #[serde(skip)]
    text: String,
}

#[derive(Serialize)]
struct WrittenBundle<'a> {
    file: &'a Path,
    parts: &'a [BundlePart],
}

/// Collects, and writes one file or none.
///
/// # Errors
/// `Failure` when the file cannot be written; nothing of it is left then.
pub(crate) fn run(args: &BundleArgs, context: &Context) -> Result<(), Failure> {
    let host = uname().nodename().to_string_lossy().into_owned();
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let name = || format!("kvrail-support-{host}-{seconds}.tar.gz").into();
    let file = args.file.clone().unwrap_or_else(name);
    if file.exists() {
        return Err(Failure::new(Exit::Refused, format!("{} is there already", file.display()))
            .with_remedy("name another file, or remove it"));
    }
    let mut parts = collect(args, context);
    let redactor = Redactor::new(context.config().ok().as_ref());
    parts.iter_mut().for_each(|part| part.text = redactor.clean(&part.text));
    write(&file, &parts, seconds).map_err(|error| {
        Failure::new(Exit::Failed, format!("writing {}: {error}", file.display()))
            .with_remedy("nothing of it is left; name a file where there is room")
    })?;
    if context.format == Format::Json {
        return print_json(&WrittenBundle { file: &file, parts: &parts });
    }
    let missing = parts.iter().filter_map(|part| Some((part.file, part.missing.as_ref()?)));
    missing.for_each(|(file, why)| context.note(&format!("{file}: {why}")));
    print_text(&file.display().to_string())
}

fn collect(args: &BundleArgs, context: &Context) -> Vec<BundlePart> {
    let own: [(&'static str, &[&str]); 7] = [
        ("config.txt", &["config", "show", "--origin"]),
        ("status.json", &["status", "--format", "json"]),
        ("status.txt", &["status", "--verbose"]),
        ("slow.txt", &["trace", "--past", "--rows", "1000"]),
        ("check.txt", &["check"]),
        ("devices.txt", &["devices", "--verbose"]),
        ("topology.txt", &["topology"]),
    ];
    let globals = context.globals();
    let socket = args.sidecar.arguments();
    let mut parts = vec![versions()];
    for (file, words) in own {
        let mut command = Command::new("/proc/self/exe");
        command.args(words).args(&globals);
        if ["status", "trace"].contains(&words[0]) {
            command.args(&socket);
        }
        parts.push(said(file, &mut command));
    }
    parts.push(log(args.log.as_deref()));
    let exposed = args.sidecar.looker(context).report();
    parts.push(match exposed {
        Ok(report) => part("metrics.txt", expose(&report, Dialect::OpenMetrics)),
        Err(failure) => absent("metrics.txt", failure.log_text()),
    });
    parts
}

fn part(file: &'static str, text: String) -> BundlePart {
    BundlePart { file, missing: None, text }
}

fn absent(file: &'static str, why: String) -> BundlePart {
    BundlePart { file, text: format!("{why}\n"), missing: Some(why) }
}

fn versions() -> BundlePart {
    let (kernel, release) = (uname(), std::fs::read_to_string("/etc/os-release"));
    let text = format!(
        "kvrail {}\n{} {} {}\n\n{}",
        env!("CARGO_PKG_VERSION"),
        kernel.release().to_string_lossy(),
        kernel.version().to_string_lossy(),
        kernel.machine().to_string_lossy(),
        release.unwrap_or_default()
    );
    part("versions.txt", text)
}

fn log(file: Option<&Path>) -> BundlePart {
    match file {
        Some(path) => match File::open(path).and_then(tail) {
            Ok(text) => part("log.txt", text),
            Err(error) => absent("log.txt", format!("{}: {error}", path.display())),
        },
        None => {
            let mut journal = Command::new("journalctl");
            journal.args(["--unit", "kvrail", "--no-pager", "--output", "short-iso"]);
            said("log.txt", journal.args(["--lines", JOURNAL_LINES]))
        }
    }
}

/// A command's standard output and standard error; the command ends, or is killed.
fn said(file: &'static str, command: &mut Command) -> BundlePart {
    match listen(command) {
        Ok(text) => part(file, text),
        Err(error) => {
            let name = command.get_program().to_string_lossy().into_owned();
            absent(file, format!("{name}: {error}"))
        }
    }
}

fn listen(command: &mut Command) -> io::Result<String> {
    let output = tempfile()?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let mut child = command.spawn()?;
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            return Err(io::Error::other(format!("it did not end within {PATIENCE:?}")));
        }
        thread::sleep(Duration::from_millis(5));
    }
    tail(output)
}

/// The end of a file.
fn tail(mut file: File) -> io::Result<String> {
    let length = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(length.saturating_sub(PART_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(PART_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes beside the file first, so that there is the whole of it or nothing.
fn write(file: &Path, parts: &[BundlePart], seconds: u64) -> io::Result<()> {
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut half = NamedTempFile::new_in(folder)?;
    let mut bundle = Builder::new(GzEncoder::new(half.as_file_mut(), Compression::default()));
    for part in parts {
        let mut header = Header::new_gnu();
        header.set_size(part.text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(seconds);
        bundle.append_data(&mut header, format!("{FOLDER}/{}", part.file), part.text.as_bytes())?;
    }
    bundle.into_inner()?.finish()?.flush()?;
    half.as_file().sync_all()?;
    half.persist_noclobber(file)?;
    Ok(())
}

impl SidecarArgs {
    /// The same on a command line.
    fn arguments(&self) -> Vec<OsString> {
        let socket = self.socket().map(|socket| ["--socket".into(), socket.into()]);
        socket.into_iter().flatten().collect()
    }
}
