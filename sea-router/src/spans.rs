//! SeaORM's spans around statements, with the server that ran them.
//!
//! Their names, fields and filter target are SeaORM's, so that what is built on them goes on working: `node` is one field
//! more. In a transaction the spans of the statements are SeaORM's own; they stand in one of ours for the whole
//! transaction, which says where it runs.

use read_router::NodeId;

use crate::RoutingConnection;

impl RoutingConnection {
    /// Whether spans say the text of statements, as the options of the primary want it.
    #[cfg(feature = "tracing-spans")]
    pub(crate) fn records(&self) -> bool {
        self.inner.primary().record_statements
    }

    pub(crate) fn stream_span(&self, sql: &str) -> StreamSpan {
        StreamSpan::new(sql, self.inner.primary().record_statements)
    }
}

/// Runs a statement's future in a span of this name.
macro_rules! in_span {
    ($name:literal, $sql:expr, $recorded:expr, $work:expr) => {{
        #[cfg(feature = "tracing-spans")]
        {
            let span = $crate::spans::statement!($name, $sql);
            if $recorded {
                span.record("db.statement", $sql);
            }
            $crate::spans::run(span, $work).await
        }
        #[cfg(not(feature = "tracing-spans"))]
        {
            $work.await
        }
    }};
}
pub(crate) use in_span;

#[cfg(feature = "tracing-spans")]
macro_rules! statement {
    ($name:literal, $sql:expr) => {
        ::tracing::info_span!(
            target: $crate::spans::TARGET,
            $name,
            otel.kind = "client",
            db.system = "postgresql",
            db.operation = $crate::spans::operation($sql),
            db.statement = ::tracing::field::Empty,
            otel.status_code = ::tracing::field::Empty,
            exception.message = ::tracing::field::Empty,
            node = ::tracing::field::Empty,
        )
    };
}
#[cfg(feature = "tracing-spans")]
pub(crate) use statement;

pub(crate) use enabled::*;

#[cfg(feature = "tracing-spans")]
mod enabled {
    use sea_orm::DbErr;
    use tracing::{Instrument, Span, field};

    use super::NodeId;

    pub(crate) const TARGET: &str = "sea_orm";

    pub(crate) async fn run<T>(span: Span, work: impl Future<Output = Result<T, DbErr>>) -> Result<T, DbErr> {
        let out = work.instrument(span.clone()).await;
        ended(&span, out.as_ref().err());
        out
    }

    fn ended(span: &Span, error: Option<&DbErr>) {
        match error {
            None => span.record("otel.status_code", "OK"),
            Some(error) => span.record("otel.status_code", "ERROR").record("exception.message", field::display(error)),
        };
    }

    /// As SeaORM names it.
    pub(crate) fn operation(sql: &str) -> &'static str {
        let word = sql.split_whitespace().next().unwrap_or_default();
        let known = ["SELECT", "INSERT", "UPDATE", "DELETE"];
        known.into_iter().find(|known| word.eq_ignore_ascii_case(known)).unwrap_or("EXECUTE")
    }

    /// Says where the statement goes whose future is running. Where its span is filtered away, the caller's own is the
    /// current one, and that is not ours to write to.
    pub(crate) fn served_by(node: NodeId) {
        let span = Span::current();
        if span.metadata().is_some_and(|metadata| metadata.target() == TARGET) {
            span.record("node", field::display(node));
        }
    }

    /// The span of a stream, which is entered whenever a row is asked for.
    #[derive(Debug)]
    pub(crate) struct StreamSpan(Span);

    impl StreamSpan {
        pub(crate) fn new(sql: &str, recorded: bool) -> Self {
            let span = super::statement!("sea_orm.stream", sql);
            if recorded {
                span.record("db.statement", sql);
            }
            Self(span)
        }

        pub(crate) async fn around<T>(&self, work: impl Future<Output = Result<T, DbErr>>) -> Result<T, DbErr> {
            let out = work.instrument(self.0.clone()).await;
            if let Err(error) = &out {
                ended(&self.0, Some(error));
            }
            out
        }

        pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
            self.0.in_scope(work)
        }

        pub(crate) fn ended(&self, error: Option<&DbErr>) {
            ended(&self.0, error);
        }
    }

    /// The span of a transaction.
    #[derive(Clone, Debug)]
    pub(crate) struct TransactionSpan(Span);

    impl TransactionSpan {
        pub(crate) fn new() -> Self {
            Self(tracing::info_span!(
                target: TARGET,
                "sea_orm.transaction",
                otel.kind = "client",
                db.system = "postgresql",
                node = field::Empty,
            ))
        }

        pub(crate) fn none() -> Self {
            Self(Span::none())
        }

        pub(crate) fn around<F: Future>(&self, work: F) -> tracing::instrument::Instrumented<F> {
            work.instrument(self.0.clone())
        }
    }
}

#[cfg(not(feature = "tracing-spans"))]
mod enabled {
    use super::NodeId;

    pub(crate) fn served_by(_: NodeId) {}

    #[derive(Debug)]
    pub(crate) struct StreamSpan;

    impl StreamSpan {
        pub(crate) fn new(_: &str, _: bool) -> Self {
            Self
        }

        pub(crate) fn around<F: Future>(&self, work: F) -> F {
            work
        }

        pub(crate) fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
            work()
        }

        pub(crate) fn ended(&self, _: Option<&sea_orm::DbErr>) {}
    }

    #[derive(Clone, Debug)]
    pub(crate) struct TransactionSpan;

    impl TransactionSpan {
        pub(crate) fn new() -> Self {
            Self
        }

        pub(crate) fn none() -> Self {
            Self
        }

        pub(crate) fn around<F: Future>(&self, work: F) -> F {
            work
        }
    }
}
