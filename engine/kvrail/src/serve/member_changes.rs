//! Members that an operator takes out of a store, or adds to one, while it is served.
//!
//! The labels are written first, so that a failure leaves members in service, and a kill a store
//! that starts. A member that was added waits for the next start.

use kvrail_protocol::{MemberChange, MembersChanged, StoreMemberInfo};
use kvrail_session::{AUDIT, MemberAsk, ServerHandle};
use kvrail_store::Members;
use kvrail_volume::{
    JoinedMember, Member, Purpose, Reason, VolumeError, VolumeName, adopt, retire_served,
};

use super::report_extras::ReportExtras;
use super::volumes::Served;
use kvrail_cli::failure::{Exit, Failure};

/// Changes the members, and answers the operator. `let_go` takes the members of a volume at some
/// places out of service.
pub(super) fn answer(
    ask: &MemberAsk,
    served: &mut [Served],
    let_go: impl FnOnce(usize, &[usize]),
    (server, extras): (&ServerHandle, &ReportExtras),
) {
    let what = format!("{} by {ask}: store {}", words(&ask.change), ask.store.escape_debug());
    let verdict = change(ask, served, let_go).map_err(|failure| failure.line());
    match &verdict {
        Ok(changed) => {
            let all = changed.members.iter();
            let all = all.map(|one| format!("{} ({})", one.number, one.path.escape_debug()));
            let all = all.collect::<Vec<_>>().join(", ");
            tracing::info!(target: AUDIT, "{what}: done; its members are {all}");
        }
        Err(why) => tracing::error!(target: AUDIT, "{what}: refused: {why}"),
    }
    show(served, extras);
    server.members_changed(ask, verdict);
}

/// Shows which members changed and which are missing.
pub(super) fn show(served: &[Served], extras: &ReportExtras) {
    let missing = served.iter().map(|volume| volume.missing.clone()).collect();
    extras.set_members(served.iter().flat_map(notes).collect(), missing);
}

fn words(change: &MemberChange) -> String {
    match change {
        MemberChange::Retire { members } => {
            let numbers: Vec<_> = members.iter().map(ToString::to_string).collect();
            format!("retirement of member {}", numbers.join(", "))
        }
        MemberChange::Add { path, number, .. } => {
            format!("addition of member {number} ({})", path.escape_debug())
        }
    }
}

/// What the configuration has to be changed for.
fn notes(volume: &Served) -> Vec<String> {
    let kept = serving(volume).into_iter().fold(Members::NONE, |all, (number, _)| all.with(number));
    let all = volume.present.iter().zip(&volume.named);
    let retired = all.filter(|(number, _)| !kept.has(*number)).map(|(number, name)| {
        format!(
            "store {}: member {number} ({name}) was retired: take it from `members` of its \
             [[volume]]; the next start gives its keys to the others",
            volume.name
        )
    });
    let written_off = volume.written_off.iter().map(|name| {
        format!(
            "store {}: {name}, which was missing, was retired: if `members` of its [[volume]] has \
             it, take it from there",
            volume.name
        )
    });
    let waiting = volume.waiting.iter().map(|(number, path)| {
        let path = path.escape_debug();
        format!(
            "store {}: member {number} ({path}) was added: name it in `members` of its [[volume]]; \
             the next start serves it",
            volume.name
        )
    });
    let all = retired.chain(written_off).chain(waiting);
    if may_change(volume) { all.collect() } else { Vec::new() }
}

/// Whether it is a store on files or devices.
fn may_change(volume: &Served) -> bool {
    let is_made = volume.members.iter().any(|source| source.claimed().is_some());
    is_made && volume.purpose != Purpose::Raw
}

