//! What PostgreSQL's errors mean. Decided by SQLSTATE alone: the text is in the server's language.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::store::{Error, ErrorKind};

/// A failed statement: what callers are told, and what is to be done about it here.
#[derive(Debug)]
pub(super) struct Fault {
    pub error: Error,
    pub class: Class,
    /// The SQLSTATE, where the server gave one.
    pub code: Option<String>,
}

/// What can be done about a failed statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A lock was not had in time, or a deadlock was broken: worth another try.
    Contention,
    /// The data cannot be stored: no try will help, but neighbours may be fine.
    Data,
    /// The connection is gone, and with it the knowledge of what became of the statement.
    Lost,
    /// No connection was had: nothing was sent.
    NotSent,
    /// The server only reads: the connection is of no use.
    ReadOnly,
    Other,
}

impl Fault {
    pub fn new(class: Class, kind: ErrorKind, detail: impl Into<String>) -> Self {
        Self { error: Error::new(kind, detail), class, code: None }
    }

    /// What a request itself is to blame for: it is tried without its neighbours.
    pub fn defect(error: Error) -> Self {
        Self { error, class: Class::Data, code: None }
    }

    /// Whether the connection can be used again.
    pub fn spares_connection(&self) -> bool {
        !matches!(self.class, Class::Lost | Class::ReadOnly | Class::NotSent)
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

impl From<sqlx::Error> for Fault {
    fn from(error: sqlx::Error) -> Self {
        let detail = error.to_string();
        match &error {
            sqlx::Error::Database(database) => {
                let code = database.code().unwrap_or_default();
                let (mut class, kind) = classify(&code);
                let fatal = database
                    .try_downcast_ref::<PgDatabaseError>()
                    .is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic));
                if fatal && class != Class::ReadOnly {
                    class = Class::Lost;
                }
                Self {
                    code: Some(code.clone().into_owned()),
                    ..Self::new(class, kind, format!("{code}: {detail}"))
                }
            }
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => {
                Self::new(Class::Lost, ErrorKind::Unavailable, detail)
            }
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::ColumnNotFound(_) => {
                Self::new(Class::Other, ErrorKind::Corrupt, detail)
            }
            sqlx::Error::Encode(_) => Self::new(Class::Data, ErrorKind::InvalidData, detail),
            _ => Self::new(Class::Lost, ErrorKind::Internal, detail),
        }
    }
}

/// By class and code of PostgreSQL's appendix A.
fn classify(code: &str) -> (Class, ErrorKind) {
    match code {
        "25006" => (Class::ReadOnly, ErrorKind::Unavailable), // read_only_sql_transaction
        "25P03" => (Class::Lost, ErrorKind::Unavailable),     // idle_in_transaction_session_timeout
        "40001" | "40P01" | "55P03" => (Class::Contention, ErrorKind::Locked),
        // undefined_table, undefined_column, undefined_function, invalid_schema_name
        "42P01" | "42703" | "42883" | "3F000" => (Class::Other, ErrorKind::NotMigrated),
        "42501" | "3D000" => (Class::Other, ErrorKind::Unavailable), // privileges, no such database
        "57014" => (Class::Other, ErrorKind::Unavailable),           // query_canceled: statement_timeout
        "21000" => (Class::Other, ErrorKind::Internal),              // one claim key twice: a defect of ours
        "XX001" | "XX002" => (Class::Other, ErrorKind::Corrupt),
        _ => match code.get(..2).unwrap_or_default() {
            "22" | "23" | "54" => (Class::Data, ErrorKind::InvalidData),
            "08" | "57" => (Class::Lost, ErrorKind::Unavailable),
            "28" | "53" | "58" => (Class::Other, ErrorKind::Unavailable),
            _ => (Class::Other, ErrorKind::Internal),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_decide() {
        for (code, class, kind) in [
            ("55P03", Class::Contention, ErrorKind::Locked),
            ("40P01", Class::Contention, ErrorKind::Locked),
            ("22021", Class::Data, ErrorKind::InvalidData),
            ("23502", Class::Data, ErrorKind::InvalidData),
            ("54000", Class::Data, ErrorKind::InvalidData),
            ("25006", Class::ReadOnly, ErrorKind::Unavailable),
            ("25P03", Class::Lost, ErrorKind::Unavailable),
            ("57P01", Class::Lost, ErrorKind::Unavailable),
            ("57P03", Class::Lost, ErrorKind::Unavailable),
            ("53100", Class::Other, ErrorKind::Unavailable),
            ("42P01", Class::Other, ErrorKind::NotMigrated),
            ("42601", Class::Other, ErrorKind::Internal),
        ] {
            assert_eq!(classify(code), (class, kind), "{code}");
        }
    }
}
