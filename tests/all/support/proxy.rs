//! A TCP proxy in front of a server: it delays, cuts, swallows one answer, or goes silent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What it does with the bytes of both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Passes them on.
    Pass,
    /// Passes them on this much later.
    Delay(Duration),
    /// Accepts connections and keeps them, and passes nothing on: a black hole.
    Hold,
    /// Closes every connection, and every new one at once.
    Refuse,
}

/// An answer to be lost: the bytes in the request that mark it, and whether the request itself gets through.
#[derive(Clone, Debug)]
struct Loss {
    mark: Vec<u8>,
}

#[derive(Debug)]
struct Shared {
    loss: Mutex<Option<Loss>>,
    /// Bytes seen from clients and from the server.
    seen: Mutex<(u64, u64)>,
    connections: Mutex<u64>,
}

/// The proxy. Ends on drop, and with it its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    mode: watch::Sender<(Mode, u64)>,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// In front of `127.0.0.1:port`.
    pub async fn start(port: u16) -> Self {
        let listener =
            TcpListener::bind(("127.0.0.1", super::run::free_port())).await.expect("bind the proxy");
        let address = listener.local_addr().expect("the proxy's address");
        let (mode, watched) = watch::channel((Mode::Pass, 0));
        let shared =
            Arc::new(Shared { loss: Mutex::new(None), seen: Mutex::new((0, 0)), connections: Mutex::new(0) });
        let task = tokio::spawn(accept(listener, port, watched, Arc::clone(&shared)));
        Self { address, mode, shared, task }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Behaves differently from now on, for connections that stand as well.
    pub fn set(&self, mode: Mode) {
        self.mode.send_modify(|state| state.0 = mode);
    }

    /// Cuts every connection that stands; new ones are as the mode says.
    pub fn cut(&self) {
        self.mode.send_modify(|state| state.1 += 1);
    }

    /// The next time that a client sends `mark` (such as `COMMIT`), the server gets it, and the connection is
    /// cut when the server answers: the answer is lost. Once.
    pub fn lose_answer_to(&self, mark: &[u8]) {
        *self.shared.loss.lock().expect("the loss") = Some(Loss { mark: mark.to_vec() });
    }

    /// Whether a loss that was asked for has still not happened.
    pub fn loss_pending(&self) -> bool {
        self.shared.loss.lock().expect("the loss").is_some()
    }

    /// Bytes seen from clients and from the server.
    pub fn seen(&self) -> (u64, u64) {
        *self.shared.seen.lock().expect("the counts")
    }

    /// How many connections were accepted so far.
    pub fn connections(&self) -> u64 {
        *self.shared.connections.lock().expect("the counts")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, port: u16, mode: watch::Receiver<(Mode, u64)>, shared: Arc<Shared>) {
    // Dropping the set with this task ends every connection.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        *shared.connections.lock().expect("the counts") += 1;
        connections.spawn(serve(client, port, mode.clone(), Arc::clone(&shared)));
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(client: TcpStream, port: u16, mut mode: watch::Receiver<(Mode, u64)>, shared: Arc<Shared>) {
    let start = *mode.borrow_and_update();
    if start.0 == Mode::Refuse {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (client_in, client_out) = client.into_split();
    let (server_in, server_out) = server.into_split();
    let lost = Arc::new(Mutex::new(false));
    let up = pump(client_in, server_out, mode.clone(), Arc::clone(&shared), Way::Up, Arc::clone(&lost));
    let down = pump(server_in, client_out, mode.clone(), shared, Way::Down, lost);
    let cut = async {
        while mode.changed().await.is_ok() {
            let now = *mode.borrow_and_update();
            if now.0 == Mode::Refuse || now.1 != start.1 {
                return;
            }
        }
    };
    tokio::select! {
        () = async { tokio::join!(up, down); } => {}
        () = cut => {}
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Up,
    Down,
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut mode: watch::Receiver<(Mode, u64)>,
    shared: Arc<Shared>,
    way: Way,
    lost: Arc<Mutex<bool>>,
) {
    let mut buffer = vec![0_u8; 64 * 1024];
    loop {
        let count = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        {
            let mut seen = shared.seen.lock().expect("the counts");
            match way {
                Way::Up => seen.0 += count as u64,
                Way::Down => seen.1 += count as u64,
            }
        }
        if way == Way::Up && take_loss(&shared, &buffer[..count]) {
            *lost.lock().expect("the mark") = true;
        }
        if way == Way::Down && *lost.lock().expect("the mark") {
            // The answer that was to be lost: end here, and the other way with it.
            return shutdown_both(from, to).await;
        }
        let now = mode.borrow_and_update().0;
        match now {
            Mode::Delay(delay) => tokio::time::sleep(delay).await,
            Mode::Hold => {
                let _ = mode.wait_for(|state| state.0 != Mode::Hold).await;
            }
            Mode::Pass | Mode::Refuse => {}
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

async fn shutdown_both(from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let _ = to.shutdown().await;
    drop(from);
}

fn take_loss(shared: &Shared, bytes: &[u8]) -> bool {
    let mut loss = shared.loss.lock().expect("the loss");
    let hit =
        loss.as_ref().is_some_and(|loss| bytes.windows(loss.mark.len()).any(|window| window == loss.mark));
    if hit {
        *loss = None;
    }
    hit
}
