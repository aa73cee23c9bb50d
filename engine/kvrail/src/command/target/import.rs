//! `kvrail target import`.

use std::path::{Path, PathBuf};

use clap::Args;
use kvrail_memory::Root;
use kvrail_nvme::{Selector, resolve};
use kvrail_target::{TargetError, TargetSpec, import};
use serde::Serialize;

use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};
use kvrail_cli::output::{Format, print_json, print_text};

const EXAMPLES: &str = "\
Examples:
  kvrail target import /etc/nvmet/config.json >> /etc/kvrail/kvrail.toml
  nvmetcli save now.json && kvrail target import now.json

Devices are looked up on this host and named by their identity.";

/// Arguments of `kvrail target import`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ImportArgs {
    /// The file that `nvmetcli save` wrote
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Serialize)]
struct Section {
    target: TargetSpec,
}

/// Prints the section.
pub(super) fn run(args: &ImportArgs, context: &Context) -> Result<(), Failure> {
    let file = args.file.display();
    let text = std::fs::read_to_string(&args.file).map_err(|error| {
        Failure::new(Exit::Failed, format!("{file}: {error}")).with_remedy("name a readable file")
    })?;
    let saved = serde_json::from_str(&text).map_err(|error| {
        Failure::new(Exit::Usage, format!("{file}: it is no JSON ({error})"))
            .with_remedy("name a file that `nvmetcli save` wrote")
    })?;
    let imported = import(&saved, &named).map_err(TargetError::Refused)?;
    let problems = kvrail_target::check(&imported.wish);
    if !problems.is_empty() {
        return Err(TargetError::Refused(problems).into());
    }
    for note in &imported.notes {
        context.note(note);
    }
    let section = Section { target: imported.wish };
    if context.format == Format::Json {
        return print_json(&section);
    }
    let text = toml::to_string(&section)
        .map_err(|error| Failure::new(Exit::Failed, format!("writing the section: {error}")))?;
    print_text(&text)
}

/// A device by where it sits, or by what it is where it does not sit on PCIe.
fn named(path: &str) -> Result<Selector, String> {
    let root = Root::default();
    let asked = Selector::Path(Path::new(path).to_owned());
    let namespace = resolve(&asked, &root).map_err(|error| error.to_string())?;
    let pci = namespace.controllers.iter().find_map(|controller| controller.pci);
    let pci = pci.map(|address| Selector::Pci { address, nsid: Some(namespace.nsid) });
    let wwid = || namespace.wwids.first().map(|wwid| Selector::Wwid(wwid.clone()));
    pci.or_else(wwid).ok_or_else(|| "it has neither a PCIe address nor a WWID".into())
}
