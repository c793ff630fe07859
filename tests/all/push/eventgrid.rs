//! Azure Event Grid.

use oncegate::push::{Identity, Refusal, What};

use super::receiver;
use crate::support::push::Sample;

const SETTINGS: &str = "format = 'eventgrid'\nhandler = 'h'\nauthorize = 'anonymous'";

#[test]
fn sample_01_a_validation_is_answered_with_its_code() {
    let push = receiver(SETTINGS).read(&Sample::read("eventgrid-01-validation")).unwrap();
    assert_eq!(push.source.as_deref(), Some("ORDERS-SUB"));
    let What::Handshake(answer) = push.what else { panic!("{:?}", push.what) };
    assert_eq!(answer.body, r#"{"validationResponse":"11111111-2222-4333-8444-555555555555"}"#);
    assert_eq!(answer.headers[0].1, "application/json");
}

#[test]
fn sample_03_cloudevents_ask_by_options() {
    let asked = receiver(SETTINGS);
    let sample = Sample::read("eventgrid-03-ce-options");
    let answer = asked.options(&sample).unwrap();
    let header = |name: &str| {
        answer.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.to_str().unwrap())
    };
    assert_eq!(header("webhook-allowed-origin"), Some("eventgrid.azure.net"));
    assert_eq!(header("webhook-allowed-rate"), Some("120"));
    assert_eq!(header("allow"), Some("POST"));
    // Azure/azure-sdk-for-net#47175: other clouds have other names.
    let government = sample.clone().header("webhook-request-origin", "eventgrid.azure.us");
    let answer = asked.options(&government).unwrap();
    assert!(answer.headers.iter().any(|(_, value)| value == "eventgrid.azure.us"));
    assert_eq!(asked.options(&sample.without("webhook-request-origin")), Err(Refusal::Method));
}

#[test]
fn sample_04_a_cloudevent_comes_alone() {
    let asked = receiver(SETTINGS);
    let sample = Sample::read("eventgrid-04-ce-single");
    let push = asked.read(&sample).unwrap();
    let What::Messages { messages, attempts } = push.what else { panic!() };
    assert_eq!((messages.len(), attempts, messages[0].identity), (1, 1, Identity::Event));
    let draft = &messages[0].draft;
    assert_eq!(
        (draft.id.as_deref(), draft.kind.as_str(), &draft.body[..]),
        (Some("c-1"), "order.created", &b"{\"order\":1}"[..])
    );
}

// Further cases of "Event Grid event schema", "Webhook event delivery" and "CloudEvents v1.0 schema".

fn events(body: &str) -> Sample {
    Sample::read("eventgrid-01-validation").header("aeg-event-type", "Notification").body(body.to_owned())
}

const EVENT: &str = r#"{"id":"e-1","topic":"/subscriptions/s/topics/orders","subject":"orders/1","eventType":"order.created","eventTime":"2025-10-09T08:53:18.1647262Z","data":{"order":1},"dataVersion":"1.0","metadataVersion":"1"}"#;

#[test]
fn its_own_schema_is_always_an_array() {
    let asked = receiver(SETTINGS);
    let draft = asked.message(&events(&format!("[{EVENT}]")));
    assert_eq!((draft.id.as_deref(), draft.kind.as_str()), (Some("e-1"), "order.created"));
    assert_eq!(draft.envelope.source.as_deref(), Some("/subscriptions/s/topics/orders"));
    assert!(asked.refuses_as_malformed(&events(EVENT)).contains("array"));
}

/// arcus-azure/arcus.eventgrid#185.
#[test]
fn a_batch_comes_whole_and_in_order() {
    let many: Vec<String> = (0..5000).map(|n| EVENT.replace("e-1", &format!("e-{n}"))).collect();
    let push = receiver(SETTINGS).read(&events(&format!("[{}]", many.join(",")))).unwrap();
    let What::Messages { messages, .. } = push.what else { panic!() };
    let ids: Vec<_> = messages.iter().map(|message| message.draft.id.clone().unwrap()).collect();
    assert_eq!(ids, (0..5000).map(|n| format!("e-{n}")).collect::<Vec<_>>());
}

#[test]
fn attempts_are_counted_from_the_senders_count() {
    for (count, expected) in [("0", 1), ("4", 5), ("", 1), ("many", 1), ("4294967295", u32::MAX)] {
        let sample = events(&format!("[{EVENT}]")).header("aeg-delivery-count", count);
        let What::Messages { attempts, .. } = receiver(SETTINGS).read(&sample).unwrap().what else {
            panic!()
        };
        assert_eq!(attempts, expected, "{count}");
    }
}

#[test]
fn the_end_of_a_subscription_is_noted() {
    let ended = EVENT.replace("order.created", "Microsoft.EventGrid.SubscriptionDeletedEvent");
    let sample = events(&format!("[{ended}]")).header("aeg-event-type", "SubscriptionDeletion");
    assert!(matches!(receiver(SETTINGS).read(&sample).unwrap().what, What::Notice(_)));
}

#[test]
fn a_validation_among_other_events_is_no_validation() {
    let validation = r#"{"id":"v","eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","data":{"validationCode":"c"}}"#;
    let sample =
        events(&format!("[{validation},{EVENT}]")).header("aeg-event-type", "SubscriptionValidation");
    receiver(SETTINGS).refuses_as_malformed(&sample);
}

#[test]
fn what_carries_no_event_is_malformed() {
    for body in ["", "null", "{}", "[null]", "[[]]", r#"[{"id":"e"}]"#, r#"[{"eventType":"t"}]"#] {
        receiver(SETTINGS).refuses_as_malformed(&events(body));
    }
}
