//! Each condition of the store's steps, in the interleaving for which it is there: a step is decided, something else
//! happens, and then the step reaches etcd. `tests/faults_etcd/README.md` lists the conditions with their tests.

mod grants;
mod guards;
mod handing;
mod leases;
mod queueing;
mod renewals;
mod sessions;
mod undoing;
