//! The context of every command: the global options.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::config::{Config, Layers, Loaded, LogFormat, load};
use crate::failure::Failure;
use crate::output::{Format, say};

/// The command that starts this program again, to receive clients' descriptors. Not for users.
pub const PORTER: &str = "porter";

/// The file that is read when none is named.
const DEFAULT_PATH: &str = "/etc/kvrail/kvrail.toml";

/// The messages besides the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Progress and notes on standard error.
    Normal,
    /// Errors only.
    Quiet,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Configuration file [default: /etc/kvrail/kvrail.toml where it exists]
    #[arg(long, global = true, value_name = "FILE", env = "KVRAIL_CONFIG", hide_env_values = true)]
    pub config: Option<PathBuf>,
    /// Set one key over file and environment; may be repeated. Relative paths begin here
    #[arg(long, global = true, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Output for people or for programs
    #[arg(long, global = true, value_enum, default_value_t)]
    pub format: Format,
    /// Print only results and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// The global options, read.
#[derive(Clone, Debug)]
pub struct Context {
    /// The reader of the output: a person or a program.
    pub format: Format,
    /// The messages besides the result.
    pub verbosity: Verbosity,
    /// How notes are written.
    notes: LogFormat,
    layers: Layers,
}

impl Context {
    /// The options of a command line, with the default file and the environment.
    pub fn new(globals: Globals) -> Self {
        let default = || Some(PathBuf::from(DEFAULT_PATH)).filter(|path| path.exists());
        let layers = Layers {
            file: globals.config.or_else(default),
            environment: std::env::vars_os().collect(),
            sets: globals.set,
        };
        let verbosity = if globals.quiet { Verbosity::Quiet } else { Verbosity::Normal };
        Self { format: globals.format, verbosity, notes: LogFormat::Text, layers }
    }

    /// The configuration, layered and checked. Read when asked for: a command that needs none must
    /// not fail on a broken one.
    ///
    /// # Errors
    /// `Failure` with status 2 names key, value, origin and remedy.
    pub fn config(&self) -> Result<Loaded, Failure> {
        Ok(load(&self.layers)?)
    }

    /// The socket of this host's sidecar. A broken configuration file must not keep a command from
    /// the running sidecar: the readable part of the file counts then, and one line reports it.
    pub fn socket(&self) -> PathBuf {
        match self.config() {
            Ok(loaded) => loaded.config.sidecar.socket,
            Err(_) => {
                let socket = self.layers.socket();
                let socket = socket.unwrap_or_else(|| Config::default().sidecar.socket);
                self.note(&format!(
                    "the configuration is broken, `kvrail config check` names the place; using the \
                     sidecar at {}",
                    socket.display()
                ));
                socket
            }
        }
    }

    /// How a sidecar of a broken configuration logs, as far as its layers are readable: collectors
    /// parse its failure, too.
    pub fn log_format(&self) -> LogFormat {
        self.layers.log_format().unwrap_or_default()
    }

    /// The layers, as a command line names them: for another process of this program.
    pub fn globals(&self) -> Vec<OsString> {
        let file = self.layers.file.iter().map(|file| ("--config", file.as_os_str().to_owned()));
        let sets = self.layers.sets.iter().map(|set| ("--set", set.into()));
        file.chain(sets).flat_map(|(option, value)| [option.into(), value]).collect()
    }

    /// The first key set on the command line.
    pub fn first_set(&self) -> Option<&str> {
        self.layers.sets.first().map(String::as_str)
    }

    /// The configuration file in use, if there is one.
    pub fn config_file(&self) -> Option<&Path> {
        self.layers.file.as_deref()
    }

    /// Its fragments, as far as their folder can be read.
    pub fn fragments(&self) -> Vec<PathBuf> {
        self.layers.fragments().unwrap_or_default()
    }

    /// The same, with notes as lines of this kind of log.
    pub fn with_notes(self, notes: LogFormat) -> Self {
        Self { notes, ..self }
    }

    /// A note for people, on standard error.
    pub fn note(&self, text: &str) {
        if let Some(note) = self.note_text(text) {
            say(&note);
        }
    }

    /// The same as it is written; nothing where there are to be none.
    pub fn note_text(&self, text: &str) -> Option<String> {
        let wanted = self.verbosity == Verbosity::Normal && self.format == Format::Human;
        wanted.then(|| match self.notes {
            LogFormat::Text => format!("kvrail: {text}"),
            LogFormat::Json => json_line(text),
        })
    }
}

/// As the log writes it.
fn json_line(text: &str) -> String {
    let mut time = String::new();
    // Where the clock cannot be read, a line without its time is better than none.
    let _written = SystemTime.format_time(&mut Writer::new(&mut time));
    let (fields, target) = (json!({"message": text}), "kvrail");
    json!({"timestamp": time, "level": "INFO", "fields": fields, "target": target}).to_string()
}
