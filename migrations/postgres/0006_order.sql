-- Ordered targets: docs/ordering.md. Rows of other targets have neither column.
-- Every turn that is made of it is later than any moment in microseconds: docs/ordering.md.
CREATE SEQUENCE oncegate.turns START WITH 8589934592;
ALTER TABLE oncegate.deliveries
    ADD order_key uuid,  -- 128 bits of the SHA-256 over tenant and partition key: one at a time of a target's
    ADD turn      bigint; -- the order within the key, from the sequence; negative once begun, so that it stays first
ALTER TABLE oncegate.dead_letters
    ADD order_key uuid,
    ADD turn      bigint; -- its place, which it has again when it is replayed
