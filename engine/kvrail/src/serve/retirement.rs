//! Members that an operator takes out of a store while it is served: the labels of the others are
//! written first, so that a failure leaves the member in service, and a kill a store that starts.

use kvrail_protocol::{MembersChanged, StoreMemberInfo};
use kvrail_session::{AUDIT, RetireAsk, ServerHandle};
use kvrail_volume::{Member, Reason, VolumeError, VolumeName, retire_served};

use super::volumes::Served;
use kvrail_cli::failure::{Exit, Failure};

/// Takes the members out, and answers the operator. `let_go` takes the members of a volume at some
/// places out of service.
pub(super) fn answer(
    ask: &RetireAsk,
    served: &mut [Served],
    let_go: impl FnOnce(usize, &[usize]),
    server: &ServerHandle,
) {
    let (store, numbers) = (ask.store.escape_debug().to_string(), words(&ask.members));
    let what = format!("retirement by {ask}: store {store}, member {numbers}");
    let verdict = retire(ask, served, let_go).map_err(|failure| failure.line());
    match &verdict {
        Ok(changed) => {
            let left = changed.members.iter();
            let left = left.map(|member| format!("{} ({})", member.number, member.path));
            let left = left.collect::<Vec<_>>().join(", ");
            tracing::info!(target: AUDIT, "{what}: taken out for good; its members are {left}");
        }
        Err(why) => tracing::error!(target: AUDIT, "{what}: refused: {why}"),
    }
    server.retired(ask, verdict);
}

fn words(numbers: &[u16]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn retire(
    ask: &RetireAsk,
    served: &mut [Served],
    let_go: impl FnOnce(usize, &[usize]),
) -> Result<MembersChanged, Failure> {
    let at = served.iter().position(|volume| volume.name == ask.store).ok_or_else(|| {
        let what = format!("this sidecar serves no volume {:?}", ask.store);
        Failure::new(Exit::Usage, what).with_remedy("`kvrail status` names those that it serves")
    })?;
    let (volume, numbers) = (&mut served[at], &ask.members);
    let name: VolumeName = volume.name.parse()?;
    let all = || volume.present.iter().zip(&volume.members);
    let claimed = all().filter_map(|(number, source)| Some((number, source.claimed()?)));
    let stays = |number: &u16| volume.expected.has(*number) && !numbers.contains(number);
    let stay: Vec<(u16, &Member)> = claimed.filter(|(number, _)| stays(number)).collect();
    let members: Vec<&Member> = stay.iter().map(|(_, member)| *member).collect();
    let left = retire_served(&name, &members, numbers).map_err(refused)?;
    let members = stay
        .iter()
        .map(|(number, member)| StoreMemberInfo { number: *number, path: absolute(member) });
    let changed = MembersChanged {
        name: name.to_string(),
        uuid: volume.uuid.to_string(),
        members: members.collect(),
    };
    let places: Vec<usize> = (0..)
        .zip(volume.present.iter())
        .filter(|(_, number)| numbers.contains(number))
        .map(|(place, _)| place)
        .collect();
    volume.expected = left;
    let_go(at, &places);
    Ok(changed)
}

fn refused(error: VolumeError) -> Failure {
    let is_incomplete = matches!(error.reason, Reason::Incomplete { .. });
    let failure = Failure::from(error);
    let remedy = "put them back, or take them out, too (--member several times)";
    if is_incomplete { failure.with_remedy(remedy) } else { failure }
}

/// As the configuration takes it.
fn absolute(member: &Member) -> String {
    let path = member.path();
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned()).display().to_string()
}
