//! Standard output: tables for people, JSON for programs.

use std::io::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::PIPE_BUF;
use serde::Serialize;

use crate::failure::Failure;
pub use crate::format::Format;

/// Prints text as it is, with a line end.
pub fn print_text(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush());
    written.map_err(|error| Failure::output(&error))
}

/// How long a reader of standard error that does not read is waited for.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Writes a message to standard error. A full pipe drops the message: no program hangs on a missing
/// reader.
pub fn say(text: &str) {
    let mut out = std::io::stderr().lock();
    for chunk in format!("{text}\n").as_bytes().chunks(PIPE_BUF) {
        let mut takes = [PollFd::new(&out, PollFlags::OUT)];
        // A pipe that takes something takes a chunk.
        if poll(&mut takes, Some(&PATIENCE)).is_ok_and(|ready| ready == 0) {
            return;
        }
        if out.write_all(chunk).is_err() {
            return;
        }
    }
}

/// Prints a failure. For the journal each line has its priority (sd-daemon(3)).
pub fn say_failure(text: &str) {
    if !is_journal() {
        return say(text);
    }
    let lines: Vec<_> = text.lines().map(|line| format!("<3>{line}")).collect();
    say(&lines.join("\n"));
}

/// Whether standard error is a stream of the journal (systemd.exec(5)).
pub fn is_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    let own = rustix::fs::fstat(std::io::stderr());
    own.is_ok_and(|file| stream == format!("{}:{}", file.st_dev, file.st_ino))
}

/// Prints a value as one indented JSON document.
pub fn print_json<T: Serialize>(value: &T) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::output(&std::io::Error::other(error)))?;
    print_text(&text)
}

/// A table without lines, as wide as it needs to be.
pub fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    if !header.is_empty() {
        table.set_header(header.to_vec());
    }
    table
}

/// Prints a table without the blanks around its lines.
pub fn print_table(table: &Table) -> Result<(), Failure> {
    let bare = |line: String| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned();
    let lines = table.lines().map(bare);
    print_text(&lines.collect::<Vec<_>>().join("\n"))
}

/// Bytes for people: four digits and the unit that fits; exact sizes are for JSON.
pub fn human_bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}
