-- Oncegate's tables.
--
-- Times are microseconds since 1970-01-01T00:00:00Z, ids and keys are UUIDs of 16 bytes, texts compare as bytes.
-- Rows may be read by anybody at any time; nothing but Oncegate writes these tables.

-- One message for one target: the outbox (kind 0: destinations) and the inbox (kind 1: handlers).
-- Every row has one clock, due_at; state says why it lies ahead: 0 scheduled, 1 waiting, 2 leased.
CREATE TABLE oncegate_deliveries (
  row_id           BLOB    NOT NULL, -- a UUIDv7 of the gateway's, never the client's id
  target_no        INTEGER NOT NULL, -- the place of the target among the message's targets
  kind             INTEGER NOT NULL,
  target           TEXT    NOT NULL,
  state            INTEGER NOT NULL,
  due_at           INTEGER NOT NULL,
  token            INTEGER NOT NULL, -- of the lease; 0: none
  taken            INTEGER NOT NULL, -- since it was last settled
  attempts         INTEGER NOT NULL, -- that counted
  deliver_at       INTEGER,
  deliver_by       INTEGER,
  claim_key        BLOB,             -- the claim of its work, freed when it is cancelled or discarded
  tenant           TEXT    NOT NULL,
  message_id       TEXT,             -- null: the row id, as text
  type             TEXT    NOT NULL,
  deduplication_id TEXT,
  partition_key    TEXT,
  correlation_id   TEXT,
  accepted_at      INTEGER NOT NULL,
  error_kind       TEXT,             -- of the last attempt that failed
  error_text       TEXT,
  envelope         TEXT    NOT NULL, -- what is only carried: JSON
  body             BLOB    NOT NULL,
  PRIMARY KEY (row_id, target_no)
) STRICT;

CREATE INDEX oncegate_deliveries_due ON oncegate_deliveries (kind, target, due_at);
CREATE INDEX oncegate_deliveries_deadline ON oncegate_deliveries (deliver_by) WHERE deliver_by IS NOT NULL;
CREATE INDEX oncegate_deliveries_scheduled ON oncegate_deliveries (row_id) WHERE state = 0;
CREATE INDEX oncegate_deliveries_failed ON oncegate_deliveries (kind, target, due_at) WHERE error_text IS NOT NULL;
CREATE INDEX oncegate_deliveries_message ON oncegate_deliveries (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX oncegate_deliveries_deduplication ON oncegate_deliveries (deduplication_id, row_id)
  WHERE deduplication_id IS NOT NULL;
CREATE INDEX oncegate_deliveries_correlation ON oncegate_deliveries (correlation_id, row_id)
  WHERE correlation_id IS NOT NULL;

-- Claims. One clock, expires_at: the lease's end while claimed, the window's end once confirmed.
CREATE TABLE oncegate_deduplication (
  key           BLOB    NOT NULL PRIMARY KEY, -- 128 bits of the SHA-256 over kind, scope and id
  kind          INTEGER NOT NULL,
  scope         TEXT    NOT NULL,
  id            TEXT    NOT NULL,
  token         INTEGER NOT NULL,
  confirmed     INTEGER NOT NULL,
  tenant        TEXT    NOT NULL,
  row_id        BLOB,                         -- the message that holds it
  message_id    TEXT,                         -- null: the row id, as text
  first_seen_at INTEGER NOT NULL,
  expires_at    INTEGER NOT NULL,
  fingerprint   BLOB,                         -- of requests
  answer        BLOB                          -- of requests; null and confirmed: too large to keep
) STRICT, WITHOUT ROWID;

CREATE INDEX oncegate_deduplication_expiry ON oncegate_deduplication (expires_at);

-- Deliveries that were given up on, whole.
CREATE TABLE oncegate_dead_letters (
  id               BLOB    NOT NULL PRIMARY KEY, -- its own, a UUIDv7
  row_id           BLOB    NOT NULL,
  target_no        INTEGER NOT NULL,
  kind             INTEGER NOT NULL,
  target           TEXT    NOT NULL,
  attempts         INTEGER NOT NULL,
  deliver_at       INTEGER,
  deliver_by       INTEGER,
  claim_key        BLOB,
  tenant           TEXT    NOT NULL,
  message_id       TEXT,                         -- null: the row id, as text
  type             TEXT    NOT NULL,
  deduplication_id TEXT,
  partition_key    TEXT,
  correlation_id   TEXT,
  accepted_at      INTEGER NOT NULL,
  failed_at        INTEGER NOT NULL,
  error_kind       TEXT    NOT NULL,
  error_text       TEXT    NOT NULL,
  envelope         TEXT    NOT NULL,
  body             BLOB    NOT NULL
) STRICT;

CREATE INDEX oncegate_dead_letters_row ON oncegate_dead_letters (row_id);
CREATE INDEX oncegate_dead_letters_failed ON oncegate_dead_letters (failed_at);
CREATE INDEX oncegate_dead_letters_message ON oncegate_dead_letters (message_id) WHERE message_id IS NOT NULL;

-- That a delivery was made.
CREATE TABLE oncegate_receipts (
  row_id           BLOB    NOT NULL,
  target_no        INTEGER NOT NULL,
  kind             INTEGER NOT NULL,
  target           TEXT    NOT NULL,
  tenant           TEXT    NOT NULL,
  message_id       TEXT,             -- null: the row id, as text
  type             TEXT    NOT NULL,
  deduplication_id TEXT,
  attempts         INTEGER NOT NULL, -- the successful one included
  accepted_at      INTEGER NOT NULL,
  sent_at          INTEGER NOT NULL,
  PRIMARY KEY (row_id, target_no)
) STRICT, WITHOUT ROWID;

CREATE INDEX oncegate_receipts_sent ON oncegate_receipts (sent_at);
CREATE INDEX oncegate_receipts_message ON oncegate_receipts (message_id) WHERE message_id IS NOT NULL;

-- Targets that an operator paused, for all nodes.
CREATE TABLE oncegate_targets (
  kind      INTEGER NOT NULL,
  name      TEXT    NOT NULL,
  paused_at INTEGER NOT NULL,
  PRIMARY KEY (kind, name)
) STRICT, WITHOUT ROWID;
