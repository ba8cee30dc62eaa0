//! What is stored: the paths of nodes, the names of a lock's children, their data, and a lock as it was listed.

pub mod child;
pub mod paths;
pub mod record;
pub mod view;
