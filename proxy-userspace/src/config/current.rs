//! The configuration in force, for whoever shows it while the agent changes it.

use std::sync::{Arc, Mutex, PoisonError};

use super::Config;

/// Shared by all clones: what one sets, every other sees.
#[derive(Clone, Debug)]
pub struct Current(Arc<Mutex<Arc<Config>>>);

impl Current {
    /// The configuration the agent starts with.
    pub fn new(config: Config) -> Self {
        Self(Arc::new(Mutex::new(config.into())))
    }

    /// What is in force now.
    pub fn get(&self) -> Arc<Config> {
        // A configuration is whole at every moment, also after a panic elsewhere.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is in force from here on.
    pub fn set(&self, config: Config) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = config.into();
    }
}
