//! placeholder
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotRead { Write }
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatementKind { Read, Primary(NotRead) }
impl StatementKind { pub fn is_read(self) -> bool { self == Self::Read } }
pub struct StatementKinds;
impl StatementKinds {
    pub fn with_key(_: [u64; 2]) -> Self { Self }
    pub fn kind(&self, sql: &str) -> StatementKind {
        let s = sql.trim_start().to_ascii_uppercase();
        if s.starts_with("SELECT") && !s.contains("FOR UPDATE") && !s.contains("ADVISORY") { StatementKind::Read } else { StatementKind::Primary(NotRead::Write) }
    }
}
