-- Messages are found by what was delivered: docs/operations.md. Takes a second or two per million receipts.
CREATE INDEX oncegate_receipts_handled ON oncegate_receipts (row_id) WHERE kind = 1;
CREATE INDEX oncegate_receipts_deduplication ON oncegate_receipts (deduplication_id, row_id)
  WHERE deduplication_id IS NOT NULL;
CREATE INDEX oncegate_receipts_correlation ON oncegate_receipts (correlation_id, row_id)
  WHERE correlation_id IS NOT NULL;
