//! The instruments. Names and labels are listed in `docs/operations.md`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, MeterProvider};
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use prometheus::{Encoder, Registry, TextEncoder};

use crate::domain::delivery::{DeadKind, Target};

/// All instruments of one node. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
    /// What is about a store is labelled with it.
    store: KeyValue,
}

struct Inner {
    registry: Registry,
    provider: SdkMeterProvider,
    accepted: Counter<u64>,
    duplicates: Counter<u64>,
    unroutable: Counter<u64>,
    sent: Counter<u64>,
    failed: Counter<u64>,
    dead: Counter<u64>,
    discarded: Counter<u64>,
    accept_seconds: Histogram<f64>,
    send_seconds: Histogram<f64>,
    backlog: Gauge<u64>,
    oldest_seconds: Gauge<f64>,
    breaker_open: Gauge<u64>,
    store_up: Gauge<u64>,
    /// Targets that were ever reported, by store, so that an emptied one is reported as 0.
    reported: Mutex<BTreeSet<(String, Target)>>,
}

/// In seconds; the defaults of the exporters suit milliseconds.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

impl Metrics {
    /// The instruments, readable as Prometheus text; with `otlp_endpoint` also pushed there.
    ///
    /// # Errors
    /// What the exporters found wrong with the endpoint.
    pub fn new(otlp_endpoint: Option<&str>) -> Result<Self, String> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()
            .map_err(|error| error.to_string())?;
        let mut builder = SdkMeterProvider::builder().with_reader(exporter).with_resource(resource());
        if let Some(endpoint) = otlp_endpoint {
            use opentelemetry_otlp::WithExportConfig;
            let otlp = opentelemetry_otlp::MetricExporter::builder()
                .with_http()
                .with_endpoint(format!("{}/v1/metrics", endpoint.trim_end_matches('/')))
                .build()
                .map_err(|error| error.to_string())?;
            builder = builder.with_reader(PeriodicReader::builder(otlp).build());
        }
        let provider = builder.build();
        let meter = provider.meter("oncegate");
        let counter =
            |name: &'static str, text: &'static str| meter.u64_counter(name).with_description(text).build();
        let seconds = |name: &'static str, text: &'static str| {
            meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(text)
                .with_boundaries(SECONDS.to_vec())
                .build()
        };
        let inner = Inner {
            accepted: counter("oncegate.messages.accepted", "Messages stored"),
            duplicates: counter(
                "oncegate.messages.duplicates",
                "Messages acknowledged as duplicates, by type",
            ),
            unroutable: counter("oncegate.messages.unroutable", "Messages accepted though nobody takes them"),
            sent: counter("oncegate.deliveries.sent", "Deliveries acknowledged by their target"),
            failed: counter("oncegate.deliveries.failed", "Failed attempts, by whose fault it was"),
            discarded: counter(
                "oncegate.deliveries.discarded",
                "Deliveries discarded, as an error policy says",
            ),
            dead: counter("oncegate.deliveries.dead.lettered", "Deliveries given up on, by reason"),
            accept_seconds: seconds("oncegate.accept.duration", "From the request to the commit"),
            send_seconds: seconds("oncegate.attempt.duration", "One attempt of a delivery"),
            backlog: meter.u64_gauge("oncegate.backlog").with_description("Rows per target").build(),
            oldest_seconds: meter
                .f64_gauge("oncegate.backlog.oldest")
                .with_unit("s")
                .with_description("How long the oldest due row has been waiting")
                .build(),
            breaker_open: meter
                .u64_gauge("oncegate.breaker.open")
                .with_description("1 while this node's breaker of the target is open")
                .build(),
            store_up: meter
                .u64_gauge("oncegate.store.up")
                .with_description("1 while the store answers")
                .build(),
            reported: Mutex::default(),
            registry,
            provider,
        };
        Ok(Self { inner: Arc::new(inner), store: KeyValue::new("store", "main") })
    }

    /// The same instruments, for what is about this store. Without this: `main`.
    pub fn of_store(&self, name: &str) -> Self {
        Self { inner: Arc::clone(&self.inner), store: KeyValue::new("store", name.to_owned()) }
    }

    /// A target's labels, made once.
    pub fn labels(&self, target: &Target) -> TargetLabels {
        TargetLabels([
            self.store.clone(),
            KeyValue::new("target", target.name.to_string()),
            KeyValue::new("kind", target.kind.as_str()),
        ])
    }

    fn own(&self) -> &[KeyValue] {
        std::slice::from_ref(&self.store)
    }

    pub fn accepted(&self, messages: u64) {
        self.inner.accepted.add(messages, self.own());
    }

    pub fn duplicate(&self, message_type: &str) {
        let labels = [self.store.clone(), KeyValue::new("type", message_type.to_owned())];
        self.inner.duplicates.add(1, &labels);
    }

    pub fn unroutable(&self) {
        self.inner.unroutable.add(1, &[]);
    }

    pub fn accept_took(&self, duration: Duration) {
        self.inner.accept_seconds.record(duration.as_secs_f64(), self.own());
    }

    pub fn sent(&self, labels: &TargetLabels, took: Duration) {
        self.inner.sent.add(1, &labels.0);
        self.inner.send_seconds.record(took.as_secs_f64(), &labels.0);
    }

    /// `fault`: `attempt`, `target` or `message`.
    pub fn failed(&self, labels: &TargetLabels, fault: &'static str) {
        self.inner.failed.add(1, &labels.with("fault", fault));
    }

    pub fn discarded(&self, target: &Target) {
        self.inner.discarded.add(1, &self.labels(target).0);
    }

    pub fn dead(&self, target: &Target, kind: DeadKind, count: u64) {
        self.inner.dead.add(count, &self.labels(target).with("reason", kind.as_str()));
    }

    /// The rows of every target, as the store says; targets that are not named any more count 0.
    pub fn backlog(&self, rows: &[(Target, u64, Duration)]) {
        let mut reported = self.inner.reported.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let store = self.store.value.as_str().into_owned();
        let gone = reported
            .iter()
            .filter(|(name, known)| *name == store && !rows.iter().any(|(target, ..)| target == known));
        for (_, target) in gone {
            let labels = self.labels(target);
            self.inner.backlog.record(0, &labels.0);
            self.inner.oldest_seconds.record(0.0, &labels.0);
        }
        for (target, depth, oldest) in rows {
            let labels = self.labels(target);
            self.inner.backlog.record(*depth, &labels.0);
            self.inner.oldest_seconds.record(oldest.as_secs_f64(), &labels.0);
            reported.insert((store.clone(), target.clone()));
        }
    }

    pub fn breaker(&self, labels: &TargetLabels, open: bool) {
        self.inner.breaker_open.record(u64::from(open), &labels.0);
    }

    /// Whether the store answered when it was asked last.
    pub fn store_up(&self, up: bool) {
        self.inner.store_up.record(u64::from(up), self.own());
    }

    /// Prometheus' text format, version 0.0.4.
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.inner.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics could not be written");
        }
        String::from_utf8(text).unwrap_or_default()
    }

    /// Pushes what is not pushed yet.
    pub fn shutdown(&self) {
        if let Err(error) = self.inner.provider.shutdown() {
            tracing::debug!(%error, "the last metrics were not pushed");
        }
    }
}

/// A target's labels, made once.
#[derive(Clone, Debug)]
pub struct TargetLabels([KeyValue; 3]);

impl TargetLabels {
    fn with(&self, key: &'static str, value: &'static str) -> [KeyValue; 4] {
        let [store, target, kind] = self.0.clone();
        [store, target, kind, KeyValue::new(key, value)]
    }
}

pub(super) fn resource() -> opentelemetry_sdk::Resource {
    opentelemetry_sdk::Resource::builder()
        .with_service_name("oncegate")
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_readable() {
        let metrics = Metrics::new(None).unwrap();
        let target = Target::destination("orders");
        metrics.accepted(2);
        metrics.dead(&target, DeadKind::Refused, 1);
        metrics.backlog(&[(target, 7, Duration::from_secs(3))]);
        let text = metrics.render();
        assert!(text.contains("oncegate_messages_accepted_total{store=\"main\"} 2"), "{text}");
        assert!(
            text.contains(r#"oncegate_backlog{kind="destination",store="main",target="orders"} 7"#),
            "{text}"
        );
        metrics.backlog(&[]);
        assert!(
            metrics
                .render()
                .contains(r#"oncegate_backlog{kind="destination",store="main",target="orders"} 0"#)
        );
    }
}
