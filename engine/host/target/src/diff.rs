//! From what is there and what is to be: the steps between, in an order in which no host ever
//! reaches more than it was to reach before or is to reach after.
//!
//! Objects that differ are taken down and built again, openings first; only attributes that may
//! change in use are written in place. A host that loses access loses its connections too: the
//! kernel drops them when the subsystem is unlinked from a port, not when a host leaves the list.

use std::collections::BTreeSet;

use crate::error::Problem;
use crate::item::{Change, Desired, Form, Item};
use crate::place::{ObjectKind, is_below, place, subsystem_of};
use crate::record::{OwnedObject, TargetRecord};
use crate::snapshot::{Node, Snapshot};
use crate::step::Step;

/// The steps from `present` to `desired`; refusals where foreign objects are in the way.
pub(crate) fn steps(
    present: &Snapshot,
    record: &TargetRecord,
    desired: &Desired,
) -> Result<Vec<Step>, Vec<Problem>> {
    let mine = mine(present, record);
    let gone = gone(present, &mine, desired);
    let mut problems = clashes(present, &mine, desired);
    problems.extend(shared(present, &mine, desired));
    problems.extend(obstacles(present, &gone));
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut steps = removals(present, &gone);
    let built = builds(present, &mine, &gone, desired);
    let missing = desired.modules.iter().filter(|name| !present.modules.contains(*name));
    steps.extend(missing.map(|name| Step::Load { module: (*name).to_owned() }));
    steps.extend(built);
    Ok(steps)
}

/// Objects that kvrail made and that were not replaced since.
pub(crate) fn mine<'a>(present: &Snapshot, record: &'a TargetRecord) -> Vec<&'a OwnedObject> {
    record.owned.iter().filter(|owned| is_mine(present, owned)).collect()
}

fn is_mine(present: &Snapshot, owned: &OwnedObject) -> bool {
    match present.nodes.get(&owned.path) {
        Some(Node::Dir { id }) => owned.id == Some(*id),
        Some(Node::Link(_)) => owned.id.is_none(),
        _ => false,
    }
}

/// Kvrail's objects in their present state: the way back.
pub(crate) fn as_desired(present: &Snapshot, record: &TargetRecord) -> Desired {
    let item = |owned: &&OwnedObject| {
        let path = owned.path.clone();
        Some(match present.nodes.get(&path)? {
            Node::Link(target) => Item::link(path, target.clone()),
            _ => {
                let read = |name: &String| {
                    let value = present.text(&format!("{path}/{name}"))?.to_owned();
                    Some(crate::item::Attribute { name: name.clone(), value })
                };
                let attributes = owned.attributes.iter().filter_map(read).collect();
                Item::dir(path, attributes)
            }
        })
    };
    Desired::new(Vec::new(), mine(present, record).iter().filter_map(item).collect())
}

/// Kvrail's objects to be removed: no longer wanted, or to be built again, and everything that
/// depends on them.
fn gone<'a>(present: &Snapshot, mine: &[&'a OwnedObject], desired: &Desired) -> BTreeSet<&'a str> {
    let outdated = |owned: &&&OwnedObject| is_outdated(present, owned, desired);
    let mut gone: BTreeSet<&str> =
        mine.iter().filter(outdated).map(|object| &*object.path).collect();
    loop {
        let hangs = |owned: &&&OwnedObject| {
            !gone.contains(&*owned.path) && hangs_on(present, owned, mine, &gone, desired)
        };
        let more: Vec<&str> = mine.iter().filter(hangs).map(|owned| &*owned.path).collect();
        if more.is_empty() {
            return gone;
        }
        gone.extend(more);
    }
}

fn is_outdated(present: &Snapshot, owned: &OwnedObject, desired: &Desired) -> bool {
    let Some(item) = desired.get(&owned.path) else { return true };
    match &item.form {
        Form::Link(target) => present.nodes.get(&owned.path) != Some(&Node::Link(target.clone())),
        Form::Dir(attributes) => {
            let dropped =
                |name: &String| !attributes.iter().any(|attribute| attribute.name == *name);
            let text = |name: &str| present.text(&format!("{}/{name}", owned.path));
            let differs = attributes.iter().any(|attribute| {
                attribute.change() == Change::Rebuild && !attribute.is(text(&attribute.name))
            });
            differs || owned.attributes.iter().any(dropped)
        }
    }
}

fn hangs_on(
    present: &Snapshot,
    owned: &OwnedObject,
    mine: &[&OwnedObject],
    gone: &BTreeSet<&str>,
    desired: &Desired,
) -> bool {
    if gone.iter().any(|above| is_below(&owned.path, above)) {
        return true;
    }
    if matches!(present.nodes.get(&owned.path), Some(Node::Link(to)) if gone.contains(&**to)) {
        return true;
    }
    if place(&owned.path) != Some(ObjectKind::Opening) {
        return false;
    }
    // Connections of a host that leaves, and queues of a drive that changes, end with the opening.
    let subsystem = subsystem_of(&owned.path);
    let offloaded = |above: &OwnedObject| {
        Some(&above.path) == subsystem.as_ref()
            && above.attributes.iter().any(|name| name == OFFLOAD)
    };
    let offloaded = mine.iter().any(|object| offloaded(object));
    let of_it = |path: &str| subsystem_of(path) == subsystem;
    let leaves = |path: &&&str| {
        of_it(path)
            && match place(path) {
                Some(ObjectKind::AllowedHost) => true,
                Some(ObjectKind::Namespace) => offloaded,
                _ => false,
            }
    };
    let comes = |item: &&Item| {
        offloaded
            && of_it(&item.path)
            && item.place() == Some(ObjectKind::Namespace)
            && !present.has(&item.path)
    };
    gone.iter().any(|path| leaves(&path)) || desired.items.iter().any(|item| comes(&item))
}

