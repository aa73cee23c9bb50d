//! Which sidecar and which store a command is about, and whether it is meant.

use std::io::{BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use indicatif::HumanDuration;
use kvrail_client::{Absent, AttachOptions, Client, ClientError, Identity, Namespace, Volume};

use crate::command::silent::explain;
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};

/// Longest wait: a member writes a namespace twice, each time to stable media.
const PATIENCE: Duration = Duration::from_secs(10);

/// Identity under which a namespace is asked for that is not there.
const UNKNOWN: &str = r#"{"namespace":"unknown"}"#;

/// Where to ask.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// The sidecar's socket [default: sidecar.socket of the configuration]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The store [default: the only one that is served]
    #[arg(long, value_name = "NAME")]
    store: Option<String>,
}

/// A namespace, and whether it is meant.
#[derive(Debug, Args)]
pub(super) struct NamespaceArgs {
    /// The namespace
    pub(super) name: String,
    #[command(flatten)]
    pub(super) target: TargetArgs,
    /// The name once more, instead of a question
    #[arg(long, value_name = "NAME")]
    yes: Option<String>,
}

impl NamespaceArgs {
    /// Has the name repeated.
    ///
    /// # Errors
    /// As `confirm`.
    pub(super) fn confirm(&self, what: &str) -> Result<(), Failure> {
        confirm(&self.name, self.yes.as_deref(), what)
    }
}

/// A session for one command.
#[derive(Debug)]
pub(super) struct CommandSession {
    client: Client,
    socket: PathBuf,
}

impl TargetArgs {
    /// The name of the store, where one was named.
    pub(super) fn store(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// Attaches.
    ///
    /// # Errors
    /// `Failure` with status 4 when no sidecar answers.
    pub(super) fn attach(&self, context: &Context) -> Result<CommandSession, Failure> {
        let socket = self.socket.clone().unwrap_or_else(|| context.socket());
        let options = AttachOptions { timeout: PATIENCE, ..AttachOptions::default() };
        let client = Client::attach_with(&socket, &options);
        let client = client.map_err(|error| explain(&error, &socket))?;
        Ok(CommandSession { client, socket })
    }
}

impl CommandSession {
    /// Asks, and explains what went wrong.
    ///
    /// # Errors
    /// `Failure` with the sidecar's own words.
    pub(super) fn ask<T>(
        &self,
        ask: impl FnOnce(&Client) -> Result<T, ClientError>,
    ) -> Result<T, Failure> {
        ask(&self.client).map_err(|error| explain(&error, &self.socket))
    }

    /// The namespace of this name, with the identity that it has.
    ///
    /// # Errors
    /// `Failure` with the sidecar's own words where there is none.
    pub(super) fn namespace(&self, store: &Volume, name: &str) -> Result<Namespace, Failure> {
        self.ask(|client| {
            let store = client.store(store.name())?;
            let known = store.namespaces()?.into_iter().find(|space| space.name == name);
            let identity = known.map_or_else(|| UNKNOWN.to_owned(), |space| space.identity);
            store.open(name, &Identity::parse(&identity)?, Absent::Fail)
        })
    }

    /// The stores that are served; one of them where one was named.
    ///
    /// # Errors
    /// `Failure` with status 2 when there is none of that name, or none at all.
    pub(super) fn stores(&self, named: Option<&str>) -> Result<Vec<&Volume>, Failure> {
        let served = self.client.volumes().iter();
        let stores: Vec<&Volume> = served.filter(|store| store.is_store()).collect();
        if stores.is_empty() {
            let what = format!("the sidecar at {} serves no store", self.socket.display());
            return Err(Failure::new(Exit::Usage, what)
                .with_remedy("make one with `kvrail volume create --kind store`, and serve it"));
        }
        let Some(named) = named else { return Ok(stores) };
        let names: Vec<_> = stores.iter().map(|store| store.name().to_owned()).collect();
        let found: Vec<_> = stores.into_iter().filter(|store| store.name() == named).collect();
        if found.is_empty() {
            let what = format!("--store {named}: the sidecar serves no store of that name");
            let remedy = format!("name one of {}", names.join(", "));
            return Err(Failure::new(Exit::Usage, what).with_remedy(remedy));
        }
        Ok(found)
    }

    /// The one store that is meant.
    ///
    /// # Errors
    /// As `stores`, and where there are several and none is named.
    pub(super) fn store(&self, named: Option<&str>) -> Result<&Volume, Failure> {
        match self.stores(named)?[..] {
            [one] => Ok(one),
            ref several => {
                let names: Vec<_> = several.iter().map(|store| store.name()).collect();
                let what = format!("the sidecar serves {} stores", names.len());
                let remedy = format!("name one with --store: {}", names.join(", "));
                Err(Failure::new(Exit::Usage, what).with_remedy(remedy))
            }
        }
    }
}

/// Has the name repeated: by `--yes`, or at the terminal.
///
/// # Errors
/// `Failure` with status 2 when it was not, or differs.
pub(super) fn confirm(name: &str, yes: Option<&str>, what: &str) -> Result<(), Failure> {
    let refuse = |reason: String| {
        let failure = Failure::new(Exit::Usage, format!("{what}: {reason}"));
        Err(failure.with_remedy(format!("repeat the name: --yes {name}")))
    };
    let given = match yes {
        Some(given) => given.to_owned(),
        None if std::io::stdin().is_terminal() => {
            eprint!("{what}. Repeat the name to go on: ");
            // A prompt that cannot be shown is still answered or not.
            let _ = std::io::stderr().flush();
            let mut line = String::new();
            // An unreadable answer is no confirmation.
            let _ = std::io::stdin().lock().read_line(&mut line);
            line.trim_end_matches('\n').to_owned()
        }
        None => return refuse("not confirmed".into()),
    };
    if given == name {
        Ok(())
    } else {
        refuse(format!("the name given is {given:?}, not {name:?}"))
    }
}

/// How long ago a second since 1970 was.
pub(super) fn ago(unix_s: u32) -> HumanDuration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    HumanDuration(now.saturating_sub(Duration::from_secs(unix_s.into())))
}

#[cfg(test)]
mod tests {
    use super::confirm;

    #[test]
    fn only_the_same_name_confirms() {
        confirm("a", Some("a"), "clears a").unwrap();
        let why = confirm("a", Some("b"), "clears a").unwrap_err().log_text();
        let words = "clears a: the name given is \"b\"";
        assert!(why.contains(words) && why.contains("--yes a"), "{why}");
    }
}
