//! Authentication, keys and exported secrets.

mod auth;
mod export;
mod keys;
