//! What is known beside a statement's text.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Access, Catalogue, NotRead, Pins, SchemaChange,
    catalogue::operators,
    functions::HARMLESS,
    lexer::{Lexer, Token},
    name::Name,
    words::OPERATORS,
};

/// What a statement is judged by beside its text: what the application has [pinned](Pins), and the
/// [catalogue](Catalogue), once it has been read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    pins: Arc<Pins>,
    catalogue: Option<Arc<Catalogue>>,
    outdated: Outdated,
}

/// What of the catalogue has changed since it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Outdated {
    #[default]
    Nothing,
    /// What has one of these names.
    Names(Arc<BTreeSet<Box<[u8]>>>),
    Everything,
}

impl Known {
    /// Nothing but what is pinned.
    #[must_use]
    pub fn new(pins: Pins) -> Self {
        Self { pins: Arc::new(pins), catalogue: None, outdated: Outdated::Nothing }
    }

    /// The same pins, with this catalogue; one made [with](Catalogue::read) other pins keeps to these.
    #[must_use]
    pub fn with_catalogue(&self, catalogue: Catalogue) -> Self {
        Self { pins: self.pins.clone(), catalogue: Some(Arc::new(catalogue)), outdated: Outdated::Nothing }
    }

    /// The same, but until the catalogue comes anew nothing is taken for a read that the change may have made something else.
    /// Without a catalogue there is nothing to go out of date.
    #[must_use]
    pub fn outdated_by(mut self, change: &SchemaChange) -> Self {
        let Some(catalogue) = &self.catalogue else { return self };
        let reached = match change {
            SchemaChange::Tables => return self,
            SchemaChange::Names(names) => catalogue.reaching(names.iter().map(String::as_bytes)),
            SchemaChange::Code => None,
        };
        match (&mut self.outdated, reached) {
            (Outdated::Everything, _) => {}
            (outdated, None) => *outdated = Outdated::Everything,
            (Outdated::Names(all), Some(more)) => Arc::make_mut(all).extend(more),
            (outdated, Some(names)) => *outdated = Outdated::Names(Arc::new(names)),
        }
        self
    }

    /// What is pinned.
    #[must_use]
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// The catalogue, once it has been read.
    #[must_use]
    pub fn catalogue(&self) -> Option<&Catalogue> {
        self.catalogue.as_deref()
    }

    /// What holds for all statements.
    pub(super) fn whole(&self) -> Result<(), NotRead> {
        match &self.catalogue {
            Some(_) if self.outdated == Outdated::Everything => Err(NotRead::Outdated),
            Some(catalogue) if catalogue.is_hidden() => Err(NotRead::Function),
            _ => Ok(()),
        }
    }

    /// Whether the text of a query names nothing that may have changed.
    pub(super) fn current(&self, sql: &str) -> Result<(), NotRead> {
        let Outdated::Names(names) = &self.outdated else { return Ok(()) };
        let is_changed = |name: &[u8]| names.contains(name);
        let mut lexer = Lexer::new(sql);
        while let Some(token) = lexer.token()? {
            let by_keyword = match token {
                Token::Operator(operator) => is_changed(operator),
                Token::Word(word) => operators(word).any(is_changed),
                _ => false,
            };
            if by_keyword || Name::of(token).is_some_and(|name| is_changed(name.as_bytes())) {
                return Err(NotRead::Outdated);
            }
        }
        Ok(())
    }

    /// A call of a function.
    pub(super) fn function(&self, schema: Option<&Name>, name: &Name) -> Result<(), NotRead> {
        let (schema, bytes) = (schema.map(Name::as_bytes), name.as_bytes());
        let pinned = self.pins.of_function(schema, bytes);
        let found = self.catalogue().filter(|catalogue| catalogue.understands(name));
        let harmless = match (pinned, found.and_then(|catalogue| catalogue.function(schema, bytes))) {
            (Some(Access::Primary), _) => return Err(NotRead::Pinned),
            (_, Some(harmless)) => harmless,
            (Some(Access::Read), None) => true,
            // A name that only the grammar knows, or that a newer server has.
            (None, None) => schema.is_none_or(|schema| schema == b"pg_catalog") && HARMLESS.contains(bytes),
        };
        harmless.then_some(()).ok_or(NotRead::Function)
    }

    /// A table or view in a place where one is read.
    pub(super) fn relation(&self, schema: Option<&Name>, name: &Name) -> Result<(), NotRead> {
        let bytes = (schema.map(Name::as_bytes), name.as_bytes());
        match self.pins.of_table(bytes.0, bytes.1) {
            Some(Access::Primary) => return Err(NotRead::Pinned),
            Some(Access::Read) => return Ok(()),
            None => {}
        }
        let Some(catalogue) = self.catalogue() else { return Ok(()) };
        let harmless = catalogue.understands(name) && !catalogue.is_harmful(bytes.0, bytes.1);
        harmless.then_some(()).ok_or(NotRead::Relation)
    }

    /// A name that is no call: a column, a type, an alias. Behind a dot it may be a function after all.
    pub(super) fn mention(&self, name: &Name, is_field: bool) -> Result<(), NotRead> {
        let Some(catalogue) = self.catalogue() else { return Ok(()) };
        if is_field && (catalogue.is_field(name.as_bytes()) || name.is_foreign() && !catalogue.understands(name)) {
            return Err(NotRead::Function);
        }
        if catalogue.is_type(name.as_bytes()) { Err(NotRead::Function) } else { Ok(()) }
    }

    /// An operator.
    pub(super) fn operator(&self, schema: Option<&Name>, operator: &[u8]) -> Result<(), NotRead> {
        let schema = schema.map(Name::as_bytes);
        let harmless = match self.catalogue().map(|catalogue| catalogue.operator(schema, operator)) {
            Some(found) => found.unwrap_or(false),
            None => schema.is_none_or(|schema| schema == b"pg_catalog") && OPERATORS.contains(operator),
        };
        harmless.then_some(()).ok_or(NotRead::Operator)
    }

    /// A keyword that uses an operator.
    pub(super) fn word(&self, word: &[u8]) -> Result<(), NotRead> {
        match self.catalogue() {
            Some(catalogue) if catalogue.is_word(word) => Err(NotRead::Operator),
            _ => Ok(()),
        }
    }
}
