use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::domain::fields::time;
use crate::domain::message::Draft;

fn draft(body: &str) -> Draft {
    Draft { kind: "order.created".into(), body: Bytes::copy_from_slice(body.as_bytes()), ..Draft::default() }
}

fn rule(types: &str, template: &str) -> RuleOptions {
    RuleOptions { types: Some(vec![types.parse().unwrap()]), by: By::Template(template.into()) }
}

fn named(names: &[&str]) -> RuleOptions {
    RuleOptions { types: None, by: By::MembersNamed(names.iter().map(ToString::to_string).collect()) }
}

fn compiled(rules: Vec<RuleOptions>) -> Identity {
    Identity::compile(&Options { rules, ..Options::default() }).unwrap()
}

fn contract(text: &str) -> Options {
    let options = TypeOptions { deduplication_identity: Some(text.into()), ..TypeOptions::default() };
    Options { types: BTreeMap::from([("order.created".into(), options)]), ..Options::default() }
}

fn derive(identity: &Identity, draft: &Draft) -> Option<(String, Source)> {
    identity
        .derive(&draft.deduplication, &Facts::of_draft(draft, "acme", Some("key-1")))
        .map(|derived| (derived.id, derived.source))
}

/// The id that one template gives for one body.
fn by_template(template: &str, body: &str) -> Option<String> {
    derive(&compiled(vec![rule("*", template)]), &draft(body)).map(|(id, _)| id)
}

