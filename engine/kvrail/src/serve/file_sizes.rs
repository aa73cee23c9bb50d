//! The limit of file sizes: as high as it may go, and above every member that is a file, or no
//! start. A write behind it would fail as one to a broken drive does.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use kvrail_cli::config::Config;
use kvrail_cli::failure::{Exit, Failure};

/// Raises the limit as far as it may go, and refuses a start that it would keep from writing.
///
/// # Errors
/// `Failure` names the member, its size and the limit.
pub(super) fn provide(config: &Config) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Fsize);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // A soft limit that stays is still looked at.
    let _raised = setrlimit(Resource::Fsize, raised);
    let Some(allowed) = getrlimit(Resource::Fsize).current else { return Ok(()) };
    let paths =
        config.volume.iter().flat_map(|volume| &volume.members).filter_map(|member| member.path());
    let files = paths.filter_map(|path| Some((path, path.metadata().ok()?)));
    let mut files = files.filter(|(_, file)| file.is_file());
    match files.find(|(_, file)| file.len() > allowed) {
        None => Ok(()),
        Some((path, file)) => {
            let what = format!(
                "{}: it has {} bytes, and this process may write files of {allowed} bytes \
                 (RLIMIT_FSIZE)",
                path.display(),
                file.len()
            );
            let remedy = "raise the limit of file sizes (LimitFSIZE=infinity, ulimit -f unlimited)";
            Err(Failure::new(Exit::Refused, what).with_remedy(remedy))
        }
    }
}
