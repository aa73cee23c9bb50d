//! `kvrail serve`.

use std::path::{Path, PathBuf};

use clap::Args;
use kvrail_session::{LateLeft, Stopped, StoppedHow};
use kvrail_units::Period;
use sd_notify::NotifyState;

use crate::serve::{
    EarlyStop, Parent, Reload, Sidecar, await_drives, confine, exit_on_change, log_to_stderr,
    temporary,
};
use kvrail_cli::config::{Loaded, LogFormat};
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, human_bytes, print_json};

const EXAMPLES: &str = "\
Examples:
  kvrail serve --config /etc/kvrail/kvrail.toml
  kvrail serve --set 'volume=[{name=\"kv0\", members=[\"/data/kv0.img\"]}]' \\
               --set sidecar.socket=/tmp/kvrail.sock

SIGTERM or SIGINT drains: accepted requests are finished, new ones are answered with DRAINING. A
second signal stops at once; within half a second it counts as the first. SIGHUP and `kvrail reload`
read the configuration again: the users that may attach, limits, pages, the drain timeout, the log
and the target change at once, the log names keys that need a restart. An emptied [target] is taken
down; a change that fails leaves the target as it was.

With --exit-on-change a supervisor starts the sidecar again with a file that has changed: a node's
part of the configuration in Kubernetes, which the file of --config was made of. A file that is no
configuration, or names drives that are not there, ends nothing: the log has the reason.

While the host boots (sidecar.wait_for_drives), the sidecar waits for missing members.

With --format json a ready sidecar prints one document, that of `kvrail status`.";

/// Arguments of `kvrail serve`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeArgs {
    /// Stop (as by SIGTERM) when the process that started this one ends, or its thread that did
    #[arg(long)]
    exit_with_parent: bool,
    /// Remove this temporary folder at the end if that process could not, because it was killed;
    /// its name begins with kvrail-
    #[arg(long, value_name = "FOLDER", requires = "exit_with_parent", value_parser = temporary)]
    remove: Vec<PathBuf>,
    /// Stop (as by SIGTERM) once FILE differs from COPY, which was made before the start; none is
    /// an empty one
    #[arg(long, num_args = 2, value_names = ["FILE", "COPY"])]
    exit_on_change: Vec<PathBuf>,
    /// Wait for a random part of this time before that stop, so that a change of many hosts does
    /// not stop all of them at once
    #[arg(long, value_name = "TIME", default_value = "0s", requires = "exit_on_change")]
    exit_within: Period,
}

/// Runs the sidecar until a signal ends it.
///
/// # Errors
/// `Failure` with cause and remedy when it cannot start, or when requests were left at the end.
pub(crate) fn run(args: ServeArgs, context: &Context) -> Result<(), Failure> {
    let parent = if args.exit_with_parent { Some(Parent::watch()?) } else { None };
    let outcome = serve(parent, &args, context);
    if let Some(parent) = parent {
        parent.clean_up(&args.remove);
    }
    outcome
}

fn serve(parent: Option<Parent>, args: &ServeArgs, context: &Context) -> Result<(), Failure> {
    let loaded = context.config();
    let format = |loaded: &Loaded| loaded.config.sidecar.log_format;
    let lines = loaded.as_ref().map_or_else(|_| context.log_format(), format);
    let context = &context.clone().with_notes(lines);
    let served = loaded.and_then(|loaded| serve_as(loaded, parent, args, context));
    match lines {
        LogFormat::Text => served,
        LogFormat::Json => served.map_err(|failure| failure.shown_as(Format::Json)),
    }
}