#[test]
fn members_by_dotted_path_and_pointer() {
    let body =
        r#"{"a":{"b c":"x","n.m":7,"~/":1},"list":[{"id":"first"},{"id":"second"}],"name":"p","at":"2026"}"#;
    for (template, expected) in [
        ("{name}|{at}", Some("p|2026")),
        ("{a.b c}", Some("x")),
        ("{ name }", Some("p")),
        ("{/a/n.m}", Some("7")),
        ("{/a/~0~1}", Some("1")),
        ("{list.1.id}", Some("second")),
        ("{/list/0/id}", Some("first")),
        ("{list.01.id}", None),
        ("{list.2.id}", None),
        ("{Name}", None),
        ("{a}", None),
        ("{list}", None),
        ("{missing}", None),
        ("{name.deeper}", None),
        ("{{{name}}}", Some("{p}")),
    ] {
        assert_eq!(by_template(template, body).as_deref(), expected, "{template}");
    }
    assert_eq!(by_template("{/1/id}", r#"[1,{"id":"x"}]"#).as_deref(), Some("x"));
}

#[test]
fn numbers_and_booleans_are_written_as_in_the_source() {
    for number in ["1.10", "12345678901234567890123456789", "1e400", "-0", "0", "true", "false"] {
        assert_eq!(by_template("{n}", &format!("{{\"n\": {number} }}")).as_deref(), Some(number));
    }
}

#[test]
fn what_is_not_usable_gives_nothing() {
    for value in ["null", "\"\"", "{}", "[]", "[1]", "\"\\ud800\""] {
        assert_eq!(by_template("{n}", &format!("{{\"n\":{value}}}")), None, "{value}");
        assert_eq!(by_template("{m}|{n}", &format!("{{\"m\":1,\"n\":{value}}}")), None, "{value}");
    }
    for body in ["", "text", "5", "\"n\"", "{\"n\":1", "<n/>"] {
        assert_eq!(by_template("{n}", body), None, "{body}");
    }
}

#[test]
fn members_of_the_message() {
    let mut draft = draft("abc");
    draft.id = Some("m-1".into());
    draft.envelope.source = Some("/shop".into());
    draft.envelope.subject = Some("s".into());
    draft.envelope.headers.insert("x-region".into(), "eu".into());
    for (template, expected) in [
        ("{@type}:{@id}", Some("order.created:m-1")),
        ("{@source}|{@id}", Some("/shop|m-1")),
        ("{@subject}{@tenant}", Some("sacme")),
        ("{@header.X-Region}", Some("eu")),
        ("{@header.x-other}", None),
        ("{@idempotencyKey}", Some("key-1")),
        ("{@body.sha256}", Some("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")),
    ] {
        let identity = compiled(vec![rule("*", template)]);
        assert_eq!(derive(&identity, &draft).map(|(id, _)| id).as_deref(), expected, "{template}");
    }
    draft.id = None;
    assert_eq!(derive(&compiled(vec![rule("*", "{@id}")]), &draft), None, "an id of the gateway's is none");
}

#[test]
fn the_first_of_the_listed_names_with_a_usable_value() {
    let identity = compiled(vec![named(&["IdempotencyKey", "DeduplicationId"])]);
    for (body, expected) in [
        (r#"{"deduplicationid":"d","IDEMPOTENCYKEY":"i"}"#, Some("i")),
        (r#"{"DeduplicationId":"d","idempotencyKey":null}"#, Some("d")),
        (r#"{"DeduplicationId":"d","idempotencyKey":""}"#, Some("d")),
        (r#"{"DeduplicationId":7,"idempotencyKey":{}}"#, Some("7")),
        (r#"{"idempotencykey":"lower","IdempotencyKey":"exact"}"#, Some("exact")),
        (r#"{"nested":{"IdempotencyKey":"i"}}"#, None),
        ("[]", None),
    ] {
        assert_eq!(derive(&identity, &draft(body)).map(|(id, _)| id).as_deref(), expected, "{body}");
    }
}

#[test]
fn publisher_then_rules_then_contract() {
    let mut options = contract("c");
    options.rules = vec![rule("other", "{a}"), rule("order.*", "{b}"), rule("*", "{a}")];
    let identity = Identity::compile(&options).unwrap();
    let body = |text: &str| derive(&identity, &draft(text));
    assert_eq!(body(r#"{"a":"1","b":"2","c":"3"}"#), Some(("2".into(), Source::Rule(1))));
    assert_eq!(body(r#"{"a":"1","b":null,"c":"3"}"#), Some(("1".into(), Source::Rule(2))));
    assert_eq!(body(r#"{"b":"","c":"3"}"#), Some(("3".into(), Source::Contract)));
    assert_eq!(body("{}"), None);
    let mut set = draft(r#"{"b":"2"}"#);
    set.deduplication = DraftDeduplication::Id("mine".into());
    assert_eq!(derive(&identity, &set), Some(("mine".into(), Source::Publisher)));
    set.deduplication = DraftDeduplication::OptOut;
    assert_eq!(derive(&identity, &set), None);
}

#[test]
fn a_contract_is_a_path_or_a_template() {
    let body = draft(r#"{"order":{"id":5},"a.b":1}"#);
    for (text, expected) in
        [("order.id", "5"), ("/order/id", "5"), ("{order.id}@{@type}", "5@order.created"), ("/a.b", "1")]
    {
        let identity = Identity::compile(&contract(text)).unwrap();
        assert_eq!(derive(&identity, &body), Some((expected.into(), Source::Contract)), "{text}");
    }
    let mut options = contract("order.id");
    let other = options.types.get_mut("order.created").unwrap();
    other.schema_identity = Some("/a.b".into());
    assert_eq!(derive(&Identity::compile(&options).unwrap(), &body).unwrap().0, "5");
    other_schema(&mut options);
    assert_eq!(derive(&Identity::compile(&options).unwrap(), &body).unwrap().0, "1");
}

fn other_schema(options: &mut Options) {
    options.types.get_mut("order.created").unwrap().deduplication_identity = None;
}

#[test]
fn what_is_impossible_is_refused_at_start() {
    for (template, says) in [
        ("{@x}", "is unknown"),
        ("{@header.}", "names no header"),
        ("{@header.tenant-id}", "can never have a value"),
        ("{a", "without a `}`"),
        ("a}", "without a `{`"),
        ("{a{b}}", "inside of braces"),
        ("{}", "names no member"),
        ("{a..b}", "empty name"),
        ("{/a~2}", "not a JSON Pointer"),
        ("constant", "the same id"),
        ("{@type}-{@tenant}", "the same id"),
        ("", "is empty"),
    ] {
        let options = Options { rules: vec![rule("*", "{ok}"), rule("*", template)], ..Options::default() };
        let errors = Identity::compile(&options).unwrap_err();
        assert_eq!(errors[0].origin, Origin::Rule(1), "{template}");
        assert!(errors[0].detail.contains(says), "{template}: {}", errors[0].detail);
    }
    for text in ["", "a..b", "{@x}", "a}", "{@type}"] {
        let errors = Identity::compile(&contract(text)).unwrap_err();
        assert_eq!(errors[0].origin, Origin::Type("order.created".into()), "{text}");
    }
    let none = Options { rules: vec![named(&[])], ..Options::default() };
    assert!(Identity::compile(&none).is_err());
}

#[test]
fn the_body_is_parsed_only_when_a_rule_asks_for_it() {
    let identity =
        compiled(vec![rule("other.*", "{a}"), rule("order.*", "{@idempotencyKey}"), rule("*", "{a}")]);
    let draft = draft(r#"{"a":1}"#);
    let parsed = |identity: &Identity, said: &DraftDeduplication| {
        let facts = Facts::of_draft(&draft, "", Some("k"));
        identity.derive(said, &facts);
        facts.is_parsed()
    };
    assert!(!parsed(&identity, &DraftDeduplication::Derive));
    assert!(!parsed(&Identity::default(), &DraftDeduplication::Derive));
    let by_member = compiled(vec![rule("*", "{a}")]);
    assert!(parsed(&by_member, &DraftDeduplication::Derive));
    assert!(!parsed(&by_member, &DraftDeduplication::OptOut));
    assert!(!parsed(&by_member, &DraftDeduplication::Id("x".into())));
}

#[test]
fn ids_that_cannot_be_stored_are_hashed() {
    let long = "x".repeat(513);
    let id = by_template("{a}", &format!("{{\"a\":\"{long}\"}}")).unwrap();
    assert!(id.starts_with("sha256:") && id.len() == 71, "{id}");
    let fits = "\u{e9}".repeat(512);
    assert_eq!(by_template("{a}", &format!("{{\"a\":\"{fits}\"}}")), Some(fits));
    assert!(by_template("{a}", r#"{"a":"b\u0000"}"#).unwrap().starts_with("sha256:"));
    assert_ne!(by_template("{a}", r#"{"a":"b\u0000"}"#), by_template("{a}", r#"{"a":"b\u0001"}"#));
}

const DAY: Duration = Duration::from_secs(86_400);

fn enforcement(window: Duration, scope: Scope) -> Enforcement {
    Enforcement { required: true, window, on_duplicate: OnDuplicate::Acknowledge, scope }
}

#[test]
fn a_type_s_own_enforcement_stands_before_the_policies() {
    let hour = enforcement(Duration::from_secs(3600), Scope::Type);
    let own = TypeOptions { enforcement: Some(hour), ..TypeOptions::default() };
    let policy = |types: &str, window| PolicyOptions {
        types: vec![types.parse().unwrap()],
        enforcement: enforcement(window, Scope::Store),
    };
    let identity = Identity::compile(&Options {
        types: BTreeMap::from([("order.created".into(), own)]),
        policies: vec![policy("order.*", DAY), policy("order.line.*", 2 * DAY)],
        ..Options::default()
    })
    .unwrap();
    assert_eq!(identity.enforcement("order.created"), Some(hour));
    assert_eq!(identity.enforcement("order.line.added").unwrap().window, DAY);
    assert_eq!(identity.enforcement("other"), None);
}

#[test]
fn ids_are_unique_within_tenant_and_type_or_the_store() {
    let by_type = enforcement(DAY, Scope::Type);
    let key = by_type.work_key("acme", "order.created", "1").key;
    assert_eq!(key, by_type.work_key("acme", "order.created", "1").key);
    for other in [
        by_type.work_key("other", "order.created", "1"),
        by_type.work_key("acme", "order.deleted", "1"),
        by_type.work_key("", "order.created", "1"),
        by_type.work_key("acme", "order.created", "01"),
    ] {
        assert_ne!(key, other.key, "{}", other.scope);
    }
    let global = enforcement(DAY, Scope::Store);
    assert_eq!(global.work_key("a", "x", "1").key, global.work_key("b", "y", "1").key);
    assert_ne!(global.work_key("acme", "order.created", "1").key, key);
}

#[test]
fn the_window_begins_when_the_message_is_due() {
    let now = time("2026-01-02T03:04:05Z").unwrap();
    let enforcement = enforcement(DAY, Scope::Type);
    let tomorrow = time("2026-01-03T03:04:05Z").unwrap();
    assert_eq!(enforcement.expires_at(now, None), tomorrow);
    assert_eq!(enforcement.expires_at(now, Some(now - chrono::Duration::days(3))), tomorrow);
    assert_eq!(enforcement.expires_at(now, Some(tomorrow)), time("2026-01-04T03:04:05Z").unwrap());
}

proptest! {
    #[test]
    fn compiling_and_rendering_never_panic(
        template in "[{}@a-c./~|\\p{L}]{0,20}",
        body in "[{}\\[\\]\":,a-c0-9. ]{0,40}",
    ) {
        let draft = draft(&body);
        let facts = Facts::of_draft(&draft, "t", None);
        for compiled in [Template::parse(&template), Template::contract(&template)].into_iter().flatten() {
            let _ = compiled.render(&facts);
        }
    }

    #[test]
    fn a_member_that_is_text_is_the_id(text in "[^\\p{Cc}]{1,100}") {
        let body = serde_json::json!({ "a": { "b": &text } }).to_string();
        prop_assert_eq!(by_template("{a.b}", &body), Some(text.clone()));
        prop_assert_eq!(by_template("{/a/b}", &body), Some(text));
    }

    #[test]
    fn byte_different_ids_never_meet(one in "\\PC{1,40}", other in "\\PC{1,40}") {
        prop_assume!(one != other);
        let enforcement = enforcement(DAY, Scope::Type);
        prop_assert_ne!(enforcement.work_key("t", "k", &one).key, enforcement.work_key("t", "k", &other).key);
    }
}
