//! What SQLite's result codes mean. Never its texts.

use crate::store::{Error, ErrorKind};

/// Primary result codes (<https://www.sqlite.org/rescode.html>): the low byte of the extended ones.
mod code {
    pub const PERM: i32 = 3;
    pub const BUSY: i32 = 5;
    pub const LOCKED: i32 = 6;
    pub const NOMEM: i32 = 7;
    pub const READONLY: i32 = 8;
    pub const IOERR: i32 = 10;
    pub const CORRUPT: i32 = 11;
    pub const FULL: i32 = 13;
    pub const CANTOPEN: i32 = 14;
    pub const PROTOCOL: i32 = 15;
    pub const TOOBIG: i32 = 18;
    pub const CONSTRAINT: i32 = 19;
    pub const MISMATCH: i32 = 20;
    pub const AUTH: i32 = 23;
    pub const FORMAT: i32 = 24;
    pub const NOTADB: i32 = 26;
}

/// The error for what a statement failed with.
pub(super) fn of(error: sqlx::Error) -> Error {
    let kind = match &error {
        sqlx::Error::Database(database) => match database.code().and_then(|code| code.parse().ok()) {
            Some(code) => kind_of(code),
            None => ErrorKind::Internal,
        },
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => ErrorKind::Unavailable,
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => ErrorKind::Corrupt,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, error.to_string())
}

/// The error for what a commit failed with. Where the log could not be flushed nobody knows whether the
/// commit would survive a power cut, so it is not said that nothing was stored.
pub(super) fn of_commit(error: sqlx::Error) -> Error {
    let unknown = matches!(primary_code(&error), None | Some(code::IOERR));
    let mut error = of(error);
    if unknown {
        error.kind = ErrorKind::OutcomeUnknown;
    }
    error
}

/// Whether somebody else holds the lock just now.
pub(super) fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(code::BUSY | code::LOCKED | code::PROTOCOL))
}

fn primary_code(error: &sqlx::Error) -> Option<i32> {
    error.as_database_error()?.code()?.parse::<i32>().ok().map(|code| code & 0xff)
}

fn kind_of(extended: i32) -> ErrorKind {
    match extended & 0xff {
        code::PERM
        | code::BUSY
        | code::LOCKED
        | code::NOMEM
        | code::READONLY
        | code::IOERR
        | code::FULL
        | code::CANTOPEN
        | code::PROTOCOL
        | code::AUTH => ErrorKind::Unavailable,
        code::CORRUPT | code::FORMAT | code::NOTADB => ErrorKind::Corrupt,
        code::TOOBIG | code::CONSTRAINT | code::MISMATCH => ErrorKind::InvalidData,
        _ => ErrorKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extended_codes_mean_what_their_primary_code_means() {
        let busy_snapshot = 5 | (2 << 8);
        assert_eq!(kind_of(busy_snapshot), ErrorKind::Unavailable);
        let readonly_moved = 8 | (4 << 8);
        assert_eq!(kind_of(readonly_moved), ErrorKind::Unavailable);
        let constraint_notnull = 19 | (5 << 8);
        assert_eq!(kind_of(constraint_notnull), ErrorKind::InvalidData);
        assert_eq!(kind_of(11), ErrorKind::Corrupt);
        assert_eq!(kind_of(26), ErrorKind::Corrupt);
        assert_eq!(kind_of(1), ErrorKind::Internal);
    }
}
