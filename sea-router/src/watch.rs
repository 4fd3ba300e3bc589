/// Probes one node for as long as the task lives. A node that hangs holds up no other.
pub(crate) async fn probe_node(
    watch: Arc<Watch>,
    node: NodeId,
    options: PgConnectOptions,
    first: Option<(PgConnection, Epoch)>,
) {
    let mut open = first;
    loop {
        watch.due(node).await;
        if let Err(error) = probe_once(&watch, node, &options, &mut open).await {
            open = None;
            watch.failed(node, &error);
        }
    }
}

async fn probe_once(
    watch: &Watch,
    node: NodeId,
    options: &PgConnectOptions,
    open: &mut Option<(PgConnection, Epoch)>,
) -> Result<(), sqlx::Error> {
    let limit = watch.config.probe_timeout;
    // The name may lead elsewhere by now; the old connection would go on answering.
    open.take_if(|(_, epoch)| !watch.monitor().is_open(node, *epoch));
    let (connection, epoch) = match open {
        Some(open) => open,
        None => {
            let (connection, greeting) = within(limit, connect(options)).await?;
            let epoch = watch.learn(|monitor| monitor.opened(node, &greeting));
            open.insert((connection, epoch))
        }
    };
    watch.monitor().sent(node, clock::now(), rand::random());
    watch.counters.probe();
    let answer = within(limit, openings::position(connection)).await?;
    watch.learn(|monitor| monitor.answered(node, *epoch, &answer, clock::now()));
    Ok(())
}

/// Why a pool could not connect: it says only that it timed out, since it takes a refused connection for a server that
/// is still starting.
pub(crate) async fn cause(error: DbErr, url: &str, limit: Duration) -> DbErr {
    let timed_out = matches!(error::driver(&error), Some(sqlx::Error::PoolTimedOut));
    let Some(options) = timed_out.then(|| url.parse::<PgConnectOptions>().ok()).flatten() else { return error };
    match within(limit, PgConnection::connect_with(&options)).await {
        Ok(_) => error,
        Err(cause) => DbErr::Conn(RuntimeErr::SqlxError(cause.into())),
    }
}

/// Opens a probe connection and asks it once.
pub(crate) async fn first_probe(options: &PgConnectOptions, limit: Duration) -> Result<Probe, sqlx::Error> {
    within(limit, async {
        let (mut connection, greeting) = connect(options).await?;
        let sent_at = clock::now();
        let answer = openings::position(&mut connection).await?;
        Ok(Probe { connection, greeting, sent_at, answer })
    })
    .await
}

async fn connect(options: &PgConnectOptions) -> Result<(PgConnection, Greeting), sqlx::Error> {
    let mut connection = PgConnection::connect_with(options).await?;
    let greeting = openings::greeting(&mut connection).await?;
    Ok((connection, greeting))
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    match tokio::time::timeout(limit, work).await {
        Ok(done) => done,
        Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
    }
}

fn failure(error: &sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Io(error) if error.kind() == std::io::ErrorKind::TimedOut => Failure::Timeout,
        sqlx::Error::Database(_) if is_login(error) => Failure::Login,
        sqlx::Error::Database(error) if error.code().is_some_and(|c| !c.starts_with("57P") && !c.starts_with("08")) => {
            Failure::Answer
        }
        sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) | sqlx::Error::ColumnDecode { .. } => Failure::Answer,
        _ => Failure::Unreachable,
    }
}

/// Whether the server refuses this user or has no such database: waiting does not help.
pub(crate) fn is_login(error: &sqlx::Error) -> bool {
    is_no_database(error) || code(error).is_some_and(|code| code.starts_with("28"))
}

/// Whether the server has no such database.
pub(crate) fn is_no_database(error: &sqlx::Error) -> bool {
    code(error).is_some_and(|code| code == "3D000")
}

fn code(error: &sqlx::Error) -> Option<std::borrow::Cow<'_, str>> {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code)
}