fn serve_as(
    loaded: Loaded,
    parent: Option<Parent>,
    args: &ServeArgs,
    context: &Context,
) -> Result<(), Failure> {
    let config = &loaded.config.clone();
    let stop = EarlyStop::register(parent)?;
    await_drives(config, context, &stop);
    if stop.is_asked() {
        context.note("stopped before it served");
        return Ok(());
    }
    let watched = args.exit_on_change.first().map(PathBuf::as_path);
    let read: Vec<&Path> = context.config_file().into_iter().chain(watched).collect();
    let entered = confine(config, &read, &args.remove)?;
    let (set_log, lost_lines, log) = log_to_stderr(config)?;
    let note = |text: &str| context.note_text(text).iter().for_each(|note| log.say(note));
    let reload = Reload::new(loaded, context.clone(), set_log);
    let sidecar = Sidecar::start(config, reload, lost_lines, entered, &stop)?;
    parent.map_or(Ok(()), Parent::catch_up)?;
    if let [file, copy] = &*args.exit_on_change {
        exit_on_change(file, copy, args.exit_within.duration())?;
    }
    match context.format {
        Format::Human => note(sidecar.report.trim_end()),
        Format::Json => print_json(&sidecar.status())?,
    }
    // Without a supervisor there is no notification.
    let _told = sd_notify::notify(&[NotifyState::Ready, NotifyState::Status("serving")]);
    let stopped = sidecar.run()?;
    if stopped.how == StoppedHow::Drained && stopped.pollers_left == 0 {
        note(&format!("drained and stopped{}", named(stopped.lost)));
        return Ok(());
    }
    Err(left_over(&stopped))
}

/// Blocks that a stop could not write, for its last line. The log has why. No failure of the stop:
/// a supervisor could do nothing more for them.
fn named(lost: LateLeft) -> String {
    if lost.blocks == 0 {
        return String::new();
    }
    format!(
        "; {} acknowledged blocks ({}) of memory_tier.write_late could not be written, and are \
         lost: see the log",
        lost.blocks,
        human_bytes(lost.bytes)
    )
}

/// What a stop has left, and why.
fn left_over(stopped: &Stopped) -> Failure {
    let Stopped { how, pollers_left, sessions_left, late, lost } = *stopped;
    let what = format!(
        "stopped with work left ({how:?}): {pollers_left} pollers, {sessions_left} sessions{}",
        named(lost)
    );
    if late.blocks == 0 {
        return Failure::new(Exit::Failed, what)
            .with_remedy("a device does not answer: see the log; raise sidecar.drain_timeout");
    }
    let lost = format!(
        "{what}; {} acknowledged blocks ({}) of memory_tier.write_late were not written, and are \
         lost",
        late.blocks,
        human_bytes(late.bytes)
    );
    let remedy = match how {
        StoppedHow::Forced => "ask once to stop, and wait: a second request does not wait for them",
        StoppedHow::Drained | StoppedHow::TimedOut => {
            "raise sidecar.drain_timeout to memory_tier.bytes over the drives' rate, or lower \
             memory_tier.bytes; see the log for a device that does not answer"
        }
    };
    Failure::new(Exit::Failed, lost).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use kvrail_session::{LateLeft, Stopped, StoppedHow};

    use super::{left_over, named};

    #[test]
    fn blocks_that_a_stop_could_not_write_are_in_its_last_line() {
        assert_eq!(named(LateLeft::default()), "");
        let line = named(LateLeft { blocks: 7, bytes: 7 << 20 });
        for word in ["7 acknowledged blocks (7", "memory_tier.write_late", "lost"] {
            assert!(line.contains(word), "no {word:?} in {line}");
        }
    }

    #[test]
    fn late_blocks_that_a_stop_leaves_are_named_with_the_setting() {
        let of = |how, blocks| {
            let late = LateLeft { blocks, bytes: blocks << 20 };
            let lost = LateLeft::default();
            let stopped = Stopped { how, pollers_left: 1, sessions_left: 0, late, lost };
            format!("{:?}", left_over(&stopped))
        };
        let without = of(StoppedHow::TimedOut, 0);
        assert!(without.contains("a device does not answer"), "{without}");
        assert!(!without.contains("write_late"), "{without}");
        let late = of(StoppedHow::Drained, 7);
        for word in ["7 acknowledged blocks (7", "memory_tier.write_late", "sidecar.drain_timeout"]
        {
            assert!(late.contains(word), "no {word:?} in {late}");
        }
        assert!(of(StoppedHow::Forced, 7).contains("ask once to stop"));
    }
}
