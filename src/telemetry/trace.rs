//! W3C Trace Context (<https://www.w3.org/TR/trace-context/>): the caller's trace goes on to the target, with
//! the gateway's span as its parent.

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer, TracerProvider,
};
use opentelemetry_sdk::trace::SdkTracerProvider;

use crate::domain::Random;

/// Makes the gateway's spans. Without an OTLP endpoint nothing is recorded, and the caller's trace is still
/// carried on.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    provider: Option<SdkTracerProvider>,
}

impl Traces {
    /// # Errors
    /// What the exporter found wrong with the endpoint.
    pub fn new(otlp_endpoint: Option<&str>) -> Result<Self, String> {
        use opentelemetry_otlp::WithExportConfig;
        let Some(endpoint) = otlp_endpoint else {
            return Ok(Self::default());
        };
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .build()
            .map_err(|error| error.to_string())?;
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(super::metrics::resource())
            .build();
        Ok(Self { provider: Some(provider) })
    }

    /// The `traceparent` to send on, given the caller's: same trace id and flags, a span of the gateway's as
    /// the parent. `None` when the caller sent none (or one that cannot be read) and nothing is recorded.
    pub fn continue_from(
        &self,
        caller: Option<&str>,
        tracestate: Option<&str>,
        random: Random,
    ) -> Option<String> {
        let parent = caller.and_then(parse);
        if let Some(provider) = &self.provider {
            let mut context = opentelemetry::Context::new();
            if let Some((trace, span, flags)) = parent {
                let state = tracestate.and_then(|text| text.parse().ok()).unwrap_or(TraceState::NONE);
                context = context.with_remote_span_context(SpanContext::new(trace, span, flags, true, state));
            }
            let span = provider
                .tracer("oncegate")
                .span_builder("publish")
                .with_kind(SpanKind::Producer)
                .start_with_context(&provider.tracer("oncegate"), &context);
            let own = opentelemetry::trace::Span::span_context(&span);
            return Some(format(own.trace_id(), own.span_id(), own.trace_flags()));
        }
        let (trace, _, flags) = parent?;
        let own = SpanId::from_bytes(random.bytes::<8>());
        Some(format(trace, own, flags))
    }

    /// Pushes what is not pushed yet.
    pub fn shutdown(&self) {
        if let Some(Err(error)) = self.provider.as_ref().map(SdkTracerProvider::shutdown) {
            tracing::debug!(%error, "the last spans were not pushed");
        }
    }
}

fn format(trace: TraceId, span: SpanId, flags: TraceFlags) -> String {
    format!("00-{trace}-{span}-{:02x}", flags.to_u8() & 1)
}

/// Version 00, or the first four fields of a later version; all zeros are invalid.
fn parse(traceparent: &str) -> Option<(TraceId, SpanId, TraceFlags)> {
    let mut fields = traceparent.trim().split('-');
    let (version, trace, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let lower_hex = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let shape = version.len() == 2 && trace.len() == 32 && span.len() == 16 && flags.len() == 2;
    if !shape || version == "ff" || (version == "00" && fields.next().is_some()) {
        return None;
    }
    if ![version, trace, span, flags].into_iter().all(lower_hex) {
        return None;
    }
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?);
    (trace != TraceId::INVALID && span != SpanId::INVALID).then_some((trace, span, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_callers_trace_id_goes_on_with_the_gateways_span() {
        let traces = Traces::default();
        let own = traces.continue_from(Some(CALLER), None, Random).unwrap();
        assert!(own.starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"), "{own}");
        assert!(own.ends_with("-01"), "{own}");
        assert!(!own.contains("00f067aa0ba902b7"), "{own}");
    }

    #[test]
    fn what_cannot_be_read_is_not_carried() {
        let traces = Traces::default();
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert_eq!(traces.continue_from(Some(bad), None, Random), None, "{bad}");
        }
        assert_eq!(traces.continue_from(None, None, Random), None);
    }
}
