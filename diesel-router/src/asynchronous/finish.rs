//! Work that goes on when its caller goes away.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::runtime::spawn;

/// A future that is handed to the runtime if it is dropped before it is done.
///
/// What has been sent to a server cannot be called back: if the caller of a write, of a `BEGIN` or of a `COMMIT` goes
/// away, someone must still hear the answer, or an open transaction returns to the pool and a session forgets its
/// write. `abandoned` is called at once when that happens.
pub(crate) struct Finish<T: Send + 'static, A: FnOnce()> {
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    abandoned: Option<A>,
}

/// Runs `work` to its end, whatever happens to the returned future.
pub(crate) fn finish<T: Send + 'static, A: FnOnce()>(
    work: impl Future<Output = T> + Send + 'static,
    abandoned: A,
) -> Finish<T, A> {
    Finish { work: Some(Box::pin(work)), abandoned: Some(abandoned) }
}

impl<T: Send + 'static, A: FnOnce() + Unpin> Future for Finish<T, A> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let done = work.as_mut().poll(context);
        if done.is_ready() {
            self.work = None;
        }
        done
    }
}

impl<T: Send + 'static, A: FnOnce()> Drop for Finish<T, A> {
    fn drop(&mut self) {
        let Some(work) = self.work.take() else { return };
        if let Some(abandoned) = self.abandoned.take() {
            abandoned();
        }
        // Without a runtime nothing can be finished; the connection is dropped, and with it what it was doing.
        spawn(work);
    }
}
