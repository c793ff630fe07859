-- Publishing inside the user's own transaction: docs/outbox.md.
--
-- Messages that a transaction of the user's committed and that are not accepted yet. Only type and data are needed.
-- Unlike in the other tables, times are RFC 3339 texts here: these rows are written by hand.
CREATE TABLE oncegate_intake (
  seq              INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, -- the order
  tenant           TEXT    NOT NULL DEFAULT '',
  id               TEXT    CHECK (id <> '' AND length(id) <= 255),
  type             TEXT    NOT NULL CHECK (type <> '' AND length(type) <= 255 AND type NOT GLOB '*[' || char(1) || '- ]*'),
  source           TEXT    CHECK (source <> '' AND length(source) <= 1024),
  subject          TEXT    CHECK (subject <> '' AND length(subject) <= 1024),
  headers          TEXT    CHECK (headers IS NULL OR json_valid(headers) AND json_type(headers) = 'object'),
  deduplication_id TEXT    CHECK (length(deduplication_id) <= 512),
  partition_key    TEXT    CHECK (partition_key <> '' AND length(partition_key) <= 255),
  correlation_id   TEXT    CHECK (correlation_id <> '' AND length(correlation_id) <= 255),
  causation_id     TEXT    CHECK (causation_id <> '' AND length(causation_id) <= 255),
  content_type     TEXT    NOT NULL DEFAULT 'application/json' CHECK (content_type LIKE '_%/_%' AND length(content_type) <= 255),
  deliver_at       TEXT    CHECK (deliver_at IS NULL OR deliver_at LIKE '____-__-__T__:__:__%' AND julianday(deliver_at) IS NOT NULL),
  deliver_by       TEXT    CHECK (deliver_by IS NULL OR deliver_by LIKE '____-__-__T__:__:__%' AND julianday(deliver_by) IS NOT NULL),
  destinations     TEXT    CHECK (destinations IS NULL OR json_valid(destinations) AND json_type(destinations) = 'array' AND json_array_length(destinations) > 0),
  data             ANY     NOT NULL CHECK (typeof(data) IN ('text', 'blob')),
  CHECK (julianday(deliver_by) >= julianday(deliver_at))
) STRICT;
