-- Ordered targets: docs/ordering.md. Rows of other targets have neither column.
ALTER TABLE oncegate_deliveries ADD COLUMN order_key BLOB; -- of tenant and partition key: one at a time of a target's
ALTER TABLE oncegate_deliveries ADD COLUMN turn INTEGER;   -- the order within the key; negative once begun
ALTER TABLE oncegate_dead_letters ADD COLUMN order_key BLOB;
ALTER TABLE oncegate_dead_letters ADD COLUMN turn INTEGER; -- its place, which it has again when it is replayed

-- The last number that was given. Every turn that is made of it is later than any moment in microseconds.
CREATE TABLE oncegate_turns (
  number INTEGER NOT NULL
) STRICT;
INSERT INTO oncegate_turns (number) VALUES (8589934592);
