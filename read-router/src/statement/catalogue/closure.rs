//! From what each object uses to whether it is harmless.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Catalogue, Names, WORDS, body,
    body::Mention,
    functions::{Declaration, Declared, is_built_in_harmless},
    rows::{Class, Fact, Object, Row, Use},
    users::Users,
};
use crate::{Access, Pins, UnexpectedAnswer};

/// The rows of the query, by object.
#[derive(Debug, Default)]
pub(super) struct Closure {
    encoding: Option<String>,
    items: BTreeMap<Object, Item>,
    /// Whether all built-in functions of a name are immutable.
    built_in: BTreeMap<Box<[u8]>, bool>,
    operators: Vec<Box<[u8]>>,
    /// What texts name, and the functions whose texts they are: what there is none of yet counts once it is made.
    named: BTreeSet<(Box<[u8]>, Object)>,
}

#[derive(Clone, Debug, Default)]
struct Item {
    schema: Box<[u8]>,
    name: Box<[u8]>,
    harmful: bool,
    is_field: bool,
    uses: Vec<Object>,
    body: Option<String>,
    as_built_in: Option<String>,
}

impl Closure {
    pub(super) fn add(&mut self, row: &Row<'_>) {
        let object = match row.fact {
            Fact::Encoding(encoding) => {
                self.encoding = Some(encoding.to_owned());
                return;
            }
            Fact::BuiltInOperator => {
                self.operators.push(row.name.as_bytes().into());
                return;
            }
            Fact::BuiltIn { id, is_immutable } => {
                *self.built_in.entry(row.name.as_bytes().into()).or_insert(true) &= is_immutable;
                Object { class: Class::Function, id }
            }
            Fact::Function { id, .. } => Object { class: Class::Function, id },
            Fact::Operator { id } => Object { class: Class::Operator, id },
            Fact::Relation { id } | Fact::Named { id } => Object { class: Class::Relation, id },
            Fact::Uses { of } => of,
        };
        let item = self.items.entry(object).or_default();
        item.schema = row.schema.as_bytes().into();
        item.name = row.name.as_bytes().into();
        for used in &row.uses {
            match used {
                Use::Object(object) => item.uses.push(*object),
                Use::Lock => item.harmful = true,
            }
        }
        match row.fact {
            Fact::Relation { .. } => item.harmful = true,
            Fact::Function { info, body, .. } => {
                let declaration = Declaration::read(info);
                item.is_field = declaration.is_field;
                match declaration.declared(row.name) {
                    Declared::Harmless | Declared::ByParts => {}
                    Declared::ByBody => item.body = Some(body.to_owned()),
                    Declared::AsBuiltIn => item.as_built_in = Some(body.trim().to_owned()),
                    Declared::Anything => item.harmful = true,
                }
            }
            _ => {}
        }
    }

    /// What is harmless: all that is not harmful itself and uses nothing that is.
    pub(super) fn resolve(mut self, pins: &Pins) -> Result<Catalogue, UnexpectedAnswer> {
        let encoding = self.encoding.take();
        let encoding = encoding.ok_or_else(|| UnexpectedAnswer::new("catalogue query", "no encoding"))?;
        if self.built_in.is_empty() || self.operators.is_empty() {
            return Err(UnexpectedAnswer::new("catalogue query", "no functions or operators"));
        }
        self.declare(pins);
        self.read_bodies(pins);
        self.spread();
        let mut catalogue = self.into_catalogue(pins);
        catalogue.is_utf8 = encoding.eq_ignore_ascii_case("UTF8");
        Ok(catalogue)
    }

    /// What needs no look at what is used: built-in functions, and pins.
    fn declare(&mut self, pins: &Pins) {
        for (object, item) in &mut self.items {
            if object.class == Class::Function && object.is_built_in() {
                let immutable = self.built_in.get(&item.name).copied().unwrap_or(false);
                item.harmful = !is_built_in_harmless(&item.name, immutable);
            }
            if let Some(name) = &item.as_built_in {
                let immutable = self.built_in.get(name.as_bytes()).copied().unwrap_or(false);
                item.harmful |= !immutable || !is_built_in_harmless(name.as_bytes(), true);
            }
            let pinned = match object.class {
                Class::Function => pins.of_function(Some(&item.schema), &item.name),
                Class::Relation => pins.of_table(Some(&item.schema), &item.name),
                Class::Type | Class::Operator => None,
            };
            if let Some(access) = pinned {
                item.harmful = access == Access::Primary;
                item.uses.clear();
                item.body = None;
            }
        }
    }

