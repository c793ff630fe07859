-- Receipts say what their delivery came to where it was not made, and are found by correlation id; a target may be
-- paused for a while; a replay may be told to pass the claim of another message.
ALTER TABLE oncegate_receipts ADD COLUMN correlation_id TEXT;
ALTER TABLE oncegate_receipts ADD COLUMN error_kind TEXT;   -- null: the delivery was made; Discarded: given up on
ALTER TABLE oncegate_targets ADD COLUMN paused_until INTEGER; -- null: until somebody resumes it
ALTER TABLE oncegate_deliveries ADD COLUMN forced INTEGER NOT NULL DEFAULT 0;
