//! How far a command is, on standard error, where that is a terminal.

use std::ops::ControlFlow;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kvrail_volume::FillProgress;

use crate::context::{Context, Verbosity};
use crate::failure::Failure;
use crate::output::Format;
use crate::stop::StopFlag;

/// A bar of this style; none for programs and with `--quiet`.
pub fn bar(context: &Context, template: &str, length: Option<u64>) -> ProgressBar {
    match context.format {
        Format::Json => bar_for(Verbosity::Quiet, template, length),
        Format::Human => bar_for(context.verbosity, template, length),
    }
}

/// The same where there is no context.
pub fn bar_for(verbosity: Verbosity, template: &str, length: Option<u64>) -> ProgressBar {
    let target = match verbosity {
        Verbosity::Normal => ProgressDrawTarget::stderr(),
        Verbosity::Quiet => ProgressDrawTarget::hidden(),
    };
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(length, target).with_style(style)
}

/// Shows how members are written, until it is done or a signal stops it.
pub fn writing<T>(
    context: &Context,
    write: impl FnOnce(&mut dyn FnMut(FillProgress) -> ControlFlow<()>) -> T,
) -> Result<T, Failure> {
    let stop = StopFlag::register()?;
    let template = "writing {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} \
                    {eta} left";
    let bar = bar(context, template, None);
    let written = write(&mut |progress: FillProgress| {
        bar.set_length(progress.total_bytes);
        bar.set_position(progress.done_bytes);
        if stop.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    Ok(written)
}
