-- Dead letters are listed oldest first, summarised, and replayed in the order of their first acceptance.
-- Takes a second or two per million dead letters.
CREATE INDEX oncegate_dead_letters_listed ON oncegate_dead_letters (tenant, failed_at, id);
CREATE INDEX oncegate_dead_letters_summary
  ON oncegate_dead_letters (tenant, type, kind, target, error_kind, failed_at);
CREATE INDEX oncegate_dead_letters_accepted ON oncegate_dead_letters (tenant, accepted_at, row_id, target_no);
