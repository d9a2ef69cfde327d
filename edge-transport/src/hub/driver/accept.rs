//! Takes links in, a bounded number of handshakes at a time.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::Shared;
use super::connection::Connection;
use crate::link::Listener;

pub(super) async fn accept_loop(mut listener: Box<dyn Listener>, shared: Arc<Shared>) {
    let stop = shared.stop_accepting.clone();
    let address = listener.local_address();
    // Each listener has slots of its own: whoever floods one takes none from the others.
    let handshakes = Arc::new(Semaphore::new(shared.settings.max_handshakes.min(Semaphore::MAX_PERMITS)));
    tracing::info!(%address, kind = %listener.kind(), "listening");
    loop {
        let accepted = stop.run_until_cancelled(async {
            let permit = Arc::clone(&handshakes).acquire_owned().await.ok();
            (permit, listener.accept().await)
        });
        let (permit, incoming) = match accepted.await {
            None => return,
            Some((permit, Ok(incoming))) => (permit, incoming),
            Some((_, Err(error))) => {
                tracing::error!(%address, %error, "this listener has failed; no more links come in here");
                return;
            }
        };
        let stop = stop.clone();
        let task = Arc::clone(&shared);
        shared.tasks.spawn(async move {
            // The whole way to the peer's admission has one bound, whatever the link's own handshake allows.
            let bound = task.settings.session.hello_timeout * 2;
            let handshake = async {
                let link = tokio::time::timeout(bound, incoming).await;
                match link {
                    Ok(Ok(link)) => Connection::new(link, task).admission().await,
                    Ok(Err(error)) => {
                        tracing::info!(%error, "a link was not made");
                        task.with_core(|core| core.stats_mut().failed_handshakes += 1);
                        None
                    }
                    Err(_) => {
                        tracing::info!("a link was not made within {bound:?}");
                        task.with_core(|core| core.stats_mut().failed_handshakes += 1);
                        None
                    }
                }
            };
            let connection = stop.run_until_cancelled(Box::pin(handshake)).await.flatten();
            drop(permit);
            if let Some(connection) = connection {
                connection.run().await;
            }
        });
    }
}
