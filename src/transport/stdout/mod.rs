//! Standard output: the native form of each message (or its CloudEvents JSON), an object a line, written whole.
//!
//! A message is acknowledged when its line was written and flushed. Writing blocks while nobody reads, so a
//! thread does it: whatever waits by then is written at once.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::sync::{mpsc, oneshot};

use super::registry::Kind;
use super::{Ack, Common, ConfigError, Context, Shared, Transport};
use crate::domain::delivery::{Delivery, Failure, Fault, Format};
use crate::domain::{cloudevents, native};

/// How many lines may wait, and are written at once.
const WAITING: usize = 1024;

/// Standard output: one JSON object a line, in the form in which messages are published (`format = "plain"`) or
/// as events in the CloudEvents JSON format. It has no settings of its own.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Config {}

/// The transport `stdout`.
pub(super) struct Stdout;

impl Kind for Stdout {
    const NAME: &'static str = "stdout";
    type Config = Config;

    fn check(_: &Config, _: &Common) -> Result<(), ConfigError> {
        Ok(())
    }

    fn build(_: &str, _: Config, common: &Common, _: &Context) -> Result<Shared, ConfigError> {
        let printer = Printer::start(Box::new(io::stdout()), common.format)
            .map_err(|error| ConfigError::new("transport", format!("no thread to write with: {error}")))?;
        Ok(Arc::new(printer))
    }
}

/// All writers of this process write to the same place: a batch at a time.
static WRITING: Mutex<()> = Mutex::new(());

struct Printer {
    lines: mpsc::Sender<Line>,
    format: Format,
}

struct Line {
    text: String,
    written: oneshot::Sender<Result<(), Arc<io::Error>>>,
}

impl Printer {
    fn start(out: Box<dyn Write + Send>, format: Format) -> io::Result<Self> {
        let (lines, waiting) = mpsc::channel(WAITING);
        std::thread::Builder::new().name("stdout".into()).spawn(move || write_all(waiting, out))?;
        Ok(Self { lines, format })
    }
}

fn write_all(mut waiting: mpsc::Receiver<Line>, mut out: Box<dyn Write + Send>) {
    let mut batch = Vec::new();
    while waiting.blocking_recv_many(&mut batch, WAITING) > 0 {
        let text: String = batch.iter().map(|line| line.text.as_str()).collect();
        let written = {
            let _whole = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
            out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Arc::new)
        };
        for line in batch.drain(..) {
            // Nobody waits for it any more: the message will come again.
            let _ = line.written.send(written.clone());
        }
    }
}

#[async_trait]
impl Transport for Printer {
    async fn send(&self, delivery: &Delivery) -> Result<Ack, Failure> {
        let mut text = match self.format {
            Format::Plain => native::to_json(&delivery.message),
            Format::CloudEvents => cloudevents::to_json(delivery),
        };
        text.push('\n');
        let (written, done) = oneshot::channel();
        let gone = |_| Failure::new(Fault::Target, "the writer of standard output is gone");
        self.lines.send(Line { text, written }).await.map_err(|_| gone(()))?;
        match done.await.map_err(|_| gone(()))? {
            Ok(()) => Ok(Ack::default()),
            Err(error) => {
                Err(Failure::new(Fault::Target, format!("cannot write to standard output: {error}")))
            }
        }
    }

    fn batch(&self) -> usize {
        WAITING
    }

    async fn send_all(&self, deliveries: &[Delivery]) -> Vec<Result<Ack, Failure>> {
        // They line up in this order.
        futures::future::join_all(deliveries.iter().map(|delivery| self.send(delivery))).await
    }

    fn default_in_flight(&self) -> usize {
        WAITING
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use futures::future::join_all;

    use super::*;
    use crate::domain::delivery::Target;
    use crate::domain::message::Envelope;
    use crate::domain::{Clock, Message, Random, RowKey};

    fn delivery(id: &str, content_type: &str, body: &'static [u8]) -> Delivery {
        let now = Clock::system().now();
        let message = Message {
            id: id.into(),
            kind: "order.created".into(),
            tenant: String::new(),
            body: Bytes::from_static(body),
            deduplication_id: None,
            partition_key: None,
            correlation_id: None,
            deliver_at: None,
            deliver_by: None,
            accepted_at: now,
            envelope: Envelope { content_type: Some(content_type.into()), ..Envelope::default() },
        };
        let row = RowKey { id: Random.uuid_v7(now), target_no: 0 };
        Delivery { row, target: Target::destination("stdout"), message: Arc::new(message), attempts: 0 }
    }

    #[derive(Clone, Default)]
    struct Out(Arc<Mutex<Vec<u8>>>, Arc<Mutex<usize>>);

    impl Write for Out {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // As a pipe that takes little at a time.
            let taken = bytes.len().min(7);
            self.0.lock().unwrap().extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            *self.1.lock().unwrap() += 1;
            Ok(())
        }
    }

    #[tokio::test]
    async fn lines_are_whole_and_acknowledged_when_they_are_out() {
        let out = Out::default();
        let printer = Printer::start(Box::new(out.clone()), Format::Plain).unwrap();
        let deliveries: Vec<_> = (0..500)
            .map(|n| delivery(&format!("m{n}"), "application/json", b"{\"a\":\"\\n\xc3\xa9\"}"))
            .collect();
        for sent in join_all(deliveries.iter().map(|delivery| printer.send(delivery))).await {
            assert_eq!(sent, Ok(Ack::default()));
        }
        assert!(*out.1.lock().unwrap() > 0, "nothing was flushed");
        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let mut ids = std::collections::BTreeSet::new();
        for line in text.lines() {
            let object: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(object["data"]["a"], "\n\u{e9}");
            ids.insert(object["id"].as_str().unwrap().to_owned());
        }
        assert_eq!(ids.len(), 500);
    }

    #[tokio::test]
    async fn bytes_that_are_no_json_are_written_as_base64() {
        let out = Out::default();
        let printer = Printer::start(Box::new(out.clone()), Format::Plain).unwrap();
        printer.send(&delivery("m", "image/png", b"\x89PNG\x00")).await.unwrap();
        printer.send(&delivery("m", "application/json", b"{not json")).await.unwrap();
        let text = String::from_utf8(out.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["dataBase64"], "iVBORwA=");
        assert!(lines[1].get("dataBase64").is_some() && lines[1].get("data").is_none());
    }

    struct Broken;

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_reader_that_went_away_is_the_targets_fault() {
        let printer = Printer::start(Box::new(Broken), Format::Plain).unwrap();
        let failure = printer.send(&delivery("m", "text/plain", b"x")).await.unwrap_err();
        assert_eq!(failure.fault, Fault::Target);
    }

    struct Stuck;

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            std::thread::sleep(Duration::from_millis(200));
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_slow_reader_does_not_stop_the_runtime() {
        let printer = Printer::start(Box::new(Stuck), Format::Plain).unwrap();
        let delivery = delivery("m", "text/plain", b"x");
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        let mut ticked = 0;
        let send = printer.send(&delivery);
        tokio::pin!(send);
        loop {
            tokio::select! {
                sent = &mut send => break assert!(sent.is_ok()),
                _ = ticks.tick() => ticked += 1,
            };
        }
        assert!(ticked > 5, "{ticked}");
    }
}
