//! `classify`: which statements could replicas serve, and what holds the others back?

use std::{
    fs,
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use classify::{
    Error,
    input::{self, Statement, escape},
    oracle::{Oracle, Verdict},
    report::{Report, columns},
    server::{self, Counted},
};
use read_router::{Access, Known, PinError, Pins, StatementKind};

/// Says of each statement whether a replica may serve it, and why not: `id<TAB>replica|primary<TAB>reason`.
///
/// FILE has lines `id<TAB>sql`, in which \n, \t, \r and \\ stand for what they say; further columns are ignored.
#[derive(Debug, Parser)]
#[command(name = "classify", version)]
struct Args {
    /// The statements; `-` is the standard input.
    #[arg(required_unless_present = "pg_stat_statements", conflicts_with = "pg_stat_statements")]
    file: Option<PathBuf>,

    /// FILE is a script, as it is if its name ends in .sql: statements are named by the lines that they begin in.
    #[arg(long)]
    sql: bool,

    /// Judges by this server's catalogue; without it, only built-in functions and operators are known.
    #[arg(long, value_name = "URL")]
    url: Option<String>,

    /// Judges what that server has run, and sums up what share of it replicas could serve.
    #[arg(long, requires = "url")]
    pg_stat_statements: bool,

    /// Runs each statement that is called a read on the standby of a test cluster, and lists the unsafe ones. The exit status
    /// is 1 if there is one. Of a script all other statements are run on its primary, in their order.
    #[arg(long, conflicts_with_all = ["url", "pg_stat_statements"])]
    oracle: bool,

    /// A script that the oracle's primary runs first.
    #[arg(long, value_name = "FILE", requires = "oracle")]
    fixture: Option<PathBuf>,

    /// Calls of this function are reads. May be given several times, like the next two.
    #[arg(long, value_name = "NAME")]
    read_function: Vec<String>,

    /// Calls of this function are for the primary.
    #[arg(long, value_name = "NAME")]
    primary_function: Vec<String>,

    /// Queries of this table or view are for the primary.
    #[arg(long, value_name = "NAME")]
    primary_table: Vec<String>,

    /// Sums up, after the statements.
    #[arg(long)]
    summary: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let pins = match pins(&args) {
        Ok(pins) => pins,
        Err(error) => {
            eprintln!("classify: {error}");
            return ExitCode::from(2);
        }
    };
    let done = if args.oracle { oracle(&args, pins) } else { classify(&args, pins) };
    match done {
        Ok(code) => code,
        // Who reads the result has seen enough.
        Err(Error::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("classify: {error}");
            ExitCode::from(2)
        }
    }
}

fn pins(args: &Args) -> Result<Pins, PinError> {
    let mut pins = Pins::new();
    args.read_function.iter().try_for_each(|name| pins.function(name, Access::Read))?;
    args.primary_function.iter().try_for_each(|name| pins.function(name, Access::Primary))?;
    args.primary_table.iter().try_for_each(|name| pins.table(name, Access::Primary))?;
    Ok(pins)
}

fn classify(args: &Args, pins: Pins) -> Result<ExitCode, Error> {
    let mut server = args.url.as_deref().map(server::connect).transpose()?;
    let known = match &mut server {
        Some(client) => server::known(client, pins)?,
        None => Known::new(pins),
    };
    let counted = match &mut server {
        Some(client) if args.pg_stat_statements => server::statements(client)?,
        _ => read(args)?.into_iter().map(|statement| Counted { statement, calls: 1 }).collect(),
    };
    let mut out = BufWriter::new(io::stdout().lock());
    let mut report = Report::default();
    for Counted { statement, calls } in &counted {
        let kind = StatementKind::known(&statement.sql, &known);
        report.add(kind, *calls);
        let (destination, reason) = columns(kind);
        let line = if args.pg_stat_statements {
            writeln!(out, "{}\t{destination}\t{reason}\t{calls}\t{}", statement.id, escape(&statement.sql))
        } else {
            writeln!(out, "{}\t{destination}\t{reason}", statement.id)
        };
        line.map_err(Error::Output)?;
    }
    if args.summary || args.pg_stat_statements {
        write!(out, "{report}").map_err(Error::Output)?;
    }
    out.flush().map_err(Error::Output)?;
    Ok(ExitCode::SUCCESS)
}

fn oracle(args: &Args, pins: Pins) -> Result<ExitCode, Error> {
    let statements = read(args)?;
    let fixture = args.fixture.as_deref().map(text).transpose()?.unwrap_or_default();
    let mut oracle = Oracle::start(&fixture, pins)?;
    let summary = oracle.judge(&statements, is_script(args), |statement, verdict| {
        if let Verdict::Unsafe(why) = verdict {
            println!("{}\tunsafe\t{}\t{}", statement.id, escape(why), escape(&statement.sql));
        }
    })?;
    println!("{summary}");
    Ok(ExitCode::from(u8::from(summary.unsafe_ones > 0)))
}

fn is_script(args: &Args) -> bool {
    let by_name = args.file.as_deref().and_then(Path::extension);
    args.sql || by_name.is_some_and(|extension| extension.eq_ignore_ascii_case("sql"))
}

fn read(args: &Args) -> Result<Vec<Statement>, Error> {
    let text = text(args.file.as_deref().unwrap_or(Path::new("-")))?;
    Ok(if is_script(args) { input::script(&text) } else { input::table(&text) })
}

fn text(path: &Path) -> Result<String, Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).map_err(failed)?;
        bytes
    } else {
        fs::read(path).map_err(failed)?
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
