"""Sends with the libraries of those who send: python send.py KIND URL [SECRET]. Prints the answers' statuses."""

import json
import sys
import urllib.error
import urllib.request
from datetime import datetime, timezone


def post(url, headers, body):
    body = body if isinstance(body, bytes) else body.encode()
    request = urllib.request.Request(url, data=body, headers=dict(headers), method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def cloudevents(url, _):
    from cloudevents.core.bindings.http import to_binary_event, to_structured_event
    from cloudevents.core.v1.event import CloudEvent

    def event(number, data):
        attributes = {
            "id": f"py-{number}",
            "type": "order.created",
            "source": "/python",
            "subject": "Euro € 😀",
            "specversion": "1.0",
            "datacontenttype": "application/json",
            "partitionkey": "customer 7",
        }
        return CloudEvent(attributes, data)

    for number, write in enumerate([to_binary_event, to_structured_event]):
        message = write(event(number, {"order": number, "naïve": True}))
        yield post(url, message.headers, message.body)


def cloudevents_v1(url, _):
    from cloudevents.v1.http import CloudEvent, to_binary, to_structured

    for number, write in enumerate([to_binary, to_structured]):
        attributes = {
            "id": f"v1-{number}",
            "type": "order.created",
            "source": "/python",
            "datacontenttype": "application/json",
        }
        event = CloudEvent(attributes, {"order": number})
        headers, body = write(event)
        yield post(url, headers, body)


def standard_webhooks(url, secret):
    from standardwebhooks.webhooks import Webhook

    now = datetime.now(tz=timezone.utc)
    body = json.dumps({"type": "order.created", "data": {"name": "Zoë"}})
    for signed, key in [(body, secret), (body + " ", secret)]:
        headers = {
            "content-type": "application/json",
            "webhook-id": "msg_py",
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": Webhook(key).sign("msg_py", now, signed),
        }
        yield post(url, headers, body)


def stripe(url, secret):
    import stripe as library

    body = json.dumps({"id": "evt_py", "object": "event", "type": "invoice.paid", "data": {"name": "Zoë"}}, indent=2)
    for key in [secret, "whsec_other"]:
        header = library.WebhookSignature.generate_signature_header(body, key)
        yield post(url, {"content-type": "application/json", "stripe-signature": header}, body)


def sns(endpoint, url):
    """Subscribes URL at the SNS that listens at ENDPOINT, and publishes; prints the ids of the messages."""
    import boto3

    client = boto3.client(
        "sns", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )
    topic = client.create_topic(Name="orders")["TopicArn"]
    client.subscribe(TopicArn=topic, Protocol="http", Endpoint=url)
    yield topic
    yield client.publish(
        TopicArn=topic,
        Message=json.dumps({"order": 1, "name": "Zoë"}),
    )["MessageId"]


kinds = {
    "cloudevents": cloudevents,
    "cloudevents-v1": cloudevents_v1,
    "standard-webhooks": standard_webhooks,
    "stripe": stripe,
    "sns": sns,
}
for answer in kinds[sys.argv[1]](sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None):
    print(answer, flush=True)
