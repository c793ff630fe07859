-- Publishing inside the user's own transaction: docs/outbox.md.

-- Messages that a transaction of the user's committed and that no node has accepted yet. seq gives the order within
-- a transaction and nothing else: a lower number may become visible after a higher one.
CREATE TABLE oncegate.intake (
    seq              bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant           text        NOT NULL DEFAULT '',
    id               text        CONSTRAINT intake_id CHECK (id <> '' AND length(id) <= 255),
    type             text        NOT NULL CONSTRAINT intake_type
                                 CHECK (type <> '' AND length(type) <= 255 AND type !~ '\s'),
    source           text        CONSTRAINT intake_source CHECK (source <> '' AND length(source) <= 1024),
    subject          text        CONSTRAINT intake_subject CHECK (subject <> '' AND length(subject) <= 1024),
    headers          jsonb       CONSTRAINT intake_headers CHECK (jsonb_typeof(headers) = 'object'),
    deduplication_id text        CONSTRAINT intake_deduplication_id CHECK (length(deduplication_id) <= 512),
    partition_key    text        CONSTRAINT intake_partition_key
                                 CHECK (partition_key <> '' AND length(partition_key) <= 255),
    correlation_id   text        CONSTRAINT intake_correlation_id
                                 CHECK (correlation_id <> '' AND length(correlation_id) <= 255),
    causation_id     text        CONSTRAINT intake_causation_id
                                 CHECK (causation_id <> '' AND length(causation_id) <= 255),
    content_type     text        NOT NULL DEFAULT 'application/json' CONSTRAINT intake_content_type
                                 CHECK (content_type <> '' AND length(content_type) <= 255),
    deliver_at       timestamptz CONSTRAINT intake_deliver_at
                                 CHECK (deliver_at >= '1970-01-01Z' AND deliver_at < '9999-12-31Z'),
    deliver_by       timestamptz CONSTRAINT intake_deliver_by
                                 CHECK (deliver_by >= '1970-01-01Z' AND deliver_by < '9999-12-31Z'),
    destinations     text[]      CONSTRAINT intake_destinations
                                 CHECK (cardinality(destinations) BETWEEN 1 AND 64
                                        AND array_position(destinations, NULL) IS NULL),
    data             bytea       NOT NULL DEFAULT '',
    written_at       timestamptz NOT NULL DEFAULT now(), -- when the user's transaction began
    CONSTRAINT intake_times CHECK (deliver_by >= deliver_at)
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE oncegate.intake ALTER data SET STORAGE EXTERNAL;

-- Which role publishes for which tenant; a role that is not here publishes for none.
-- Written by `oncegate storage grant`.
CREATE TABLE oncegate.publishers (
    role   text PRIMARY KEY,
    tenant text NOT NULL
);

-- What all ways in end in: checks, then inserts. Takes no lock but its own row's.
CREATE FUNCTION oncegate.intake_put(
    type text, data bytea, id uuid, source text, subject text, headers jsonb, deduplication_id text,
    partition_key text, correlation_id text, causation_id text, content_type text, deliver_at timestamptz,
    deliver_by timestamptz, destinations text[]
) RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE
    wrong  text;
    new_id uuid := coalesce($3, gen_random_uuid());
    caller text := nullif(current_setting('role'), 'none');
BEGIN
    wrong := CASE
        WHEN $1 IS NULL OR $1 = '' THEN 'type is needed: it says what the message is, such as order.created'
        WHEN length($1) > 255 OR $1 ~ '\s' THEN 'type must be 1 to 255 characters without white space'
        WHEN $2 IS NULL THEN 'data must not be null; for the JSON value null write ''null''::jsonb'
        WHEN $4 = '' OR length($4) > 1024 THEN 'source must be 1 to 1024 characters, or null'
        WHEN $5 = '' OR length($5) > 1024 THEN 'subject must be 1 to 1024 characters, or null'
        WHEN jsonb_typeof($6) <> 'object' THEN 'headers must be a JSON object of strings'
        WHEN length($7) > 512 THEN 'deduplication_id must not be longer than 512 characters'
        WHEN $8 = '' OR length($8) > 255 THEN 'partition_key must be 1 to 255 characters, or null'
        WHEN $9 = '' OR length($9) > 255 THEN 'correlation_id must be 1 to 255 characters, or null'
        WHEN $10 = '' OR length($10) > 255 THEN 'causation_id must be 1 to 255 characters, or null'
        WHEN $11 = '' OR length($11) > 255 OR $11 !~ '^[!-~]+/[ -~]+$'
            THEN 'content_type must be a media type, such as application/json'
        WHEN $12 < '1970-01-01Z' OR $12 >= '9999-12-31Z' THEN 'deliver_at must lie between 1970 and 9999'
        WHEN $13 < now() OR $13 >= '9999-12-31Z' THEN 'deliver_by must lie ahead, and before 9999'
        WHEN $13 < $12 THEN 'deliver_by must not lie before deliver_at'
        WHEN cardinality($14) NOT BETWEEN 1 AND 64 OR array_position($14, NULL) IS NOT NULL
            THEN 'destinations must be 1 to 64 names, or null to follow the routes'
        WHEN concat($1, $4, $5, $7, $8, $9, $10, $11) ~ '[[:cntrl:]]'
            THEN 'a text argument has a control character in it'
    END;
    IF wrong IS NULL AND $6 IS NOT NULL
        AND EXISTS (SELECT FROM jsonb_each($6) h WHERE jsonb_typeof(h.value) <> 'string') THEN
        wrong := 'headers must be a JSON object of strings';
    END IF;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'oncegate: %', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO oncegate.intake
        (tenant, id, type, source, subject, headers, deduplication_id, partition_key, correlation_id, causation_id,
         content_type, deliver_at, deliver_by, destinations, data)
    VALUES
        (coalesce((SELECT p.tenant FROM oncegate.publishers p WHERE p.role = coalesce(caller, session_user)), ''),
         new_id::text, $1, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $2);
    RETURN new_id;
END
$$;

-- The bytes of a JSON value: of a string that is said to be no JSON, its text.
CREATE FUNCTION oncegate.intake_bytes(data jsonb, content_type text) RETURNS bytea LANGUAGE sql IMMUTABLE AS $$
    SELECT convert_to(CASE WHEN jsonb_typeof($1) = 'string' AND $2 !~* '^[^;]*[/+]json\s*(;|$)'
                      THEN $1 #>> '{}' ELSE $1::text END, 'UTF8')
$$;

-- One message, its data as JSON.
CREATE FUNCTION oncegate.publish(
    type text, data jsonb, id uuid DEFAULT NULL, source text DEFAULT NULL, subject text DEFAULT NULL,
    headers jsonb DEFAULT NULL, deduplication_id text DEFAULT NULL, partition_key text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id text DEFAULT NULL, content_type text DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL, deliver_by timestamptz DEFAULT NULL, destinations text[] DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN oncegate.intake_put($1, oncegate.intake_bytes($2, $11), $3, $4, $5, $6, $7, $8, $9, $10,
                               coalesce($11, 'application/json'), $12, $13, $14);
END
$$;

-- One message, its data as bytes.
CREATE FUNCTION oncegate.publish_bytes(
    type text, data bytea, id uuid DEFAULT NULL, source text DEFAULT NULL, subject text DEFAULT NULL,
    headers jsonb DEFAULT NULL, deduplication_id text DEFAULT NULL, partition_key text DEFAULT NULL,
    correlation_id text DEFAULT NULL, causation_id text DEFAULT NULL, content_type text DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL, deliver_by timestamptz DEFAULT NULL, destinations text[] DEFAULT NULL
) RETURNS uuid LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN oncegate.intake_put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10,
                               coalesce($11, 'application/octet-stream'), $12, $13, $14);
END
$$;

-- Many messages: an array of the native form (camelCase members). Their ids, in order.
CREATE FUNCTION oncegate.publish_many(messages jsonb) RETURNS SETOF uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    message jsonb;
    place   bigint;
    unknown text;
    of_type text;
    due     timestamptz;
BEGIN
    IF jsonb_typeof($1) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'oncegate: messages must be a JSON array of messages'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR message, place IN SELECT e.value, e.ordinality - 1 FROM jsonb_array_elements($1) WITH ORDINALITY e LOOP
        BEGIN
            IF jsonb_typeof(message) <> 'object' THEN
                RAISE EXCEPTION 'oncegate: it must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
            END IF;
            SELECT string_agg(k, ', ') INTO unknown FROM jsonb_object_keys(message) k WHERE k <> ALL (ARRAY[
                'id', 'type', 'source', 'subject', 'data', 'dataBase64', 'contentType', 'headers',
                'deduplicationId', 'partitionKey', 'correlationId', 'causationId', 'deliverAt', 'delay',
                'deliverBy', 'destinations']);
            IF unknown IS NOT NULL THEN
                RAISE EXCEPTION 'oncegate: % is not a member of a message', unknown
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            IF message ->> 'dataBase64' IS NOT NULL AND message ->> 'data' IS NOT NULL THEN
                RAISE EXCEPTION 'oncegate: data and dataBase64 cannot both be there'
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            IF message ->> 'deliverAt' IS NOT NULL AND message ->> 'delay' IS NOT NULL THEN
                RAISE EXCEPTION 'oncegate: give either deliverAt or delay, not both'
                    USING ERRCODE = 'invalid_parameter_value';
            END IF;
            of_type := coalesce(message ->> 'contentType', CASE WHEN message ->> 'dataBase64' IS NULL
                                THEN 'application/json' ELSE 'application/octet-stream' END);
            due := coalesce((message ->> 'deliverAt')::timestamptz,
                            clock_timestamp() + (message ->> 'delay')::interval);
            RETURN NEXT oncegate.intake_put(
                message ->> 'type',
                coalesce(decode(message ->> 'dataBase64', 'base64'),
                         oncegate.intake_bytes(message -> 'data', of_type), ''),
                (message ->> 'id')::uuid, message ->> 'source', message ->> 'subject',
                nullif(message -> 'headers', 'null'), message ->> 'deduplicationId', message ->> 'partitionKey',
                message ->> 'correlationId', message ->> 'causationId', of_type, due,
                (message ->> 'deliverBy')::timestamptz,
                CASE WHEN jsonb_typeof(message -> 'destinations') <> 'null'
                     THEN ARRAY(SELECT jsonb_array_elements_text(message -> 'destinations')) END);
        EXCEPTION WHEN data_exception THEN
            RAISE EXCEPTION 'oncegate: message % of the array: %', place, replace(SQLERRM, 'oncegate: ', '')
                USING ERRCODE = 'invalid_parameter_value';
        END;
    END LOOP;
END
$$;

-- For COPY and plain INSERTs: a view that can only be written to.
CREATE VIEW oncegate.outbox AS
    SELECT NULL::text AS type, NULL::text AS data, NULL::text AS data_base64, NULL::uuid AS id,
           NULL::text AS source, NULL::text AS subject, NULL::jsonb AS headers, NULL::text AS deduplication_id,
           NULL::text AS partition_key, NULL::text AS correlation_id, NULL::text AS causation_id,
           NULL::text AS content_type, NULL::timestamptz AS deliver_at, NULL::timestamptz AS deliver_by,
           NULL::text[] AS destinations
    WHERE false;

CREATE FUNCTION oncegate.outbox_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF (NEW.data IS NULL) = (NEW.data_base64 IS NULL) THEN
        RAISE EXCEPTION 'oncegate: give either data or data_base64' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    NEW.id := oncegate.intake_put(
        NEW.type, coalesce(convert_to(NEW.data, 'UTF8'), decode(NEW.data_base64, 'base64')), NEW.id, NEW.source,
        NEW.subject, NEW.headers, NEW.deduplication_id, NEW.partition_key, NEW.correlation_id, NEW.causation_id,
        coalesce(NEW.content_type, CASE WHEN NEW.data IS NULL THEN 'application/octet-stream'
                                   ELSE 'application/json' END),
        NEW.deliver_at, NEW.deliver_by, NEW.destinations);
    RETURN NEW;
END
$$;
CREATE TRIGGER outbox_insert INSTEAD OF INSERT ON oncegate.outbox
    FOR EACH ROW EXECUTE FUNCTION oncegate.outbox_insert();

-- Wakes the nodes; enabled by a node that has `intake.notify`. The server sends one per transaction.
CREATE FUNCTION oncegate.intake_notify() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('oncegate_intake', '');
    RETURN NULL;
END
$$;
CREATE TRIGGER intake_notify AFTER INSERT ON oncegate.intake
    FOR EACH STATEMENT EXECUTE FUNCTION oncegate.intake_notify();
ALTER TABLE oncegate.intake DISABLE TRIGGER intake_notify;

REVOKE ALL ON FUNCTION
    oncegate.intake_put(text, bytea, uuid, text, text, jsonb, text, text, text, text, text, timestamptz,
                        timestamptz, text[]),
    oncegate.intake_bytes(jsonb, text),
    oncegate.publish(text, jsonb, uuid, text, text, jsonb, text, text, text, text, text, timestamptz, timestamptz,
                     text[]),
    oncegate.publish_bytes(text, bytea, uuid, text, text, jsonb, text, text, text, text, text, timestamptz,
                           timestamptz, text[]),
    oncegate.publish_many(jsonb), oncegate.outbox_insert(), oncegate.intake_notify()
FROM PUBLIC;

-- A role for those who publish, and may do nothing else. Where the database does not let us make one, or it is of
-- another database of the same server already, that is no failure: `oncegate storage grant` needs none.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'oncegate_publisher') THEN
        BEGIN
            CREATE ROLE oncegate_publisher NOLOGIN;
        EXCEPTION WHEN insufficient_privilege OR duplicate_object OR unique_violation THEN
            RAISE NOTICE 'the role oncegate_publisher was not made: %', SQLERRM;
        END;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'oncegate_publisher') THEN
        GRANT USAGE ON SCHEMA oncegate TO oncegate_publisher;
        GRANT INSERT ON oncegate.outbox TO oncegate_publisher;
        GRANT EXECUTE ON FUNCTION
            oncegate.publish(text, jsonb, uuid, text, text, jsonb, text, text, text, text, text, timestamptz,
                             timestamptz, text[]),
            oncegate.publish_bytes(text, bytea, uuid, text, text, jsonb, text, text, text, text, text, timestamptz,
                                   timestamptz, text[]),
            oncegate.publish_many(jsonb)
        TO oncegate_publisher;
    END IF;
END
$$;
