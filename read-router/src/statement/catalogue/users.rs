//! Who uses whom, by name: what a change may reach.

use std::collections::BTreeSet;

/// For each name, the names of what uses something that has it. Names alone, of functions, relations, types and operators
/// alike and in any schema: one too many is only caution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Users {
    /// In order.
    names: Vec<Box<[u8]>>,
    /// The places of one that is used and of its user, in order.
    uses: Vec<(u32, u32)>,
    /// The places of types, in order.
    types: Vec<u32>,
}

impl Users {
    /// Of what is used and its user, and the names of types.
    pub(super) fn new(uses: &BTreeSet<(&[u8], &[u8])>, types: &BTreeSet<&[u8]>) -> Self {
        let used_or_user = uses.iter().flat_map(|(used, user)| [*used, *user]);
        let names: BTreeSet<&[u8]> = used_or_user.chain(types.iter().copied()).collect();
        let names: Vec<&[u8]> = names.into_iter().collect();
        let place = |name: &[u8]| names.partition_point(|other| *other < name) as u32;
        Self {
            uses: uses.iter().map(|(used, user)| (place(used), place(user))).collect(),
            types: types.iter().map(|name| place(name)).collect(),
            names: names.iter().map(|name| (*name).into()).collect(),
        }
    }

    /// These names, and those of all that uses what has them, through any depth. `None` if a type is among them: no
    /// statement shows where its casts and orderings run, and tables may have got columns of it since.
    pub(super) fn reaching<'a>(&'a self, changed: impl Iterator<Item = &'a [u8]>) -> Option<BTreeSet<Box<[u8]>>> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&[u8]> = changed.collect();
        while let Some(name) = next.pop() {
            if !reached.insert(name.into()) {
                continue;
            }
            let Ok(place) = self.names.binary_search_by(|other| (**other).cmp(name)) else { continue };
            let place = place as u32;
            if self.types.binary_search(&place).is_ok() {
                return None;
            }
            let first = self.uses.partition_point(|(used, _)| *used < place);
            let users = self.uses[first..].iter().take_while(|(used, _)| *used == place);
            next.extend(users.map(|(_, user)| &*self.names[*user as usize]));
        }
        Some(reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_uses_a_name_is_reached_through_any_depth_and_a_type_is_everything() {
        let uses: [(&[u8], &[u8]); 6] =
            [(b"f", b"v"), (b"v", b"w"), (b"w", b"v"), (b"g", b"w"), (b"g", b"d"), (b"d", b"t")];
        let users = Users::new(&uses.into(), &[&b"d"[..]].into());
        let reached = |name: &'static [u8]| {
            let all = users.reaching([name].into_iter())?;
            Some(all.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect::<Vec<_>>())
        };
        assert_eq!(reached(b"f").unwrap(), ["f", "v", "w"]);
        assert_eq!(reached(b"w").unwrap(), ["v", "w"]);
        assert_eq!(reached(b"unheard_of").unwrap(), ["unheard_of"]);
        assert_eq!(reached(b"g"), None);
        assert_eq!(reached(b"d"), None);
    }
}
