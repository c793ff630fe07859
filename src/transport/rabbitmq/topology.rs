//! Exchange, queue and bindings, as the configuration asks for them.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ExchangeKind};

use super::config::{Declare, ExchangeType, QueueType};

/// Declares them; what is there alike already stays as it is.
pub(super) async fn declare(channel: &Channel, exchange: &str, declare: &Declare) -> lapin::Result<()> {
    if let Some(kind) = declare.exchange {
        let kind = match kind {
            ExchangeType::Direct => ExchangeKind::Direct,
            ExchangeType::Fanout => ExchangeKind::Fanout,
            ExchangeType::Topic => ExchangeKind::Topic,
            ExchangeType::Headers => ExchangeKind::Headers,
        };
        let options =
            ExchangeDeclareOptions { durable: declare.durable, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare(exchange.into(), kind, options, FieldTable::default()).await?;
    }
    let Some(queue) = &declare.queue else { return Ok(()) };
    let options = QueueDeclareOptions { durable: declare.durable, ..QueueDeclareOptions::default() };
    let mut arguments = FieldTable::default();
    if declare.queue_type == QueueType::Quorum {
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    }
    channel.queue_declare(queue.as_str().into(), options, arguments).await?;
    for key in &declare.bindings {
        let (queue, key) = (queue.as_str().into(), key.as_str().into());
        let options = QueueBindOptions::default();
        channel.queue_bind(queue, exchange.into(), key, options, FieldTable::default()).await?;
    }
    Ok(())
}
