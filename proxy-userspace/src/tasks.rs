//! Tasks that go on for as long as the program does. One that ends has ended by a mistake, and what it was to do is not
//! done any more, which nobody would notice.

use std::{any::Any, collections::HashMap, fmt, future::Future};

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};

/// The tasks, which end with this value.
#[derive(Debug, Default)]
pub struct Tasks {
    running: JoinSet<()>,
    names: HashMap<Id, String>,
}

/// A task that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Ended {
    name: String,
    /// What it said when it panicked.
    panic: Option<String>,
}

impl Tasks {
    /// Starts one, which `name` says what for. Whoever has no more need of it aborts it.
    pub fn spawn(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> AbortHandle {
        let handle = self.running.spawn(task);
        self.names.insert(handle.id(), name.into());
        handle
    }

    /// Waits until one has ended that nobody has aborted.
    pub async fn ended(&mut self) -> Ended {
        loop {
            let (id, error) = match self.running.join_next_with_id().await {
                Some(Ok((id, ()))) => (id, None),
                Some(Err(error)) => (error.id(), Some(error)),
                None => std::future::pending().await,
            };
            let name = self.names.remove(&id).unwrap_or_default();
            match error.map(JoinError::try_into_panic) {
                None => return Ended { name, panic: None },
                Some(Ok(panic)) => return Ended { name, panic: Some(words(&*panic)) },
                Some(Err(_aborted)) => {}
            }
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, panic } = self;
        match panic {
            Some(words) => write!(f, "{name} has panicked: {words}"),
            None => write!(f, "{name} has ended"),
        }
    }
}

impl std::error::Error for Ended {}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a word").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn whoever_ends_is_named() {
        let mut tasks = Tasks::default();
        tasks.spawn("the one that stays", std::future::pending());
        tasks.spawn("the one that is not needed", std::future::pending()).abort();
        tasks.spawn("the follower of Services", async { panic!("no {}", "luck") });
        assert_eq!(tasks.ended().await.to_string(), "the follower of Services has panicked: no luck");
        tasks.spawn("the follower of Nodes", async {});
        assert_eq!(tasks.ended().await.to_string(), "the follower of Nodes has ended");
    }
}
