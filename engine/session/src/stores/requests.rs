//! Requests about namespaces, as messages of the session socket have them.

use kvrail_poller::Permit;
use kvrail_protocol::ControlRequest;
use kvrail_ring::Status;
use kvrail_store::{Key, NAME_BYTES_MAX};

use super::identity::parse;
use super::job::{Create, Wish};
use crate::failure::{Failure, invalid};
use crate::tenants::{Right, Rights};

/// The store and the operation of a request about namespaces, if the client has the permission.
pub(super) fn wish(
    ask: ControlRequest,
    rights: impl Fn(u16) -> Rights,
) -> Result<(u16, Wish), Failure> {
    let (volume, wish) = match ask {
        ControlRequest::OpenNamespace { volume, name, identity, create } => {
            let (name, value, rights) = (checked(name)?, parse(&identity)?, rights(volume));
            rights.check(&name, Right::Read, "open")?;
            let permit = rights.permit(&name);
            // A client without write permission makes none.
            let create = create && permit == Permit::Write;
            let create = if create { Create::Allowed } else { Create::Forbidden };
            let (document, identity) = (identity, value);
            (volume, Wish::Open { name, document, identity, create, permit, rights })
        }
        ControlRequest::ClearNamespace { volume, name } => {
            (volume, Wish::Clear { name: checked(name)? })
        }
        ControlRequest::RemoveNamespace { volume, name } => {
            let (name, rights) = (checked(name)?, rights(volume));
            let otherwise = rights.check(&name, Right::Own, "remove").err();
            if otherwise.is_some() {
                rights.check(&name, Right::Write, "remove")?;
            }
            return Ok((volume, Wish::Remove { name, otherwise }));
        }
        ControlRequest::ListNamespaces { volume } => {
            (volume, Wish::List { rights: rights(volume) })
        }
        ControlRequest::ListBlocks { volume, name, from } => {
            (volume, Wish::ListBlocks { name: checked(name)?, from })
        }
        ControlRequest::ExplainKey { volume, name, key } => {
            (volume, Wish::Explain { name: checked(name)?, key: Key::new(key) })
        }
        _ => return Err((Status::Internal, "no ask about namespaces".into())),
    };
    let (wanted, to) = match &wish {
        Wish::Open { .. } | Wish::List { .. } | Wish::Remove { .. } => return Ok((volume, wish)),
        Wish::Clear { .. } => (Right::Own, "clear"),
        Wish::ListBlocks { .. } => (Right::Read, "list"),
        Wish::Explain { .. } => (Right::Read, "ask about a key of"),
    };
    rights(volume).check(wish.name().unwrap_or_default(), wanted, to)?;
    Ok((volume, wish))
}

/// A name, if it is one.
fn checked(name: String) -> Result<String, Failure> {
    let bytes = name.len();
    if (1..=NAME_BYTES_MAX).contains(&bytes) && !name.chars().any(char::is_control) {
        return Ok(name);
    }
    Err(invalid(format!(
        "name: {bytes} bytes; a namespace has a name of 1 to {NAME_BYTES_MAX} bytes without \
         control characters"
    )))
}