fn change(
    ask: &MemberAsk,
    served: &mut [Served],
    let_go: impl FnOnce(usize, &[usize]),
) -> Result<MembersChanged, Failure> {
    let at = served.iter().position(|volume| volume.name == ask.store).ok_or_else(|| {
        let what = format!("this sidecar serves no volume {:?}", ask.store);
        Failure::new(Exit::Usage, what).with_remedy("`kvrail status` names those that it serves")
    })?;
    let volume = &mut served[at];
    if !may_change(volume) {
        let what = format!("volume {}: it is raw or null, and keeps its members", volume.name);
        return Err(Failure::new(Exit::Refused, what)
            .with_remedy("name a store; `kvrail volume create --kind store` makes one"));
    }
    match &ask.change {
        MemberChange::Retire { members } => retire(volume, members)?,
        MemberChange::Add { path, number, uuid, changes } => {
            let joined = JoinedMember { number: *number, uuid: *uuid, changes: *changes };
            add(volume, joined, path)?;
        }
    }
    // All others that the labels list are there: a change is refused without them.
    let missing = std::mem::take(&mut volume.missing);
    volume.written_off.extend(missing);
    // An earlier change that failed midway may have taken out more: the labels have the last word.
    let kept = serving(volume).into_iter().fold(Members::NONE, |all, (number, _)| all.with(number));
    let places = (0..).zip(volume.present.iter());
    let going = places.filter(|(_, number)| !kept.has(*number));
    let_go(at, &going.map(|(place, _)| place).collect::<Vec<_>>());
    Ok(changed(volume))
}

fn retire(volume: &mut Served, numbers: &[u16]) -> Result<(), Failure> {
    let serving = serving(volume).into_iter();
    let stay = serving.filter(|(number, _)| !numbers.contains(number));
    let stay: Vec<&Member> = stay.map(|(_, member)| member).collect();
    let left = retire_served(&name(volume)?, &stay, numbers, waiting(volume)).map_err(refused)?;
    volume.expected = left;
    volume.waiting.retain(|(number, _)| left.has(*number));
    Ok(())
}

fn add(volume: &mut Served, joined: JoinedMember, path: &str) -> Result<(), Failure> {
    let members: Vec<&Member> = serving(volume).into_iter().map(|(_, member)| member).collect();
    let all = adopt(&name(volume)?, &members, joined, waiting(volume)).map_err(refused)?;
    volume.expected = all;
    volume.waiting.retain(|(number, _)| *number != joined.number);
    volume.waiting.push((joined.number, path.to_owned()));
    Ok(())
}

fn name(volume: &Served) -> Result<VolumeName, Failure> {
    Ok(volume.name.parse()?)
}

/// The members that are in service and stay, with their numbers.
fn serving(volume: &Served) -> Vec<(u16, &Member)> {
    let all = volume.present.iter().zip(&volume.members);
    let claimed = all.filter_map(|(number, source)| Some((number, source.claimed()?)));
    // The number of a member that was retired may be that of one that waits.
    let is_one = |number: u16| volume.expected.has(number) && !waiting(volume).has(number);
    claimed.filter(|(number, _)| is_one(*number)).collect()
}

fn waiting(volume: &Served) -> Members {
    volume.waiting.iter().fold(Members::NONE, |all, (number, _)| all.with(*number))
}

/// The members from the next start on.
fn changed(volume: &Served) -> MembersChanged {
    let serving = serving(volume).into_iter().map(|(number, member)| (number, absolute(member)));
    let mut members: Vec<_> = serving.chain(volume.waiting.iter().cloned()).collect();
    members.sort_by_key(|(number, _)| *number);
    let member = |(number, path)| StoreMemberInfo { number, path };
    MembersChanged {
        name: volume.name.clone(),
        uuid: volume.uuid.to_string(),
        members: members.into_iter().map(member).collect(),
    }
}

fn refused(error: VolumeError) -> Failure {
    let is_incomplete = matches!(error.reason, Reason::Incomplete { .. });
    let failure = Failure::from(error);
    let remedy =
        "put them back, or take them out, too (`volume retire` with --member several times)";
    if is_incomplete { failure.with_remedy(remedy) } else { failure }
}

/// As the configuration takes it.
fn absolute(member: &Member) -> String {
    let path = member.path();
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