/// The attribute that makes a subsystem an offloaded one.
pub(crate) const OFFLOAD: &str = "attr_offload";

/// Names of foreign objects.
fn clashes(present: &Snapshot, mine: &[&OwnedObject], desired: &Desired) -> Vec<Problem> {
    let taken =
        |item: &&Item| present.has(&item.path) && !mine.iter().any(|owned| owned.path == item.path);
    let problem = |item: &Item| {
        let rule = "it is there already, and kvrail did not make it";
        let remedy = "choose another name, or have its owner remove it (`nvmetcli clear` removes \
                      everything)";
        Problem::refused(&item.path, "present", rule, remedy)
    };
    desired.items.iter().filter(taken).map(problem).collect()
}

/// Addresses and devices of foreign objects.
fn shared(present: &Snapshot, mine: &[&OwnedObject], desired: &Desired) -> Vec<Problem> {
    let mut problems = Vec::new();
    let foreign = |path: &str, kind: ObjectKind| {
        place(path) == Some(kind) && !mine.iter().any(|owned| owned.path == path)
    };
    for item in &desired.items {
        let Form::Dir(attributes) = &item.form else { continue };
        let own = |name: &str| {
            attributes
                .iter()
                .find(|attribute| attribute.name == name)
                .map_or("", |attribute| &*attribute.value)
        };
        for (path, _) in present.objects() {
            let theirs = |name: &str| present.text(&format!("{path}/{name}")).unwrap_or_default();
            let same = |names: &[&str]| names.iter().all(|name| own(name) == theirs(name));
            let address = ["addr_trtype", "addr_traddr", "addr_trsvcid"];
            if item.place() == Some(ObjectKind::Port)
                && foreign(path, ObjectKind::Port)
                && same(&address)
            {
                let value = format!("{} {}", own("addr_traddr"), own("addr_trsvcid"));
                let rule = format!("{path}, which kvrail did not make, listens there");
                let remedy = "choose another address or service, or have its owner remove it";
                problems.push(Problem::refused(&item.path, value.trim(), rule, remedy));
            }
            if item.place() == Some(ObjectKind::Namespace)
                && foreign(path, ObjectKind::Namespace)
                && same(&["device_path"])
            {
                let rule = format!("{path}, which kvrail did not make, exports it");
                let remedy = "export another device, or have its owner remove it";
                problems.push(Problem::refused(&item.path, own("device_path"), rule, remedy));
            }
        }
    }
    problems
}

/// Foreign objects below or linked to an object that must be removed: its removal would fail.
fn obstacles(present: &Snapshot, gone: &BTreeSet<&str>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, node) in present.objects().filter(|(path, _)| !gone.contains(path)) {
        let held = gone.iter().find(|above| is_below(path, above)).copied();
        let linked = match node {
            Node::Link(to) => gone.get(&**to).copied(),
            _ => None,
        };
        if let Some(above) = held.or(linked) {
            let rule = format!("it holds {above}, which has to go, and kvrail did not make it");
            let remedy = format!("have its owner remove {path}");
            problems.push(Problem::refused(path, "present", rule, remedy));
        }
    }
    problems
}

/// From the openings back to the hosts.
fn removals(present: &Snapshot, gone: &BTreeSet<&str>) -> Vec<Step> {
    let mut paths: Vec<&str> = gone.iter().copied().collect();
    paths.sort_by_key(|path| std::cmp::Reverse((place(path), *path)));
    let mut steps = Vec::new();
    for path in paths {
        let enable = format!("{path}/enable");
        if place(path) == Some(ObjectKind::Namespace) && present.text(&enable) == Some("1") {
            steps.push(Step::write(enable, "0"));
        }
        let path = path.to_owned();
        steps.push(match present.nodes.get(&path) {
            Some(Node::Link(_)) => Step::Unlink { path },
            _ => Step::RemoveDir { path },
        });
    }
    steps
}

/// From the hosts to the openings.
fn builds(
    present: &Snapshot,
    mine: &[&OwnedObject],
    gone: &BTreeSet<&str>,
    desired: &Desired,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for item in &desired.items {
        let path = item.path.clone();
        let stays = mine.iter().any(|object| object.path == path) && !gone.contains(&*path);
        match &item.form {
            Form::Link(target) if !stays => {
                steps.push(Step::Link { path, target: target.clone() });
            }
            Form::Link(_) => {}
            Form::Dir(attributes) => {
                if !stays {
                    let attributes =
                        attributes.iter().map(|attribute| attribute.name.clone()).collect();
                    steps.push(Step::MakeDir { path: path.clone(), attributes });
                }
                for attribute in attributes {
                    let at = format!("{path}/{}", attribute.name);
                    if !stays || !attribute.is(present.text(&at)) {
                        steps.push(Step::write(at, &attribute.value));
                    }
                }
            }
        }
    }
    steps
}
