-- Takes a few seconds per million deliveries and dead letters; meanwhile nothing is accepted or delivered.
-- The first of each key is whose turn it is.
CREATE INDEX deliveries_in_order ON oncegate.deliveries (kind, target, order_key, turn)
    WHERE turn IS NOT NULL AND state <> 0;
-- What joins its key's order when it falls due.
CREATE INDEX deliveries_to_come ON oncegate.deliveries (kind, target, due_at, turn)
    WHERE turn IS NOT NULL AND state = 0;
-- What may hold up its key.
CREATE INDEX dead_letters_in_order ON oncegate.dead_letters (kind, target, order_key, turn)
    WHERE order_key IS NOT NULL;
