//! A boxed call under way inside something that has to be `Sync`.

use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;

use crate::Result;

/// The mutex is never locked: it only says that a shared reference gives no access.
pub(crate) struct Running<T>(Mutex<BoxFuture<'static, Result<T>>>);

impl<T> Running<T> {
    pub fn new(call: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self(Mutex::new(Box::pin(call)))
    }

    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T>> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(cx)
    }

    pub fn into_future(self) -> BoxFuture<'static, Result<T>> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}
