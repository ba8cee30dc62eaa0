//! The servers of the tests themselves: they start, elect, and keep what they had.

use crate::servers::{Ensemble, Options, Program, Role, current, eventually, packaged};

fn programs() -> Vec<&'static Program> {
    let programs: Vec<_> = [packaged(), current()].into_iter().flatten().collect();
    assert!(
        programs.len() == 2 || std::env::var_os("CI").is_none(),
        "no ZooKeeper of the packages, or none by Maven"
    );
    programs
}

#[test]
fn one_server_serves_alone_and_again_after_a_kill() {
    for program in programs() {
        let mut alone = Ensemble::start_of(program, 1, &Options::default());
        assert_eq!(alone.servers[0].role(), Some(Role::Standalone));
        let before = alone.servers[0].nodes();
        alone.servers[0].kill9();
        assert_eq!(alone.servers[0].ask("ruok"), None);
        alone.servers[0].restart();
        assert_eq!(alone.servers[0].nodes(), before);
    }
}

#[test]
fn three_servers_elect_another_leader_when_theirs_is_killed_or_stopped() {
    for program in programs() {
        let mut ensemble = Ensemble::start_of(program, 3, &Options::default());
        let first = ensemble.leader();
        assert_eq!(ensemble.followers().len(), 2);
        let epoch = |ensemble: &Ensemble, id: usize| ensemble.servers[id].zxid().expect("it serves") >> 32;
        let begun = epoch(&ensemble, first);
        ensemble.servers[first].kill9();
        let second = ensemble.leader();
        assert_ne!(first, second);
        assert!(epoch(&ensemble, second) > begun, "an election begins an epoch");
        ensemble.servers[first].restart();
        ensemble.servers[second].pause();
        let others =
            |ensemble: &Ensemble| (0..3).any(|id| id != second && ensemble.servers[id].role() == Some(Role::Leader));
        eventually("another leader", || others(&ensemble));
        ensemble.servers[second].resume();
        eventually("the old leader follows", || {
            ensemble.servers[second].role() == Some(Role::Follower)
        });
    }
}