    /// Takes what a function's text names for what it uses.
    fn read_bodies(&mut self, pins: &Pins) {
        let mut named: BTreeMap<(Class, Box<[u8]>), Vec<Object>> = BTreeMap::new();
        for (object, item) in &self.items {
            named.entry((object.class, item.name.clone())).or_default().push(*object);
        }
        let of = |class: Class, schema: &Option<Box<[u8]>>, name: &[u8]| -> Vec<Object> {
            let fits = |object: &&Object| {
                let found = self.items.get(object).map(|item| &item.schema);
                schema.as_ref().is_none_or(|schema| found == Some(schema))
            };
            named.get(&(class, name.into())).into_iter().flatten().filter(fits).copied().collect()
        };
        let (mut found, mut texts) = (Vec::new(), BTreeSet::new());
        for (object, item) in self.items.iter().filter(|(_, item)| !item.harmful) {
            let Some(body) = &item.body else { continue };
            let Some(mentions) = body::mentions(body) else {
                found.push((*object, Vec::new(), true));
                continue;
            };
            let (mut uses, mut harmful) = (Vec::new(), false);
            for mention in mentions {
                texts.extend(mention.name().map(|name| (name.into(), *object)));
                match mention {
                    Mention::Call(schema, name) => {
                        uses.extend(of(Class::Function, &schema, &name));
                        uses.extend(of(Class::Type, &schema, &name));
                    }
                    Mention::Name(schema, name) => {
                        harmful |= pins.of_table(schema.as_deref(), &name) == Some(Access::Primary);
                        uses.extend(of(Class::Relation, &schema, &name));
                        uses.extend(of(Class::Type, &schema, &name));
                    }
                    Mention::Field(name) => {
                        let is_field = |object: &Object| self.items.get(object).is_some_and(|item| item.is_field);
                        uses.extend(of(Class::Function, &None, &name).into_iter().filter(is_field));
                    }
                    Mention::Operator(name) => uses.extend(of(Class::Operator, &None, &name)),
                    Mention::Catalogue => harmful = true,
                }
            }
            found.push((*object, uses, harmful));
        }
        self.named = texts;
        for (object, uses, harmful) in found {
            if let Some(item) = self.items.get_mut(&object) {
                item.uses.extend(uses);
                item.harmful |= harmful;
            }
        }
    }

    /// Whoever uses what is harmful is harmful, through any depth; a circle by itself is not.
    fn spread(&mut self) {
        let mut users: BTreeMap<Object, Vec<Object>> = BTreeMap::new();
        let mut harmful = Vec::new();
        for (object, item) in &self.items {
            for used in &item.uses {
                users.entry(*used).or_default().push(*object);
                if !self.items.contains_key(used) && is_harmful_unseen(*used) {
                    harmful.push(*object);
                }
            }
            if item.harmful {
                harmful.push(*object);
            }
        }
        let mut done = BTreeSet::new();
        while let Some(object) = harmful.pop() {
            if done.insert(object) {
                if let Some(item) = self.items.get_mut(&object) {
                    item.harmful = true;
                }
                harmful.extend(users.get(&object).into_iter().flatten());
            }
        }
    }

    /// Who uses what, as far as it can be changed and is harmless: what is harmful stays so until the next reading.
    fn users(&self) -> Users {
        let (mut uses, mut types) = (BTreeSet::new(), BTreeSet::new());
        for (object, item) in self.items.iter().filter(|(_, item)| !item.harmful) {
            let used = item.uses.iter().filter(|used| !used.is_built_in()).filter_map(|used| self.items.get(used));
            uses.extend(used.map(|used| (&*used.name, &*item.name)));
            // One that is made of types only, as a table's rows are, is reached through these.
            if object.class == Class::Type && item.uses.iter().any(|used| used.class != Class::Type) {
                types.insert(&*item.name);
            }
        }
        let named = self.named.iter().filter_map(|(name, object)| Some((&**name, &*self.items.get(object)?.name)));
        uses.extend(named);
        Users::new(&uses, &types)
    }

    fn into_catalogue(self, pins: &Pins) -> Catalogue {
        let users = self.users();
        let built_in: Box<[u8]> = (*b"pg_catalog").into();
        let (mut functions, mut operators, mut relations) = (Names::new(), Names::new(), Names::new());
        let (mut fields, mut types) = (BTreeMap::new(), BTreeMap::new());
        for (name, immutable) in self.built_in {
            let pinned = pins.of_function(Some(&built_in), &name).map(|access| access == Access::Read);
            let harmless = pinned.unwrap_or_else(|| is_built_in_harmless(&name, immutable));
            functions.entry(name).or_default().push((built_in.clone(), harmless));
        }
        for name in self.operators {
            operators.entry(name).or_default().push((built_in.clone(), true));
        }
        let mut is_hidden = false;
        for (object, item) in self.items {
            match object.class {
                Class::Function if object.is_built_in() => {}
                Class::Function => {
                    if item.harmful && item.is_field {
                        fields.insert(item.name.clone(), ());
                    }
                    functions.entry(item.name).or_default().push((item.schema, !item.harmful));
                }
                Class::Operator => operators.entry(item.name).or_default().push((item.schema, !item.harmful)),
                Class::Relation if item.harmful => {
                    relations.entry(item.name).or_default().push((item.schema, false));
                }
                Class::Type if item.harmful => {
                    is_hidden |= object.is_built_in();
                    types.insert(item.name, ());
                }
                Class::Relation | Class::Type => {}
            }
        }
        let is_harmful = |operator: &&[u8]| operators.get(*operator).is_some_and(|all| all.iter().any(|(_, ok)| !ok));
        let words = WORDS.iter().filter(|(_, used)| used.iter().any(&is_harmful));
        let words = words.map(|(word, _)| *word).collect();
        Catalogue { functions, operators, relations, fields, types, words, users, is_hidden, is_utf8: false }
    }
}

/// Of what the query tells nothing of: the server's own relations are not for replicas, and what was dropped meanwhile is
/// not known.
fn is_harmful_unseen(object: Object) -> bool {
    match object.class {
        Class::Relation => object.is_built_in(),
        Class::Function => true,
        Class::Operator => !object.is_built_in(),
        Class::Type => false,
    }
}
