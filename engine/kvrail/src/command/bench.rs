//! `kvrail bench`.

use std::io::stdout;

use clap::Args;
use kvrail_bench::sidecar::AttachHarness;
use kvrail_bench::{BenchError, BenchOptions, Harness, LEGEND, Progress, RunVerdict};
use kvrail_client::ClientError;
use kvrail_device::probe_memory;

use crate::embedded::Embedded;
use kvrail_cli::context::{Context, Verbosity};
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::Format;

const EXAMPLES: &str = "\
Examples:
  kvrail bench                      the default cases, volume and store, about a minute and a half
  kvrail bench --dir /mnt/nvme --json report.json
  kvrail bench --member serial:S6CKNE0T,serial:S6CKNE1B        blank drives, wiped at the end
  kvrail bench --op read --block 4KiB,64KiB --depth 1,32 --arms kvrail,raw,raw:sqpoll
  kvrail bench --op read,write,lookup --block 640256 --depth 8 --arms store
  kvrail bench --arms store,files --op mixed --block 1MiB --depth 1 --clients 8
  kvrail bench --store --arms kvrail,files     the store beside plain files
  kvrail bench --block 256KiB --depth 8 --open 80% --seconds 10
  kvrail bench --gpu 0 --dir /mnt/nvme --json gpu.json         between a file and GPU memory
  kvrail bench --set pollers.busy_poll_max=200us --set device.queue_depth=64
  kvrail bench --store --trace requests.jsonl --speed 60 --volume-size 4GiB
  kvrail bench --attach /run/kvrail/kvrail.sock --volume kv0 --overwrite";

/// Arguments of `kvrail bench`.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{LEGEND}"))]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    options: BenchOptions,
}

/// Measures this machine.
///
/// # Errors
/// `Failure` when something stands in the way or operations fail; status 5 when data came back
/// wrong.
pub(crate) fn run(args: BenchArgs, context: &Context) -> Result<(), Failure> {
    let progress = match (context.verbosity, context.format) {
        (Verbosity::Normal, Format::Human) => Progress::Shown,
        _ => Progress::Hidden,
    };
    let options = BenchOptions { progress, ..args.options };
    let mut harness: Box<dyn Harness> = match options.attach {
        None => {
            // Before anything is written: a volume takes a while.
            let config = context.config()?.config;
            probe_memory(None, config.device.queue_depth)
                .map_err(|error| Failure::new(Exit::Refused, error.to_string()))?;
            Box::new(Embedded::new(context.verbosity, config))
        }
        Some(_) => match context.first_set() {
            None => Box::new(AttachHarness),
            Some(set) => return Err(pointless(set)),
        },
    };
    let format = match context.format {
        Format::Human => kvrail_bench::OutputFormat::Table,
        Format::Json => kvrail_bench::OutputFormat::Json,
    };
    let outcome = kvrail_bench::command(&options, &mut *harness, format, &mut stdout().lock());
    match outcome {
        Ok(RunVerdict::Clean) => Ok(()),
        Ok(RunVerdict::Failed) => {
            Err(Failure::new(Exit::Failed, "operations failed; the report lists them"))
        }
        Ok(RunVerdict::WrongData) => {
            Err(Failure::new(Exit::WrongData, "data came back wrong; the report lists it"))
        }
        Err(error) => Err(failure(error)),
    }
}

/// The obstacle, with the exit status of its kind.
fn failure(error: anyhow::Error) -> Failure {
    let client = error.downcast_ref::<ClientError>().map(Failure::from);
    if let Some(failure) = client.filter(|failure| failure.exit() != Exit::Failed) {
        return failure;
    }
    match error.downcast_ref() {
        Some(BenchError::Options(_)) => Failure::new(Exit::Usage, format!("{error:#}")),
        Some(BenchError::Output(error)) => Failure::output(error),
        None => error
            .downcast()
            .unwrap_or_else(|error| Failure::new(Exit::Failed, format!("{error:#}"))),
    }
}

fn pointless(set: &str) -> Failure {
    let message = format!("--set {set}: --attach measures a sidecar that has its configuration");
    Failure::new(Exit::Usage, message)
        .with_remedy("set the key where that sidecar is started, or leave --attach out")
}
