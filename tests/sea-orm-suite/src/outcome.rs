//! What became of each test.

use std::collections::BTreeMap;

/// The results by the tests' names.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    tests: BTreeMap<String, bool>,
}

impl Outcome {
    /// A test passed, or it did not. The worse of two reports counts.
    pub(crate) fn add(&mut self, name: String, passed: bool) {
        let known = self.tests.entry(name).or_insert(passed);
        *known = *known && passed;
    }

    pub(crate) fn passed(&self) -> usize {
        self.tests.values().filter(|passed| **passed).count()
    }

    pub(crate) fn failed(&self) -> usize {
        self.tests.len() - self.passed()
    }

    pub(crate) fn names_of_failed(&self) -> impl Iterator<Item = &str> {
        self.tests.iter().filter(|(_, passed)| !**passed).map(|(name, _)| name.as_str())
    }
}
