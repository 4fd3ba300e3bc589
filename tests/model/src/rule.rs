//! The rules that can be switched off.

/// What a world switches off. In an ordinary build of the core nothing can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Off {
    #[cfg(read_router_mutants)]
    core: u32,
    timeline_first: bool,
}

/// The one rule that lies in the order of the probe's statements, not in the core's code.
const PROBE_ORDER: &str = "PositionFirst";

impl Off {
    /// Switches the rule of this name off as well; `None` if this build cannot.
    #[must_use]
    pub fn and(mut self, rule: &str) -> Option<Self> {
        if rule == PROBE_ORDER {
            self.timeline_first = true;
            return Some(self);
        }
        self.and_in_core(rule)
    }

    #[cfg(read_router_mutants)]
    fn and_in_core(self, rule: &str) -> Option<Self> {
        let known = read_router::mutants::Rule::ALL.iter().find(|known| format!("{known:?}") == rule)?;
        Some(Self { core: self.core | known.bit(), ..self })
    }

    #[cfg(not(read_router_mutants))]
    fn and_in_core(self, _: &str) -> Option<Self> {
        None
    }

    pub(crate) fn timeline_first(self) -> bool {
        self.timeline_first
    }

    /// Makes it so for the core's code in this thread.
    pub(crate) fn apply(self) {
        #[cfg(read_router_mutants)]
        read_router::mutants::switch_off(self.core);
    }
}
