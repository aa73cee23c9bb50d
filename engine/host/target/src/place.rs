//! Which object of the nvmet tree a path names. Paths are relative to the tree's root, parts
//! joined by `/`.

/// The objects that can be made, in the order in which they are made; they go in the reverse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ObjectKind {
    Host,
    Subsystem,
    AllowedHost,
    Namespace,
    Port,
    AnaGroup,
    Referral,
    /// The link that opens a subsystem at a port: the commit point, always the last.
    Opening,
}

/// None for the tree's own folders, attributes, and the ANA group that every port is born with.
pub(crate) fn place(path: &str) -> Option<ObjectKind> {
    let parts: Vec<&str> = path.split('/').collect();
    Some(match parts[..] {
        ["hosts", _] => ObjectKind::Host,
        ["subsystems", _] => ObjectKind::Subsystem,
        ["subsystems", _, "allowed_hosts", _] => ObjectKind::AllowedHost,
        ["subsystems", _, "namespaces", _] => ObjectKind::Namespace,
        ["ports", _] => ObjectKind::Port,
        ["ports", _, "ana_groups", group] if group != "1" => ObjectKind::AnaGroup,
        ["ports", _, "referrals", _] => ObjectKind::Referral,
        ["ports", _, "subsystems", _] => ObjectKind::Opening,
        _ => return None,
    })
}

/// Whether `path` lies below `above`.
pub(crate) fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.starts_with('/'))
}

/// The subsystem that an allowed host or a namespace belongs to, or that a port opens.
pub(crate) fn subsystem_of(path: &str) -> Option<String> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["subsystems", name, ..] | ["ports", _, "subsystems", name] => {
            Some(format!("subsystems/{name}"))
        }
        _ => None,
    }
}
