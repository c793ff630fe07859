-- Receipts say what their delivery came to where it was not made, and are found by correlation id; a target may be
-- paused for a while; a replay may be told to pass the claim of another message.
ALTER TABLE oncegate.receipts ADD COLUMN correlation_id text;
ALTER TABLE oncegate.receipts ADD COLUMN error_kind text; -- null: the delivery was made; Discarded: given up on
ALTER TABLE oncegate.targets ADD COLUMN paused_until timestamptz; -- null: until somebody resumes it
ALTER TABLE oncegate.deliveries ADD COLUMN forced boolean NOT NULL DEFAULT false;
