//! `kvrail engines`: asks a Python which engines it has. What is asked, and how an engine is tried,
//! is in the Python package; it travels in this binary too, so that the two always fit.

use std::path::PathBuf;
use std::process::Command;

use clap::{Args, Subcommand, ValueEnum};

use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::Format;

const EXAMPLES: &str = "\
Examples:
  kvrail engines                               what is installed, and the configuration to paste
  kvrail engines --python /opt/vllm/bin/python
  kvrail engines try vllm                      with a sidecar of its own, for some seconds
  kvrail engines try lmcache --socket /run/kvrail/kvrail.sock --store kv
  kvrail engines --format json";

const TRY_EXAMPLES: &str = "\
Examples:
  kvrail engines try vllm
  kvrail engines try sglang --python /opt/sglang/bin/python --format json

Puts blocks through the engine's own code into a store and back, and compares every byte. No model
and no GPU is needed. Exit status: 0 when all went well, 1 when a step failed.";

/// The program that Python runs.
const PROGRAM: &str = include_str!("../../../../ffi/python/python/kvrail/engines.py");

/// Arguments of `kvrail engines`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EnginesArgs {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    place: EngineLocation,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Move blocks through an engine's own code into a store and back
    #[command(after_help = TRY_EXAMPLES)]
    Try {
        /// The engine
        #[arg(value_enum)]
        engine: Engine,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Engine {
    Vllm,
    Lmcache,
    Sglang,
}

#[derive(Debug, Args)]
struct EngineLocation {
    /// The Python that the engines run in
    #[arg(long, global = true, value_name = "PROGRAM", env = "KVRAIL_PYTHON")]
    #[arg(default_value = "python3", hide_env_values = true)]
    python: PathBuf,
    /// The sidecar's socket [default: sidecar.socket of the configuration; for `try`, a sidecar of
    /// its own]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The store that engines shall use
    #[arg(long, global = true, value_name = "NAME", default_value = "kv")]
    store: String,
}

/// Asks Python, which prints the answer.
///
/// # Errors
/// There is no such Python, or a step of the try has failed.
pub(crate) fn run(args: EnginesArgs, context: &Context) -> Result<(), Failure> {
    let EnginesArgs { action, place } = args;
    let mut asked = Command::new(&place.python);
    // Safe paths: a folder `kvrail` in the working directory, as beside a checkout, is no package.
    asked.arg("-P").arg("-c").arg(PROGRAM).arg("--store").arg(&place.store);
    if context.format == Format::Json {
        asked.args(["--format", "json"]);
    }
    let socket = match (&action, place.socket) {
        (_, Some(socket)) => Some(socket),
        (Some(_), None) => None,
        (None, None) => Some(context.socket()),
    };
    asked.args(socket.iter().flat_map(|socket| ["--socket".as_ref(), socket.as_os_str()]));
    if let Some(Action::Try { engine }) = &action {
        asked.arg("--try").arg(engine.name());
    }
    let ended = asked.status().map_err(|why| {
        let words = format!("--python {}: {why}", place.python.display());
        let remedy = "name the Python that has your engines, as /opt/vllm/bin/python";
        Failure::new(Exit::Usage, words).with_remedy(remedy)
    })?;
    match (ended.success(), &action) {
        (true, _) => Ok(()),
        (false, Some(Action::Try { engine })) => {
            let words = format!("the try of {} has failed", engine.name());
            Err(Failure::new(Exit::Failed, words).with_remedy("the failed step names the cause"))
        }
        (false, None) => {
            let words = format!("{} has failed: {ended}", place.python.display());
            let remedy = "its words are above; Python 3.11 or later is needed";
            Err(Failure::new(Exit::Failed, words).with_remedy(remedy))
        }
    }
}

impl Engine {
    const fn name(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Lmcache => "lmcache",
            Self::Sglang => "sglang",
        }
    }
}
