-- Messages are found by what was delivered. Takes a few seconds per million receipts; meanwhile nothing is settled.
CREATE INDEX receipts_handled ON oncegate.receipts (row_id) WHERE kind = 1;
CREATE INDEX receipts_tenant ON oncegate.receipts (tenant, row_id) WHERE tenant <> '';
CREATE INDEX receipts_deduplication_id ON oncegate.receipts (deduplication_id, row_id)
    WHERE deduplication_id IS NOT NULL;
CREATE INDEX receipts_correlation_id ON oncegate.receipts (correlation_id, row_id) WHERE correlation_id IS NOT NULL;
