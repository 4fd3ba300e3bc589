//! The primary's name.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use read_router_testkit::Node;
use tokio::net::{TcpListener, TcpStream};

/// A name: new connections go to the node that it points to now, old ones stay where they are.
pub(crate) struct Name {
    port: u16,
    target: Arc<AtomicU16>,
}

impl Name {
    pub(crate) async fn to(node: &Node) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let target = Arc::new(AtomicU16::new(node.port()));
        let now = target.clone();
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let port = now.load(Relaxed);
                tokio::spawn(async move {
                    let _ = near.set_nodelay(true);
                    if let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = far.set_nodelay(true);
                        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                    }
                });
            }
        });
        Ok(Self { port, target })
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn point_to(&self, node: &Node) {
        self.target.store(node.port(), Relaxed);
    }
}
