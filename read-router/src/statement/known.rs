//! What is known beside a statement's text.

use std::sync::Arc;

use super::{Access, Catalogue, NotRead, Pins, functions::HARMLESS, name::Name, words::OPERATORS};

/// What a statement is judged by beside its text: what the application has [pinned](Pins), and the
/// [catalogue](Catalogue), once it has been read.
#[derive(Clone, Debug, Default)]
pub struct Known {
    pins: Arc<Pins>,
    catalogue: Option<Arc<Catalogue>>,
    /// The catalogue is about to be read again, since something in it has changed that counts.
    suspended: bool,
}

impl Known {
    /// Nothing but what is pinned.
    #[must_use]
    pub fn new(pins: Pins) -> Self {
        Self { pins: Arc::new(pins), catalogue: None, suspended: false }
    }

    /// The same pins, with this catalogue; one made [with](Catalogue::read) other pins keeps to these.
    #[must_use]
    pub fn with_catalogue(&self, catalogue: Catalogue) -> Self {
        Self { pins: self.pins.clone(), catalogue: Some(Arc::new(catalogue)), suspended: false }
    }

    /// The same, but until the catalogue comes anew nothing is taken for a read, if there is one by now.
    #[must_use]
    pub fn suspended(&self) -> Self {
        Self { suspended: true, ..self.clone() }
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

    /// Whether nothing is taken for a read until the catalogue comes anew.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspended
    }

    /// What holds for all statements.
    pub(super) fn whole(&self) -> Result<(), NotRead> {
        match &self.catalogue {
            Some(_) if self.suspended => Err(NotRead::Outdated),
            Some(catalogue) if catalogue.is_hidden() => Err(NotRead::Function),
            _ => Ok(()),
        }
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
