//! The file and its connections: one that writes, a few that read.

use std::fs::{DirBuilder, OpenOptions};
use std::io::ErrorKind as IoErrorKind;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{
    SqliteConnectOptions, SqliteConnection, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection};

use super::error;
use crate::store::{Error, ErrorKind, Options, Result};

const READERS: u32 = 4;

/// The write-ahead log is cut back to this after a checkpoint that emptied it.
const LOG_LIMIT_BYTES: &str = "67108864";

/// How long to pause before asking again for a lock that SQLite does not wait for.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// The path in `sqlite:PATH` or `sqlite://PATH`, made absolute, so that nothing of it is read as a URI or as
/// the name of a database in memory.
pub(super) fn path(url: &str) -> Result<PathBuf> {
    let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")).unwrap_or_default();
    if path.is_empty() || path == ":memory:" {
        return Err(Error::new(ErrorKind::Internal, "the URL of a SQLite store needs the path of a file"));
    }
    std::path::absolute(path).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
}

/// Makes the folder (0700) and the file (0600) where they are not there. SQLite gives the files beside it
/// the same mode.
pub(super) fn create(path: &Path) -> Result<()> {
    let unavailable =
        |error: std::io::Error| Error::new(ErrorKind::Unavailable, format!("{}: {error}", path.display()));
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unavailable)?;
    }
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == IoErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(unavailable(error)),
    }
}

/// What every connection is opened with.
pub(super) fn options(path: &Path, options: &Options) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(options.busy_timeout)
        .synchronous(SqliteSynchronous::Full)
        .pragma("journal_size_limit", LOG_LIMIT_BYTES)
        .disable_statement_logging()
}

/// Puts the file into WAL mode, for good. Needs the file for itself for a moment, for which SQLite does not
/// wait by itself.
pub(super) async fn enable_log(options: &SqliteConnectOptions, patience: Duration) -> Result<()> {
    let mut connection = options.connect().await.map_err(error::of)?;
    let mut waited = Duration::ZERO;
    loop {
        match sqlx::query_scalar::<_, String>("PRAGMA journal_mode = WAL").fetch_one(&mut connection).await {
            Ok(mode) if mode == "wal" => break,
            Ok(mode) => {
                let detail = format!("the file's system does not support WAL: it stays in mode {mode}");
                return Err(Error::new(ErrorKind::Unavailable, detail));
            }
            Err(error) if error::is_busy(&error) && waited < patience => {
                tokio::time::sleep(RETRY_PAUSE).await;
                waited += RETRY_PAUSE;
            }
            Err(error) => return Err(error::of(error)),
        }
    }
    connection.close().await.map_err(error::of)
}

/// The connection that writes.
pub(super) async fn writer(options: &SqliteConnectOptions) -> Result<SqliteConnection> {
    options.clone().pragma("cache_size", "-16384").connect().await.map_err(error::of)
}

/// The connections that read. They are opened when needed.
pub(super) fn readers(connect: &SqliteConnectOptions, options: &Options) -> SqlitePool {
    SqlitePoolOptions::new()
        .max_connections(READERS.min(options.max_connections.max(1)))
        .acquire_timeout(options.acquire_timeout)
        .test_before_acquire(false)
        .connect_lazy_with(connect.clone().pragma("query_only", "ON"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_url_name_the_same_file() {
        assert_eq!(path("sqlite:/var/lib/a b.db").unwrap(), Path::new("/var/lib/a b.db"));
        assert_eq!(path("sqlite:///var/lib/a b.db").unwrap(), Path::new("/var/lib/a b.db"));
        assert_eq!(path("sqlite:data/x.db").unwrap(), path("sqlite://data/x.db").unwrap());
        assert!(path("sqlite:data/x.db").unwrap().is_absolute());
    }

    #[test]
    fn a_store_is_a_file() {
        for url in ["sqlite:", "sqlite://", "sqlite::memory:"] {
            assert_eq!(path(url).unwrap_err().kind, ErrorKind::Internal, "{url}");
        }
    }
}
