//! The agent: `watch → model → plan → dataplane → kernel`.
