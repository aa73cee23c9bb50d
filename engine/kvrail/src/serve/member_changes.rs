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

/// The devices of members: of a volume's number, at their places in it.
pub(super) trait MemberDevices {
    /// Whether the device has not answered for longer than devices may. A label that is written
    /// there would hold up its writer.
    fn is_silent(&self, volume: usize, place: usize) -> bool;

    /// Takes these out of service.
    fn let_go(&mut self, volume: usize, places: &[usize]);
}

/// Changes the members, and answers the operator.
pub(super) fn answer(
    ask: &MemberAsk,
    served: &mut [Served],
    devices: &mut impl MemberDevices,
    (server, extras): (&ServerHandle, &ReportExtras),
) {
    let what = format!("{} by {ask}: store {}", words(&ask.change), ask.store.escape_debug());
    let verdict =
        change((&ask.store, &ask.change), served, devices).map_err(|failure| failure.line());
    match &verdict {
        Ok(_) if ask.change == MemberChange::Check => {}
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
        MemberChange::Check => "change of members".to_owned(),
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
    (store, change): (&str, &MemberChange),
    served: &mut [Served],
    devices: &mut impl MemberDevices,
) -> Result<MembersChanged, Failure> {
    let at = served.iter().position(|volume| volume.name == store).ok_or_else(|| {
        let what = format!("this sidecar serves no volume {store:?}");
        Failure::new(Exit::Usage, what).with_remedy("`kvrail status` names those that it serves")
    })?;
    let volume = &mut served[at];
    if !may_change(volume) {
        let what = format!("volume {}: it is raw or null, and keeps its members", volume.name);
        return Err(Failure::new(Exit::Refused, what)
            .with_remedy("name a store; `kvrail volume create --kind store` makes one"));
    }
    let going: &[u16] = if let MemberChange::Retire { members } = change { members } else { &[] };
    let places = (0..).zip(volume.present.iter());
    let serves: Vec<u16> = serving(volume).iter().map(|(number, _)| *number).collect();
    let stays = |number: &u16| serves.contains(number) && !going.contains(number);
    let mut stay = places.filter(|(_, number)| stays(number));
    if let Some((place, number)) = stay.find(|(place, _)| devices.is_silent(at, *place)) {
        let name = &volume.named[place];
        let what = format!("store {}: member {number} ({name}) does not answer", volume.name);
        return Err(Failure::new(Exit::Refused, what).with_remedy(
            "all members that stay get another label: wait until it answers, or take it out, too",
        ));
    }
    match change {
        MemberChange::Check => return Ok(changed(volume)),
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
    devices.let_go(at, &going.map(|(place, _)| place).collect::<Vec<_>>());
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

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::path::PathBuf;

    use kvrail_volume::{DirectIo, Fill, NewVolume, Overwrite, VolumeLayout, create};

    use super::{MemberChange, MemberDevices, change};
    use crate::serve::volumes::open_all;

    /// Devices of which one does not answer, and those that were let go.
    #[derive(Default)]
    struct Devices {
        silent: Option<usize>,
        gone: Vec<usize>,
    }

    impl MemberDevices for Devices {
        fn is_silent(&self, _: usize, place: usize) -> bool {
            self.silent == Some(place)
        }

        fn let_go(&mut self, _: usize, places: &[usize]) {
            self.gone.extend(places);
        }
    }

    /// Its label would have to be written, and the write would wait for the drive.
    #[test]
    fn no_members_change_while_one_that_stays_is_silent() {
        let folder = tempfile::tempdir().unwrap();
        let members: Vec<PathBuf> = ["a", "b", "c"].map(|name| folder.path().join(name)).into();
        let new = NewVolume {
            name: "kv".parse().unwrap(),
            members: members.clone(),
            capacity_bytes: Some(48 << 20),
            layout: VolumeLayout::Store { segment_bytes: None, block_mean: Some(64 << 10) },
            fill: Fill::Nothing,
            overwrite: Overwrite::Nothing,
            direct: DirectIo::Optional,
        };
        drop(create(&new, &mut |_| ControlFlow::Continue(())).unwrap());
        let text = format!(
            "device.direct = \"optional\"\n[[volume]]\nname = \"kv\"\nmembers = {members:?}"
        );
        let mut served = open_all(&toml::from_str(&text).unwrap()).unwrap();
        let mut devices = Devices { silent: Some(1), ..Devices::default() };
        let mut ask = |what: &MemberChange| {
            let answer = change(("kv", what), &mut served, &mut devices);
            (answer, devices.gone.clone())
        };
        for refused in [MemberChange::Check, MemberChange::Retire { members: vec![0] }] {
            let (answer, gone) = ask(&refused);
            let why = answer.unwrap_err().log_text();
            assert!(why.contains("member 1 (") && why.contains("does not answer"), "{why}");
            assert!(why.contains("take it out, too"), "{why}");
            assert!(gone.is_empty());
        }
        let (answer, gone) = ask(&MemberChange::Retire { members: vec![1] });
        let left: Vec<u16> = answer.unwrap().members.iter().map(|member| member.number).collect();
        assert_eq!((left, gone), (vec![0, 2], vec![1]));
    }
}
