//! The volume that is there already, where one is to be made on blank members only.

use kvrail_nvme::Selector;
use kvrail_volume::{Content, Inspection, Label, VolumeName, inspect};

use crate::command::describe;
use crate::members::members_there;
use kvrail_cli::context::Context;
use kvrail_cli::failure::{Exit, Failure};

/// The label of the volume of that name and kind, if one of the members has it. Claims and changes
/// nothing. A volume of that name stays as it is, also with members that are missing or have other
/// content: a sidecar decides whether it serves the rest.
///
/// # Errors
/// `Failure` for a volume of that name and another kind.
pub(super) fn existing(
    name: &VolumeName,
    kind: &str,
    named: &[Selector],
    context: &Context,
) -> Result<Option<Label>, Failure> {
    // Those that cannot be looked at have no label of it; making one there names the cause.
    let paths = members_there(name, named, context)?;
    let seen: Vec<Inspection> = paths.iter().filter_map(|path| inspect(path).ok()).collect();
    let Some((path, label)) = seen.iter().find_map(|one| Some((&one.path, label_of(one, name)?)))
    else {
        return Ok(None);
    };
    if label.purpose.name() != kind {
        let (path, found) = (path.display(), label.purpose.name());
        let what = format!("{path}: {name} is there as a {found} volume, not as {kind}");
        let remedy = format!(
            "name the kind that it has (--kind {found}), or end it with `kvrail volume wipe {name}`"
        );
        return Err(Failure::new(Exit::Refused, what).with_remedy(remedy));
    }
    for one in seen.iter().filter(|one| label_of(one, name).is_none()) {
        let (path, content) = (one.path.display(), describe::content(&one.content));
        context.note(&format!("{path} is no member of {name} and stays as it is: {content}"));
    }
    Ok(Some(label.clone()))
}

fn label_of<'a>(seen: &'a Inspection, name: &VolumeName) -> Option<&'a Label> {
    match &seen.content {
        Content::Ours(label) if label.volume_name == *name => Some(label),
        _ => None,
    }
}
