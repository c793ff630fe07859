-- The queue: one message for one target. Rows are short-lived, so vacuum has to keep up with the deletes.
CREATE TABLE oncegate.deliveries (
    row_id           uuid        NOT NULL, -- the gateway's own UUIDv7, never a client's message id
    target_no        smallint    NOT NULL, -- the place among the message's targets
    kind             smallint    NOT NULL, -- 0 destination, 1 handler
    target           text        NOT NULL,
    state            smallint    NOT NULL, -- why due_at lies ahead: 0 scheduled, 1 waiting, 2 leased
    due_at           timestamptz NOT NULL, -- the one clock: from then on anybody may take it
    token            bigint      NOT NULL, -- of the lease; 0: none
    attempts         integer     NOT NULL DEFAULT 0, -- those that counted
    taken            integer     NOT NULL DEFAULT 0, -- since it was last settled
    tenant           text        NOT NULL,
    message_id       text,                 -- null: the text form of row_id
    type             text        NOT NULL,
    deduplication_id text,
    partition_key    text,
    correlation_id   text,
    deliver_at       timestamptz,
    deliver_by       timestamptz,
    claim_key        uuid,                 -- the claim that cancelling frees
    accepted_at      timestamptz NOT NULL,
    error_kind       text,                 -- of the last attempt that failed
    error_text       text,
    envelope         json        NOT NULL, -- what is only carried
    body             bytea       NOT NULL,
    PRIMARY KEY (row_id, target_no)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE oncegate.deliveries ALTER body SET STORAGE EXTERNAL;
CREATE INDEX deliveries_due ON oncegate.deliveries (kind, target, due_at);
-- What few rows have.
CREATE INDEX deliveries_message_id ON oncegate.deliveries (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX deliveries_deliver_by ON oncegate.deliveries (deliver_by) WHERE deliver_by IS NOT NULL;
CREATE INDEX deliveries_correlation_id ON oncegate.deliveries (correlation_id) WHERE correlation_id IS NOT NULL;
CREATE INDEX deliveries_deduplication_id ON oncegate.deliveries (deduplication_id) WHERE deduplication_id IS NOT NULL;
CREATE INDEX deliveries_failed ON oncegate.deliveries (kind, target, due_at) WHERE error_text IS NOT NULL;

-- Claims: the records that an identity is taken.
CREATE TABLE oncegate.deduplication (
    key           uuid        PRIMARY KEY, -- 128 bits of the SHA-256 over kind, scope and id
    kind          smallint    NOT NULL,    -- 0 request, 1 work, 2 handler, 3 consumer, 4 lock
    scope         text        NOT NULL,    -- readable, as is the id; compared on a hit, never indexed
    id            text        NOT NULL,
    tenant        text        NOT NULL,
    token         bigint      NOT NULL,    -- random, unique per attempt
    confirmed     boolean     NOT NULL,
    message_id    text,                    -- who holds it
    row_id        uuid,
    first_seen_at timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,    -- the lease's end while claimed, the window's end once confirmed
    fingerprint   bytea,                   -- of requests
    answer        bytea                    -- of requests; confirmed without one: a tombstone
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE oncegate.deduplication ALTER answer SET STORAGE EXTERNAL;
CREATE INDEX deduplication_expires_at ON oncegate.deduplication (expires_at);

-- Deliveries given up on, with everything that a replay needs.
CREATE TABLE oncegate.dead_letters (
    id               uuid        PRIMARY KEY, -- a UUIDv7 of its own
    row_id           uuid        NOT NULL,
    target_no        smallint    NOT NULL,
    kind             smallint    NOT NULL,
    target           text        NOT NULL,
    attempts         integer     NOT NULL,
    tenant           text        NOT NULL,
    message_id       text,
    type             text        NOT NULL,
    deduplication_id text,
    partition_key    text,
    correlation_id   text,
    deliver_at       timestamptz,
    deliver_by       timestamptz,
    claim_key        uuid,
    accepted_at      timestamptz NOT NULL,
    error_kind       text        NOT NULL,
    error_text       text        NOT NULL,
    failed_at        timestamptz NOT NULL,
    envelope         json        NOT NULL,
    body             bytea       NOT NULL
);
ALTER TABLE oncegate.dead_letters ALTER body SET STORAGE EXTERNAL;
CREATE INDEX dead_letters_row_id ON oncegate.dead_letters (row_id);
CREATE INDEX dead_letters_message_id ON oncegate.dead_letters (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX dead_letters_failed_at ON oncegate.dead_letters (failed_at);

-- Receipts: that a delivery was made. Partitions by day (UTC), so that forgetting them is dropping a table;
-- rows for which no partition was made in time go to the default one.
CREATE TABLE oncegate.receipts (
    row_id           uuid        NOT NULL,
    target_no        smallint    NOT NULL,
    kind             smallint    NOT NULL,
    target           text        NOT NULL,
    attempts         integer     NOT NULL, -- this one included
    tenant           text        NOT NULL,
    message_id       text,
    type             text        NOT NULL,
    deduplication_id text,
    accepted_at      timestamptz NOT NULL,
    sent_at          timestamptz NOT NULL
) PARTITION BY RANGE (sent_at);
CREATE INDEX receipts_row_id ON oncegate.receipts (row_id);
CREATE INDEX receipts_message_id ON oncegate.receipts (message_id) WHERE message_id IS NOT NULL;
CREATE INDEX receipts_sent_at ON oncegate.receipts USING brin (sent_at);
CREATE TABLE oncegate.receipts_default PARTITION OF oncegate.receipts DEFAULT;
DO $$
DECLARE
    day date := (now() AT TIME ZONE 'UTC')::date;
BEGIN
    FOR ahead IN 0..2 LOOP
        EXECUTE format(
            'CREATE TABLE oncegate.receipts_%s PARTITION OF oncegate.receipts FOR VALUES FROM (%L) TO (%L)',
            to_char(day + ahead, 'YYYYMMDD'),
            (day + ahead)::text || ' 00:00:00+00',
            (day + ahead + 1)::text || ' 00:00:00+00'
        );
    END LOOP;
END
$$;

-- Targets that are paused for all nodes.
CREATE TABLE oncegate.targets (
    kind      smallint    NOT NULL,
    name      text        NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);
