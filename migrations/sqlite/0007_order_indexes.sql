-- Takes a few seconds per million deliveries and dead letters; meanwhile nothing is accepted or delivered.
-- The first of each key is whose turn it is.
CREATE INDEX oncegate_deliveries_in_order ON oncegate_deliveries (kind, target, order_key, turn)
  WHERE turn IS NOT NULL AND state <> 0;
-- What joins its key's order when it falls due.
CREATE INDEX oncegate_deliveries_to_come ON oncegate_deliveries (kind, target, due_at, turn)
  WHERE turn IS NOT NULL AND state = 0;
-- What may hold up its key.
CREATE INDEX oncegate_dead_letters_in_order ON oncegate_dead_letters (kind, target, order_key, turn)
  WHERE order_key IS NOT NULL;
