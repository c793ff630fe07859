//! A connection's end that does not lose its last answer.
//!
//! A request may be answered before its body is read (401, 413). Closing a socket with unread bytes in it
//! resets the connection, and the reset can overtake the answer: the client sees a broken pipe instead of a
//! 413. So the sending half is closed first, and what still comes is read and thrown away for a moment.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// How long to go on reading what nobody wants.
const LINGER: Duration = Duration::from_secs(2);

/// A stream whose shutdown lingers where `wanted` says so.
pub struct Linger<S> {
    stream: S,
    wanted: Arc<AtomicBool>,
    linger: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Linger<S> {
    pub fn new(stream: S, wanted: Arc<AtomicBool>) -> Self {
        Self { stream, wanted, linger: LINGER, deadline: None }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Linger<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.deadline.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            if !self.wanted.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
        }
        let this = &mut *self;
        let deadline = this.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(this.linger)));
        let mut waste = [0_u8; 8192];
        while deadline.as_mut().poll(cx).is_pending() {
            let mut buffer = ReadBuf::new(&mut waste);
            let read = ready!(Pin::new(&mut this.stream).poll_read(cx, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Linger<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.unwrap(), accepted.unwrap().0)
    }

    #[tokio::test]
    async fn the_answer_arrives_although_the_client_still_sends() {
        let (mut client, server) = pair().await;
        let server = tokio::spawn(async move {
            let mut server = Linger::new(server, Arc::new(AtomicBool::new(true)));
            let mut some = [0_u8; 10];
            server.read_exact(&mut some).await.unwrap();
            server.write_all(b"too large").await.unwrap();
            server.shutdown().await.unwrap();
        });
        client.write_all(&vec![1_u8; 8 << 20]).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "too large");
        server.await.unwrap();
    }

    #[tokio::test]
    async fn lingering_ends_by_itself_and_happens_only_when_wanted() {
        let short = Duration::from_millis(300);
        for (wanted, least) in [(true, short), (false, Duration::ZERO)] {
            let (client, server) = pair().await;
            let started = tokio::time::Instant::now();
            let mut server =
                Linger { linger: short, ..Linger::new(server, Arc::new(AtomicBool::new(wanted))) };
            server.shutdown().await.unwrap();
            let elapsed = started.elapsed();
            assert!(elapsed >= least && elapsed < least + Duration::from_millis(250), "{elapsed:?}");
            drop(client);
        }
    }
}
