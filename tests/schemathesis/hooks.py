"""What JSON Schema cannot say of a message, said to the generator of valid requests.

Only requests that are meant to be valid are touched: an invalid one goes out as it was made.
"""

import json
import uuid

import schemathesis

FUTURE = "2099-12-31T23:59:59Z"
PAST = "2001-01-01T00:00:00Z"
# Names that a message's own headers may not have.
RESERVED = set(
    """id message-type deduplication-id correlation-id causation-id tenant-id partition-key source subject sent-at
    deliver-by attempts traceparent tracestate content-type idempotency-key webhook-id webhook-timestamp
    webhook-signature host connection content-length transfer-encoding keep-alive proxy-connection
    proxy-authorization te trailer upgrade expect http2-settings""".split()
)


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    """The document says that it is text; here it is text with a message on its line."""
    if isinstance(value, str):
        value = {"type": "order.created", "data": value}
    return (json.dumps(value) + "\n").encode()


@schemathesis.hook
def before_call(context, case, kwargs):
    if not case.meta:
        return
    if not case.meta.generation.mode.is_positive:
        stay_invalid(case.query)
        return
    body = case.body
    for message in body if isinstance(body, list) else [body]:
        if isinstance(message, dict):
            keep_the_rules(message, case.media_type)
    headers = case.headers or {}
    if "Message-Id" in headers:
        headers["Message-Id"] = unique(headers["Message-Id"])
    for name, value in (("Deliver-At", PAST), ("Deliver-By", FUTURE), ("Destinations", "out")):
        if name in headers:
            headers[name] = value
    for name, value in list(headers.items()):
        if isinstance(value, str) and not value.isascii():
            # The client writes headers in ISO 8859-1; the gateway reads UTF-8. Written as UTF-8 the value would no
            # longer be what the document's pattern says, and the request would count as an invalid one.
            headers[name] = "".join(letter if letter.isascii() else "x" for letter in value)
    if "Delay" in headers:
        headers.pop("Deliver-At", None)
        headers["Delay"] = "PT1S"
    if "/claims" in case.operation.path and isinstance(body, dict) and body.get("lease") is not None:
        body["lease"] = "30s"
    if case.operation.path.endswith(("/dead-letters", "/dead-letters/replay", "/dead-letters/discard")):
        choose_dead_letters(case.query, body)


def stay_invalid(query):
    """A number where a text is asked for is a text on the wire: what is to be invalid has to be."""
    if query and any(isinstance(value, (int, float)) for value in query.values()):
        query["not-a-parameter"] = "1"


def choose_dead_letters(query, body):
    """By ids or by a filter, and of a destination or of a handler: one of the two each time."""
    filters = [query]
    if isinstance(body, dict):
        if body.get("ids") is not None:
            body.pop("filter", None)
        else:
            body["filter"] = body.get("filter") or {}
        filters.append(body.get("filter"))
    for one in filters:
        if not isinstance(one, dict):
            continue
        if one.get("destination") is not None:
            one.pop("handler", None)
        for name, moment in (("from", PAST), ("until", FUTURE)):
            if one.get(name) is not None:
                one[name] = moment


def unique(message_id):
    """An id may be published again; a cancelled message's would then be another's that is still there."""
    return (message_id + uuid.uuid4().hex)[-255:]


def keep_the_rules(message, media_type):
    """A moment lies where it may, no member contradicts another, and names are nobody else's."""
    if isinstance(message.get("id"), str) and "type" in message:
        message["id"] = unique(message["id"])
    for at in ("deliverAt", "deliverat"):
        if message.get(at) is not None:
            message[at] = PAST
    for by in ("deliverBy", "deliverby"):
        if message.get(by) is not None:
            message[by] = FUTURE
    if message.get("delay") is not None:
        message["delay"] = "1s"
        message.pop("deliverAt", None)
    if message.get("destinations") is not None:
        message["destinations"] = ["out"]
    for base64 in ("dataBase64", "data_base64"):
        if message.get(base64) is not None:
            message.pop("data", None)
    if isinstance(message.get("headers"), dict):
        own = {}
        for name, value in message["headers"].items():
            name = name.lower()
            if name not in RESERVED and not name.startswith("ce-"):
                own[name] = value
        message["headers"] = own
    if media_type and "cloudevents" in media_type:
        known = {"specversion", "id", "source", "type", "subject", "datacontenttype", "dataschema", "time", "data",
                 "data_base64", "deduplicationid", "partitionkey", "correlationid", "causationid", "deliverat",
                 "deliverby"}
        for name in list(message):
            letters = name.isascii() and name.isalnum() and name == name.lower()
            if name not in known and not letters:
                del message[name]
            elif name not in known and isinstance(message[name], float):
                message[name] = 7  # 7.0 is an integer to JSON Schema, and none to CloudEvents
