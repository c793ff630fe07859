-- Dead letters are listed oldest first, summarised, and replayed in the order of their first acceptance.
-- Takes a few seconds per million dead letters; meanwhile nothing becomes a dead letter.
CREATE INDEX dead_letters_listed ON oncegate.dead_letters (tenant, failed_at, id);
CREATE INDEX dead_letters_summary ON oncegate.dead_letters (tenant, type, kind, target, error_kind, failed_at);
CREATE INDEX dead_letters_accepted ON oncegate.dead_letters (tenant, accepted_at, row_id, target_no);
